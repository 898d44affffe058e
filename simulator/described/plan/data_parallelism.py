"""In which ways do ranks that hold copies of a model add up gradients and update it?

To add one, write its entry here, its exchanges in a file of :mod:`simulator.program.states`, and
name them in ``EXCHANGES`` of :mod:`simulator.program.build`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DataParallelism:
    """One way of data parallelism, without what ZeRO shards.

    Questions that a rank's memory depends on have no default: every way answers them.

    Attributes:
        name: As the user writes it in ``plan.data_parallel``.
        holder: Who holds the optimizer states, for messages.
        copies_buckets: Whether gradients may be copied into buckets that are reduced.
        keeps_gradients: Whether a rank's gradients stay on it from one microbatch to the next.
        keeps_states: Whether ranks hold optimizer states and update.
        joins_groups: Whether a rank is in one communicator for each group of ranks.
        joins_world: Whether it is in one of all ranks, too.
        divides_model: Whether a copy of the model may itself be divided among ranks, sharded,
            and offloaded, and whether the plan says when gradients are reduced.
        reduces_by_collectives: Whether ranks add gradients up by collectives among themselves.
        reduces_during_backward: Whether gradients may be reduced before the backward has ended.
        is_one_process: Whether one process drives the GPUs of a node.
    """

    name: str
    holder: str
    copies_buckets: bool
    keeps_gradients: bool
    keeps_states: bool
    joins_groups: bool
    joins_world: bool
    divides_model: bool = False
    reduces_by_collectives: bool = False
    reduces_during_backward: bool = True
    is_one_process: bool = False

    @property
    def has_servers(self) -> bool:
        """Whether hosts without GPUs update."""
        return not self.keeps_states


_ENTRIES = (
    DataParallelism(
        name="ddp",
        holder="every rank holds",
        copies_buckets=True,
        keeps_gradients=True,
        keeps_states=True,
        joins_groups=True,
        joins_world=True,
        divides_model=True,
        reduces_by_collectives=True,
    ),
    DataParallelism(
        name="data-parallel",
        holder="GPU 0 holds",
        copies_buckets=False,
        keeps_gradients=False,
        keeps_states=True,
        joins_groups=True,
        joins_world=False,
        reduces_during_backward=False,
        is_one_process=True,
    ),
    DataParallelism(
        name="parameter-server",
        holder="servers hold",
        copies_buckets=False,
        keeps_gradients=True,
        keeps_states=False,
        joins_groups=False,
        joins_world=False,
    ),
)

DATA_PARALLELISM: Mapping[str, DataParallelism] = {entry.name: entry for entry in _ENTRIES}
"""Every way by the name that ``plan.data_parallel`` uses."""


def known_data_parallelism(name: str) -> str:
    """The name as given, if it is one.

    Raises:
        ValueError: No way of data parallelism has the name.
    """
    if name not in DATA_PARALLELISM:
        raise ValueError(f"no such data parallelism; known: {', '.join(DATA_PARALLELISM)}")
    return name
