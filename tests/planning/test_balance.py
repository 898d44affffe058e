"""Is the balanced layout the best for its objective, and its gain the simulated one?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.planning.changes.balance import (
    balance,
    least_bottleneck,
    simulated_in_full,
)
from simulator.program.grid.stage_layers import runs_of_counts
from simulator.program.price.stage_cost import StageCosts
from simulator.results.simulation import run_step
from simulator.schedule import Phase


def a_job(layers: int, *, memory: str = "80 GiB", plan: Any = None, **model: Any) -> Job:
    """Layers of Llama 3.1 8B, whose head takes as long as almost three of them."""
    return job_from_document(
        {
            "model": {"base": "llama3.1-8b", "layers": layers, **model},
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 8, "device": {"memory": memory}},
            "batch": {"global": 16, "seq_len": 2048},
            "plan": {"pp": 4, **(plan or {})},
        }
    )


def all_layouts(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to deal layers to stages of which only the ends may be empty."""

    def dealt(left: int, stage: int) -> Iterator[tuple[int, ...]]:
        if stage == stages - 1:
            yield (left,)
            return
        for count in range(min(stage, 1), left + 1):
            yield from ((count, *rest) for rest in dealt(left - count, stage + 1))

    return dealt(layers, 0)


def slowest(layout: tuple[int, ...], cost) -> float:
    return max(cost(stage, run) for stage, run in enumerate(runs_of_counts(layout)))


@given(
    st.integers(2, 5),
    st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0]), min_size=3, max_size=8),
    st.floats(0, 6),
    st.floats(0, 6),
    st.integers(2, 9),
)
@settings(deadline=None)
def test_no_layout_has_a_faster_slowest_stage(stages, seconds, embedding, head, most_layers):
    """Against every layout there is, with unequal layers and a limit to what a stage holds."""

    def cost(stage: int, run) -> float:
        if run.end - run.first > most_layers - stage:
            return inf
        ends = run.has_embedding * embedding + run.has_head * head
        return sum(seconds[run.first : run.end]) + ends

    best = min((slowest(layout, cost) for layout in all_layouts(len(seconds), stages)), default=inf)
    found = least_bottleneck(len(seconds), stages, cost)
    assert (found is None) == (best == inf)
    if found is not None:
        assert found in set(all_layouts(len(seconds), stages))
        assert slowest(found, cost) == best


def test_of_equally_slow_layouts_the_most_even_is_taken():
    """Nine units on four stages: 3 3 3 0 is as fast as 2 2 2 3, and less even."""
    found = least_bottleneck(9, 4, lambda _, run: run.end - run.first)
    assert sorted(found) == [2, 2, 2, 3]


@pytest.mark.parametrize("layers", [8, 9, 11])
def test_no_layout_of_a_real_model_has_a_faster_slowest_stage(layers):
    costs = StageCosts(a_job(layers))

    def cost(stage: int, run) -> float:
        return sum(costs.work(run, phase).seconds for phase in (Phase.FORWARD, Phase.BACKWARD))

    found = least_bottleneck(layers, 4, cost)
    assert slowest(found, cost) == min(slowest(layout, cost) for layout in all_layouts(layers, 4))


@pytest.mark.parametrize(
    "plan",
    [{}, {"schedule": "zb-h1"}, {"pp": 2, "vpp": 2}, {"pp": 2, "vpp": 2, "schedule": "zb-v"}],
)
def test_no_layout_of_a_small_job_has_a_shorter_step(plan):
    job = a_job(8, plan=plan)
    steps = [
        run_step(job.replace({"plan.layout": list(layout)}), "replay").step_time_s
        for layout in all_layouts(8, 4)
    ]
    found = balance(job)
    assert found.step_time_s == min(steps)
    assert found.tried < len(steps)


def test_the_reported_steps_are_simulated():
    job = a_job(9)
    found = balance(job)
    assert found.even_step_time_s == run_step(job, "replay").step_time_s
    changed = job.replace(found.changes)
    assert found.step_time_s == run_step(changed, "replay").step_time_s
    assert tuple(changed.plan.layout) == found.layout
    assert found.saved_share == pytest.approx(1 - found.step_time_s / found.even_step_time_s)


def test_a_layout_that_contention_makes_slower_than_the_even_one_is_not_taken(monkeypatch):
    job = a_job(9)
    found = balance(job)
    assert not found.is_even
    full = simulated_in_full(found, job)
    assert full.step_time_s == run_step(job.replace(found.changes)).step_time_s
    even = run_step(job)
    monkeypatch.setattr(
        "simulator.planning.changes.balance.run_step",
        lambda changed: even if changed.plan.layout is None else replace(even, step_time_s=99.0),
    )
    assert simulated_in_full(found, job).is_even


def test_a_heavy_head_is_answered_with_fewer_layers_beside_it():
    found = balance(a_job(12))
    assert found.even_layout == (3, 3, 3, 3)
    assert found.layout[-1] < 3
    assert found.saved_share > 0.1


def test_even_is_best_where_head_and_embedding_weigh_nothing():
    found = balance(a_job(8, vocab=128))
    assert found.is_even
    assert (found.layout, found.changes, found.saved_share) == ((2, 2, 2, 2), {}, 0)
    assert found.tried > 1


def test_a_layout_that_the_plan_has_is_left_aside():
    job = a_job(8)
    assert balance(job.replace({"plan.layout": [5, 1, 1, 1]})) == balance(job)


def test_the_changes_replace_what_a_layout_excludes():
    job = a_job(10, plan={"account_for_embedding": True, "account_for_loss": True})
    found = balance(job)
    assert found.even_layout == (2, 3, 3, 2)
    assert found.changes["plan.account_for_loss"] is False
    assert job.replace(found.changes).plan.layout == found.layout


def test_a_layout_that_fits_goes_before_a_faster_one_that_does_not():
    roomy = balance(a_job(14))
    held = run_step(a_job(14).replace(roomy.changes), "replay").memory
    # What is reserved beyond it a full device gets back.
    needed = max(
        memory.peak_device_bytes - memory.peak_reserved_bytes + memory.peak_allocated_bytes
        for memory in held
    )
    found = balance(a_job(14, memory=f"{needed * 0.99 / 2**30} GiB"))
    assert found.fits
    assert found.layout != roomy.layout
    assert found.step_time_s > roomy.step_time_s


def test_where_nothing_fits_that_is_said():
    found = balance(a_job(12, memory="4 GiB"))
    assert not found.fits
    assert not found.even_fits


def test_one_stage_cannot_be_balanced():
    with pytest.raises(InputError) as raised:
        balance(a_job(8, plan={"pp": 1}))
    assert raised.value.faults[0].path == "plan.pp"
