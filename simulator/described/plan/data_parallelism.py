"""In which ways do ranks that hold copies of a model add up gradients and update it?

To add one, write its entry here, what its ranks exchange in a file of
:mod:`simulator.program.states`, and a line in :mod:`simulator.program.run.exchanges`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class DataParallelism:
    """One way of data parallelism, without what ZeRO shards.

    Attributes:
        name: As the user writes it in ``plan.data_parallel``.
        holder: Who holds the optimizer states, for messages.
        divides_model: Whether a copy of the model may itself be divided among ranks, sharded,
            and offloaded, and whether the plan says when gradients are reduced.
        reduces_by_collectives: Whether ranks add gradients up by collectives among themselves.
        reduces_during_backward: Whether gradients may be reduced before the backward has ended.
        copies_buckets: Whether gradients may be copied into buckets that are reduced.
        keeps_gradients: Whether a rank's gradients stay on it from one microbatch to the next.
        keeps_states: Whether ranks hold optimizer states and update.
        is_one_process: Whether one process drives the GPUs of a node.
        joins_groups: Whether a rank is in one communicator for each group of ranks.
        joins_world: Whether it is in one of all ranks, too.
    """

    name: str
    holder: str
    divides_model: bool = False
    reduces_by_collectives: bool = False
    reduces_during_backward: bool = True
    copies_buckets: bool = False
    keeps_gradients: bool = True
    keeps_states: bool = True
    is_one_process: bool = False
    joins_groups: bool = True
    joins_world: bool = False

    @property
    def has_servers(self) -> bool:
        """Whether hosts without GPUs update."""
        return not self.keeps_states


_ENTRIES = (
    DataParallelism(
        name="ddp",
        holder="every rank holds",
        divides_model=True,
        reduces_by_collectives=True,
        copies_buckets=True,
        joins_world=True,
    ),
    DataParallelism(
        name="data-parallel",
        holder="GPU 0 holds",
        reduces_during_backward=False,
        keeps_gradients=False,
        is_one_process=True,
    ),
    DataParallelism(
        name="parameter-server",
        holder="servers hold",
        keeps_states=False,
        joins_groups=False,
    ),
)

DATA_PARALLELISM: Mapping[str, DataParallelism] = MappingProxyType(
    {entry.name: entry for entry in _ENTRIES}
)
"""Every way by the name that ``plan.data_parallel`` uses."""


def known_data_parallelism(name: str) -> str:
    """The name as given, if it is one.

    Raises:
        ValueError: No way of data parallelism has the name.
    """
    if name not in DATA_PARALLELISM:
        raise ValueError(f"no such data parallelism; known: {', '.join(DATA_PARALLELISM)}")
    return name
