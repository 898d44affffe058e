"""How does what was written down become the columns of one step?

Of the steps that ran, the second is kept, because in the first memory for optimizer states is
taken; under DistributedDataParallel, which makes its buckets anew in the second, the third. What is
held when the step begins is taken at moment 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from simulator.capture.recording.record import Record
from simulator.capture.table import BlockOwner, Exchange, Integers, RankTable
from simulator.errors import InputError

MOST_STEPS = 4
"""Steps that a function is asked for at most: those until the third is complete."""


class Window(NamedTuple):
    """Part of a record.

    Attributes:
        first, end: First operation, and one past the last.
        first_change, end_change: The same for changes of memory.
    """

    first: int
    end: int
    first_change: int
    end_change: int


def step_window(record: Record) -> Window:
    """The step that is kept.

    Raises:
        InputError: No step was completed.
    """
    whole = len(record.steps) - 1
    if whole < 1:
        rule = "ran no step: no module ran forward before an optimizer step"
        raise InputError.single(
            "script", rule, hint="capture needs a loop of forward, backward and optimizer.step()"
        )
    step = min(record.kept_step, whole - 1)
    (first, first_change), (end, end_change) = record.steps[step], record.steps[step + 1]
    return Window(first, end, first_change, end_change)


def settled_table(record: Record, owners: list[BlockOwner]) -> RankTable:
    """The kept step of a rank.

    Args:
        record: What was written down.
        owners: Who holds each block.

    Raises:
        InputError: No step was completed.
    """
    window = step_window(record)
    operations = record.operations[window.first : window.end]
    distinct: dict[Exchange, int] = {}
    exchange_of = [
        -1 if op.exchange < 0 else distinct.setdefault(record.exchanges[op.exchange], len(distinct))
        for op in operations
    ]
    calls = {number: i for i, number in enumerate(sorted({op.call for op in operations}))}
    names = list(record.calls)
    changes = _changes(record, window)
    paths = tuple(record.paths)
    return RankTable(
        rank=record.rank,
        call=_column(calls[op.call] for op in operations),
        stream=_column(op.stream for op in operations),
        phase=_column(op.phase for op in operations),
        module=_column(op.module for op in operations),
        exchange=_column(exchange_of),
        waits=_waits(record, window),
        moment=changes.moment,
        block=changes.block,
        change_bytes=changes.change_bytes,
        past_block=changes.past_block,
        past_bytes=changes.past_bytes,
        block_owner=_column(owners[i] for i in changes.kept),
        block_module=_column(record.blocks[i].module for i in changes.kept),
        block_shards=_column(record.blocks[i].shards for i in changes.kept),
        calls=tuple(names[number] for number in calls),
        exchanges=tuple(distinct),
        paths=paths,
    )


def _waits(record: Record, window: Window) -> Integers:
    pairs = [
        (operation - window.first, before - window.first)
        for operation, before in record.waits
        if window.first <= before and operation < window.end
    ]
    return np.asarray(pairs, dtype=np.int64).reshape(-1, 2)


class _Changes(NamedTuple):
    """Changes of memory as a table holds them, and the blocks of the record that they are of."""

    moment: Integers
    block: Integers
    change_bytes: Integers
    past_block: Integers
    past_bytes: Integers
    kept: list[int]


def _changes(record: Record, window: Window) -> _Changes:
    past = [(number, num_bytes) for _, number, num_bytes in record.sizes[: window.first_change]]
    held: dict[int, int] = {}
    for number, num_bytes in past:
        held[number] = held.get(number, 0) + num_bytes
    start = [(0, number, num_bytes) for number, num_bytes in held.items() if num_bytes]
    inside = [
        (moment - window.first, number, num_bytes)
        for moment, number, num_bytes in record.sizes[window.first_change : window.end_change]
    ]
    moments, numbers, sizes = np.asarray([*start, *inside], dtype=np.int64).reshape(-1, 3).T
    past_numbers, past_sizes = np.asarray(past, dtype=np.int64).reshape(-1, 2).T
    # Blocks of the step come first, so that they have the same numbers without a past.
    kept, blocks = np.unique(numbers, return_inverse=True)
    gone = np.setdiff1d(past_numbers, kept)
    order = np.concatenate([kept, gone])
    place = {number: n for n, number in enumerate(order.tolist())}
    return _Changes(
        moments.copy(), blocks.astype(np.int64), sizes.copy(),
        _column(place[number] for number in past_numbers.tolist()), past_sizes.copy(),
        order.tolist(),
    )  # fmt: skip


def _column(values: Iterable[int]) -> Integers:
    return np.asarray(list(values), dtype=np.int64)
