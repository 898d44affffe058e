"""Passes that are added again are those that would be worked out anew."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.program.build import build_program, steps_around
from simulator.program.ir import Program
from simulator.program.run import pipeline
from tests.engine.test_repetition import with_microbatches
from tests.jobs import jobs, small_job


def both_ways(job) -> tuple[Program, Program, int]:
    """Programs of a job, as it is built and pass by pass, and how many passes were added again."""
    steps, again = steps_around(job).total, []
    repeat = pipeline._Emitter._repeat
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pipeline._Emitter,
            "_repeat",
            lambda self, *arguments: again.append(1) or repeat(self, *arguments),
        )
        built = build_program(job, steps=steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline._Emitter, "repeats", False)
        return built, build_program(job, steps=steps), len(again)


@given(jobs(), st.integers(4, 8))
@settings(max_examples=60, deadline=None)
def test_a_program_is_what_it_is_pass_by_pass(job, times):
    built, one_by_one, _ = both_ways(with_microbatches(job, times))
    assert built == one_by_one


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("stack", "pp"), [("torch", 1), ("deepspeed", 1), ("torch", 2)])
def test_passes_that_gather_and_reduce_are_added_again(zero, overlap, stack, pp):
    overlaps = {"overlap_grad_reduce": overlap, "overlap_param_gather": overlap}
    job = small_job(gpus=8, pp=pp, global_batch=240 * pp, zero=zero, stack=stack, **overlaps)
    built, one_by_one, again = both_ways(job)
    assert built == one_by_one
    assert again >= 50
