"""Who waits where the experts of one rank receive more tokens than those of the others?

One rank of every expert-parallel group is *hot*: it holds the busiest experts. The others
enter every exchange early and leave it with the hot one. That time is one operation after
each of their passes: in a profile it is the part of all_to_all kernels in which nothing moves.
:mod:`simulator.program.unlike.unfold` puts both kinds of ranks side by side.

Ignores: that ranks other than the busiest differ, too; they do what they do on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.program.grid.lockstep_groups import rank_grid
from simulator.program.grid.rank_groups import rank_axes
from simulator.program.grid.received_tokens import (
    ExpertShare,
    busiest_rank,
    busiest_share,
    other_share,
)
from simulator.program.ir import Category, Kind, Lane, Operation, Part, Work

WAIT = "wait_for_experts"
"""Name of the part in which a rank waits for the busiest one."""


@dataclass(frozen=True)
class ExpertRoles:
    """Which ranks hold the busiest experts, and what either kind of rank receives.

    Attributes:
        shares: What a rank's experts receive, by role; one role where all ranks are alike.
        role: Index into ``shares`` of each place of a stage, shape (places,).
    """

    shares: tuple[ExpertShare | None, ...]
    role: NDArray[np.int64]

    @property
    def differ(self) -> bool:
        """Whether some ranks wait for others."""
        return len(self.shares) > 1

    def cause(self, place: int) -> str:
        """Why the rank at a place behaves in its own way; empty where all are alike."""
        if not self.differ:
            return ""
        if self.role[place]:
            return "waits for the busiest experts in every pass"
        return "holds the busiest experts"


def expert_roles(job: Job) -> ExpertRoles:
    """The roles of all places of a stage, the busiest first."""
    ranks, busiest, others = rank_grid(job)[0], busiest_share(job), other_share(job)
    if others is None:
        return ExpertRoles((busiest,), np.zeros(len(ranks), dtype=np.int64))
    axis = rank_axes(job, experts=True)["ep"]
    is_other = ranks // axis.stride % axis.ranks != busiest_rank(job)
    return ExpertRoles((busiest, others), is_other.astype(np.int64))


def waiting(operation: Operation, lanes: Sequence[Lane], after: int, wait_s: float) -> Operation:
    """What ranks do after a pass until the busiest one has ended it, too.

    Args:
        operation: The pass.
        lanes: Theirs.
        after: Index of their pass.
        wait_s: How much longer the busiest one takes [s].
    """
    work = Work(wait_s, (Part(WAIT, Category.EXPERT_PARALLEL, wait_s),))
    return Operation(
        Kind.ALL_TO_ALL, tuple(lanes), work, Category.EXPERT_PARALLEL, (after,),
        operation.microbatch, operation.chunk, operation.layers,
    )  # fmt: skip
