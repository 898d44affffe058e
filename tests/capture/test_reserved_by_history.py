"""Is what an allocator reserves that of all requests since the beginning, block by block?"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from simulator.capture.reserved_by_history import reserved_by_history_bytes
from tests.capture.made_up import Step

MIB = 2**20


def reserved_mib(past, step):
    """Reserved for changes (block, MiB) before a step and in it."""
    held = {}
    for block, mib in past:
        held[block] = held.get(block, 0) + mib
    start = [(block, mib) for block, mib in held.items() if mib]
    changes = np.asarray([*start, *step], dtype=np.int64).reshape(-1, 2)
    before = np.asarray(past, dtype=np.int64).reshape(-1, 2)
    table = dataclasses.replace(
        Step().table(), block=changes[:, 0], change_bytes=changes[:, 1] * MIB,
        past_block=before[:, 0], past_bytes=before[:, 1] * MIB,
    )  # fmt: skip
    sizes = (table.past_bytes.astype(float), table.change_bytes.astype(float))
    return reserved_by_history_bytes(table, *sizes) / MIB


def test_what_lies_in_a_piece_of_a_larger_block_leaves_no_room_for_another_such_block():
    past = [(0, 30), (0, -30), (1, 16)]
    assert reserved_mib(past, [(2, 30)]) == 60
    assert reserved_mib([(1, 16)], [(2, 30)]) == 46


def test_the_block_that_is_given_back_is_the_one_that_was_taken():
    # Two segments of 40, each with a block of 16 and what lies beside it.
    past = [(0, 40), (0, -40), (1, 16), (2, 24), (3, 40), (3, -40), (4, 16), (5, 24)]
    # Giving back both blocks of one segment makes room for 40; one of each segment does not.
    assert reserved_mib(past, [(1, -16), (2, -24), (6, 40)]) == 80
    assert reserved_mib(past, [(1, -16), (5, -24), (6, 40)]) == 120


def test_a_storage_that_is_given_another_size_is_another_block():
    assert reserved_mib([(0, 30)], [(0, -30), (0, 30)]) == 30
    assert reserved_mib([(0, 30)], [(0, 10)]) == 70


def test_a_workspace_of_each_thread_lies_among_the_blocks():
    table = Step().table()
    empty = np.zeros(0)
    alone = dataclasses.replace(table, block=table.block[:0], change_bytes=table.change_bytes[:0])
    found = reserved_by_history_bytes(alone, empty, empty, workspace_bytes=32 * MIB)
    assert found == pytest.approx(64 * MIB)
