"""Products that hold gathered weights, as PyTorch's own linear does under DeepSpeed's ZeRO 3."""

from __future__ import annotations

from collections import Counter

import pytest

from simulator.program.build import build_program
from simulator.program.ir import Kind, Owner
from simulator.results.simulation import run_step
from tests.program.test_data_parallel import data_job

HEAD = 1000 * 64
MATRICES = 4 * (3 * 64 * 64 + 3 * 64 * 128) + HEAD
"""Elements of attention and MLP of four layers (h 64, half as many keys, f 128), and the head."""


def held_job(*, holds: bool = True, recompute: str = "none", zero: int = 3):
    stack = {"base": "deepspeed", "products_keep_gathered": holds}
    return data_job(4, microbatches=2, zero=zero, stack=stack, recompute=recompute)


def weights_at_the_loss(job) -> float:
    """Elements of 16 bits that are whole when the first backward begins."""
    numel = 0.0
    for op in build_program(job).operations:
        if op.kind is Kind.BACKWARD:
            break
        for sign, blocks in ((1, op.takes), (-1, op.gives)):
            numel += sign * sum(b / 2 for owner, b in blocks if owner is Owner.GATHERED_WEIGHTS)
    return numel


def test_every_matrix_is_held_from_forward_to_backward():
    assert weights_at_the_loss(held_job()) == MATRICES
    assert weights_at_the_loss(held_job(holds=False)) == 0


def test_layers_that_are_computed_again_hold_nothing_and_the_head_always_does():
    assert weights_at_the_loss(held_job(recompute="full")) == HEAD


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_all_that_was_held_is_given_back_and_as_much_is_gathered(recompute: str):
    left: Counter[float] = Counter()
    for op in build_program(held_job(recompute=recompute)).operations:
        for sign, blocks in ((1, op.takes), (-1, op.gives)):
            for owner, size in blocks:
                left[size] += sign * (owner is Owner.GATHERED_WEIGHTS)
    assert not any(left.values())
    gathers = [
        [op.work for op in build_program(held_job(holds=holds)).operations
         if op.kind is Kind.ALL_GATHER]
        for holds in (False, True)
    ]  # fmt: skip
    assert gathers[0] == gathers[1]


def test_weights_that_are_never_sharded_are_held_once():
    peaks = [
        run_step(held_job(holds=holds, zero=2)).peak_allocated_bytes for holds in (False, True)
    ]
    assert peaks[0] == peaks[1]
