"""Captured steps written down by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator.capture.table import (
    BlockOwner,
    Call,
    Capture,
    Exchange,
    Phase,
    RankTable,
    Tensor,
)

GEMM = Call(
    "aten.mm.default",
    (Tensor("bfloat16", (4096, 4096)), Tensor("bfloat16", (4096, 4096))),
    (Tensor("bfloat16", (4096, 4096)),),
    (0.0,),
    2 * 4096 * 4096 * 2,
    4096 * 4096 * 2,
    0,
)


@dataclass
class Step:
    """Operations of one rank, added one by one.

    Attributes:
        rank: Which one.
    """

    rank: int = 0
    calls: list[Call] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    changes: list[tuple[int, int, int]] = field(default_factory=list)
    owners: list[BlockOwner] = field(default_factory=list)
    shards: list[int] = field(default_factory=list)

    def kernel(
        self, call: Call = GEMM, *, phase: Phase = Phase.FORWARD, after: Sequence[int] = (),
        stream: int = 0,
    ) -> int:  # fmt: skip
        """Add a kernel, on the compute stream by default."""
        self.calls.append(call)
        return self._add(stream, phase, -1, after)

    def exchange(
        self, exchange: Exchange, *, stream: int = 1, after: Sequence[int] = (), name: str = "c10d"
    ) -> int:
        """Add an exchange on a stream."""
        self.calls.append(Call(name, (), (), (), 0, 0, 0))
        self.exchanges.append(exchange)
        return self._add(stream, Phase.FORWARD, len(self.exchanges) - 1, after)

    def block(
        self, num_bytes: int, taken: int, given: int | None = None,
        owner: BlockOwner = BlockOwner.ACTIVATION, shards: int = 1,
    ) -> None:  # fmt: skip
        """Add a block that is held from one moment to another."""
        number = len(self.owners)
        self.owners.append(owner)
        self.shards.append(shards)
        self.changes.append((taken, number, num_bytes))
        if given is not None:
            self.changes.append((given, number, -num_bytes))

    def table(self) -> RankTable:
        """As columns; something is always held."""
        if not self.changes:
            self.block(512, 0)
        rows = np.asarray(self.rows, dtype=np.int64).reshape(-1, 5)
        changes = np.asarray(sorted(self.changes), dtype=np.int64).reshape(-1, 3)
        return RankTable(
            rank=self.rank,
            call=rows[:, 0],
            stream=rows[:, 1],
            phase=rows[:, 2],
            module=rows[:, 3],
            exchange=rows[:, 4],
            waits=np.asarray(self.waits, dtype=np.int64).reshape(-1, 2),
            moment=changes[:, 0],
            block=changes[:, 1],
            change_bytes=changes[:, 2],
            past_block=np.zeros(0, dtype=np.int64),
            past_bytes=np.zeros(0, dtype=np.int64),
            block_owner=np.asarray(self.owners, dtype=np.int64),
            block_module=np.zeros(len(self.owners), dtype=np.int64),
            block_shards=np.asarray(self.shards, dtype=np.int64),
            calls=tuple(self.calls),
            exchanges=tuple(self.exchanges),
            paths=("",),
        )

    def _add(self, stream: int, phase: Phase, exchange: int, after: Sequence[int]) -> int:
        number = len(self.rows)
        self.rows.append((len(self.calls) - 1, stream, int(phase), 0, exchange))
        self.waits += [(number, before) for before in after]
        return number


def capture_of(*steps: Step, world: int = 8, groups: Sequence[tuple[int, ...]] = ()) -> Capture:
    """Steps of the ranks of one pipeline."""
    return Capture(
        script="train.py",
        world=world,
        device="h100-sxm-80gb",
        tokens_per_rank=1000,
        groups=tuple(groups) or (tuple(range(world)),),
        tables=tuple(step.table() for step in steps),
        versions={"torch": "2.13.0"},
        notes=("torch.save was skipped",),
    )
