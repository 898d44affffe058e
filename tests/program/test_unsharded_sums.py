"""Gradients of ZeRO 2 and 3 that stay whole under ``no_sync`` until the last microbatch."""

from __future__ import annotations

from collections import Counter

import pytest

from simulator.program.build import build_program
from simulator.program.grid.stage_layers import stage_slices
from simulator.program.ir import Category, Kind, Owner, Program
from simulator.program.states.resident import slice_parameters, state_bytes
from simulator.results.simulation import run_step
from tests.jobs import SIXTEEN_BIT_TORCH
from tests.program.test_data_parallel import data_job, exchanges

MICROBATCHES = 4


def job_of(zero: int, *, sums: bool, microbatches: int = MICROBATCHES, **plan):
    stack = {**SIXTEEN_BIT_TORCH, "sums_unsharded": sums}
    return data_job(4, microbatches=microbatches, zero=zero, stack=stack, **plan)


def count(program: Program, kind: Kind) -> int:
    return len(exchanges(program, kind))


@pytest.mark.parametrize("zero", [2, 3])
def test_whole_sums_are_reduced_as_often_as_those_of_one_microbatch(zero: int):
    once, sums = (build_program(job_of(zero, sums=True, microbatches=n)) for n in (1, MICROBATCHES))
    always = build_program(job_of(zero, sums=False))
    assert count(sums, Kind.REDUCE_SCATTER) == count(once, Kind.REDUCE_SCATTER)
    assert count(always, Kind.REDUCE_SCATTER) == MICROBATCHES * count(once, Kind.REDUCE_SCATTER)
    assert count(sums, Kind.ALL_GATHER) == count(always, Kind.ALL_GATHER)


@pytest.mark.parametrize("zero", [2, 3])
def test_the_sums_of_all_parameters_are_held_once_and_given_back(zero: int):
    job = job_of(zero, sums=True)
    held: Counter[float] = Counter()
    made = 0.0
    for operation in build_program(job).operations:
        for owner, size in (*operation.takes, *operation.leaves):
            held[size] += owner is Owner.GRADIENTS
            made += size * (owner is Owner.GRADIENTS)
        for owner, size in operation.gives:
            held[size] -= owner is Owner.GRADIENTS
    assert not any(held.values())
    numel = sum(slice_parameters(job, run).total for run in stage_slices(job, 1))
    assert made >= numel * state_bytes(job).reduced


def test_whole_sums_cost_memory_and_expose_fewer_exchanges():
    sharded, whole = (run_step(job_of(3, sums=sums)) for sums in (False, True))
    exposed_s = [step.breakdown_s[Category.DATA_PARALLEL] for step in (sharded, whole)]
    assert exposed_s[1] < 0.7 * exposed_s[0]
    peaks = [max(stage.peak_allocated_bytes for stage in step.memory) for step in (sharded, whole)]
    assert peaks[1] > peaks[0]


def test_pure_sixteen_bits_reduces_in_the_format_that_the_plan_names():
    plan = {"master_weights": False, "precision": "bf16"}
    assert state_bytes(job_of(3, sums=True, **plan)).reduced == 2
    assert state_bytes(job_of(3, sums=True, grad_reduce_precision="fp32", **plan)).reduced == 4
