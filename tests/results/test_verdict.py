"""Verdicts: what binds a step, in a sentence that follows from its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.program.ir import Category
from simulator.results.step import StepResult
from simulator.results.views.verdict import WhatIf, verdict
from tests.factories import GIB, Pipeline

PIPELINE = Pipeline(stages=4, microbatches=8).result()


def what_if(words: str, gain: float, *, fits: bool = True) -> WhatIf:
    return WhatIf(words, {}, gain, 1.0, 90 * GIB, 0.99 if fits else 0.01, fits)


def spending(**shares: float) -> StepResult:
    """A step whose mean rank spends its time like that."""
    seconds = {Category(name): share * PIPELINE.step_time_s for name, share in shares.items()}
    exposed = {c: s for c, s in seconds.items() if c is Category.TENSOR_PARALLEL}
    return replace(
        PIPELINE,
        breakdown_s=seconds,
        exposed_comm_s=exposed or {Category.TENSOR_PARALLEL: 0.0},
        bubble_fraction=shares.get("bubble", 0.0),
        capacity_bytes=1000 * GIB,
    )


def test_what_takes_most_of_the_step_binds_it():
    computing = spending(forward=0.3, backward=0.3, tensor_parallel=0.3, bubble=0.1)
    talking = spending(forward=0.2, backward=0.2, tensor_parallel=0.5, bubble=0.1)
    idle = spending(forward=0.2, backward=0.2, tensor_parallel=0.1, bubble=0.5)
    assert verdict(computing).startswith("Compute-bound: 60.0 % of the step; 10.0 % bubble")
    assert verdict(talking).startswith("Communication-bound: 50.0 %")
    assert "50.0 % exposed communication, most of it tensor-parallel" in verdict(talking)
    assert verdict(idle).startswith("Bubble-bound: 50.0 %")


def test_a_step_is_memory_bound_where_something_faster_does_not_fit():
    step = spending(forward=1.0)
    faster = what_if("lowering tp from 4 to 2", 0.083, fits=False)
    slower = what_if("raising microbatches from 8 to 16", 0.006)
    said = verdict(step, [faster, slower])
    assert said.startswith("Limited by memory capacity on stage ")
    assert "lowering tp from 4 to 2 would gain 8.3 % but needs 90.0 GiB" in said
    assert said.endswith("raising microbatches from 8 to 16 gains 0.6 %.")


def test_what_does_not_fit_binds_nothing_where_something_that_fits_is_as_fast():
    step = spending(forward=1.0)
    said = verdict(step, [what_if("a", 0.08, fits=False), what_if("b", 0.08)])
    assert said.startswith("Compute-bound")
    assert said.endswith("b gains 8.0 %.")


def test_no_gain_is_claimed_where_nothing_gained():
    said = verdict(spending(forward=1.0), [what_if("a", -0.2), what_if("b", 0.001)])
    assert said.endswith("none of the 2 simulated single changes is faster.")
    assert "gain" not in verdict(spending(forward=1.0))


def test_a_job_that_does_not_fit_is_told_so_first():
    peak = max(memory.peak_device_bytes for memory in PIPELINE.memory)
    memory = tuple(replace(each, capacity_bytes=peak - 2 * GIB) for each in PIPELINE.memory)
    small = replace(PIPELINE, memory=memory)
    said = verdict(small, [what_if("a", 0.1)])
    assert said.startswith(
        "Probably does not fit (19 % likely to fit): stage 0 needs 2.00 GiB more than its capacity"
    )
    assert "a gains" not in said


def test_one_stage_is_not_numbered():
    alone = replace(spending(forward=1.0), memory=tuple(m for m in PIPELINE.memory if m.stage == 0))
    faster = what_if("a", 0.1, fits=False)
    assert verdict(alone, [faster]).startswith("Limited by memory capacity: a would gain 10.0 %")
    peak = max(memory.peak_device_bytes for memory in alone.memory)
    memory = tuple(replace(each, capacity_bytes=peak - 2 * GIB) for each in alone.memory)
    said = verdict(replace(alone, memory=memory))
    assert said.startswith(
        "Probably does not fit (19 % likely to fit): a GPU needs 2.00 GiB more than its capacity"
    )


@pytest.mark.parametrize(("share", "said"), [(0.89, False), (0.9, True), (1.0, True)])
def test_memory_is_spoken_of_from_nine_tenths_on(share, said):
    fullest = PIPELINE.fullest
    step = replace(spending(forward=1.0), memory=tuple(
        replace(each, capacity_bytes=fullest.peak_device_bytes / share) for each in PIPELINE.memory
    ))  # fmt: skip
    words = f"stage {fullest.stage} fills {100 * share:.1f} % of its memory"
    assert (words in verdict(step)) is said


@pytest.mark.parametrize(("category", "word"), [("recompute", "recomputation"), ("optimizer",) * 2])
def test_repeated_work_and_updates_are_named_from_three_hundredths_on(category, word):
    for share in (0.029, 0.031):
        said = verdict(spending(forward=1.0 - share, **{category: share}))
        assert (f"{100 * share:.1f} % {word}" in said) is (share > 0.03)
