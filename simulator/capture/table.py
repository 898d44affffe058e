"""What does a captured step consist of, as columns?

One :class:`RankTable` for each rank that differs from the others. Everything is numbers in
numpy arrays and short texts; nothing here knows torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
FIRST_BESIDE = 1_000
"""First number of the streams that exchanges run on beside the code's own."""


class Phase(IntEnum):
    """Part of a step."""

    FORWARD = 0
    RECOMPUTE = 1
    BACKWARD = 2
    OPTIMIZER = 3
    OTHER = 4


class BlockOwner(IntEnum):
    """Who holds a block of memory."""

    PARAMETER = 0
    GRADIENT = 1
    OPTIMIZER_STATE = 2
    ACTIVATION = 3
    TEMPORARY = 4
    GATHERED_PARAMETER = 5
    COMMUNICATION = 6
    RECOMPUTED = 7
    BUFFER = 8


class Tensor(NamedTuple):
    """An operand or a result.

    Attributes:
        dtype: As torch names it, without the prefix.
        shape: Its sizes.
    """

    dtype: str
    shape: tuple[int, ...]


class Call(NamedTuple):
    """What an operator does, apart from when and where.

    Attributes:
        name: As torch names it, for example ``aten.mm.default``.
        inputs, outputs: Tensors on the device.
        settings: Its other arguments that say how much work it is.
        read_bytes, written_bytes: Of the device's memory, each tensor once [B].
        sharded_bytes: The part of them in shards that get smaller with more data ranks [B].
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    settings: tuple[float | None, ...]
    read_bytes: int
    written_bytes: int
    sharded_bytes: int


class Exchange(NamedTuple):
    """A collective, or a transfer between two ranks, as often as it is issued alike.

    Attributes:
        kind: As programs name it, such as ``all_gather``.
        group: Number of its group.
        num_bytes: Message size as nccl-tests counts it [B].
        axis: Degree of parallelism, such as ``dp_shard``.
        peer: The other rank of a transfer; -1 in a collective.
        sends: Whether a transfer leaves the rank.
    """

    kind: str
    group: int
    num_bytes: int
    axis: str
    peer: int
    sends: bool


@dataclass(frozen=True)
class RankTable:
    """One step of one rank.

    Attributes:
        rank: Its number.
        call: Number of each operation's call, shape (operations,).
        stream: Number of the stream it was issued on, of the same shape; 0 is the default one.
        phase: Its :class:`Phase`, of the same shape.
        module: Number of its module's path, of the same shape.
        exchange: Number of its exchange, or -1, of the same shape.
        waits: Rows (operation, earlier operation that it waits for), shape (waits, 2).
        moment: Operations before each change of memory, shape (changes,); in order.
        block: Number of the block that is taken or given back, of the same shape.
        change_bytes: What is taken, or given back where negative, of the same shape [B].
        past_block: Number of the block that is taken or given back, by every change before the
            step, shape (past changes,); in order. Empty in files of version 1.
        past_bytes: What is taken, or given back where negative, of the same shape [B].
        block_owner: :class:`BlockOwner` of each block, shape (blocks,).
        block_module: Number of the path that took it, of the same shape.
        block_shards: Data ranks that hold a part of it each, of the same shape.
        calls: Distinct calls, by number.
        exchanges: Distinct exchanges, by number.
        paths: Module paths, by number.
    """

    rank: int
    call: Integers
    stream: Integers
    phase: Integers
    module: Integers
    exchange: Integers
    waits: Integers
    moment: Integers
    block: Integers
    change_bytes: Integers
    past_block: Integers
    past_bytes: Integers
    block_owner: Integers
    block_module: Integers
    block_shards: Integers
    calls: tuple[Call, ...]
    exchanges: tuple[Exchange, ...]
    paths: tuple[str, ...]

    @property
    def held_bytes(self) -> Integers:
        """Bytes held after each change of memory, shape (changes,) [B]."""
        return np.cumsum(self.change_bytes)


COLUMNS = (
    "call", "stream", "phase", "module", "exchange", "waits", "moment", "block", "change_bytes",
    "past_block", "past_bytes", "block_owner", "block_module", "block_shards",
)  # fmt: skip
"""Fields of a :class:`RankTable` that are arrays, as they are called in files."""


@dataclass(frozen=True)
class Capture:
    """A captured step.

    Attributes:
        script: What was run, for people.
        world: Ranks of the run.
        device: Profile whose device the code was told of.
        tokens_per_rank: Tokens that one rank's step works on; 0 where nothing looks them up.
        groups: Ranks of every process group that is used, by number.
        stages: Rank of each pipeline stage's table, in order of stage.
        tables: By rank.
        versions: Of torch and of this program.
        notes: What was left out, for people.
    """

    script: str
    world: int
    device: str
    tokens_per_rank: int
    groups: tuple[tuple[int, ...], ...]
    tables: tuple[RankTable, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
