"""A peak that is added up along the order of passes, against the simulated one."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulator.engine.replay import replay
from simulator.errors import UnsupportedError
from simulator.program.build import build_program
from simulator.program.quick_peak import quick_peaks
from simulator.results.memory import class_memory
from tests.jobs import jobs, small_job, small_model

few = settings(max_examples=60, deadline=None)


def simulated(job) -> list[float]:
    timeline = replay(build_program(job))
    return [m.peak_allocated_bytes for m in class_memory(timeline, job.cluster.profile.device)]


@given(jobs(), st.sampled_from([0, 1]), st.sampled_from(["none", "selective", "full"]))
@few
def test_it_equals_the_simulated_peak_where_passes_are_not_cut(job, zero, recompute):
    plan = job.plan.model_copy(update={"zero": zero, "zero_group": 0, "recompute": recompute})
    job = job.model_copy(update={"plan": plan})
    assume(job.microbatches > 1 and not plan.stack.frees_gradients)
    assert [one.peak_bytes for one in quick_peaks(job)] == pytest.approx(simulated(job))


@given(jobs())
@few
def test_no_job_holds_less_than_the_bound(job):
    for quick, peak in zip(quick_peaks(job), simulated(job), strict=True):
        assert quick.least_bytes <= peak * (1 + 1e-12)


@pytest.mark.parametrize(
    ("schedule", "vpp"),
    [("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2), ("zb-h1", 1), ("zb-v", 2),
     ("dualpipe", 1), ("dualpipev", 2), ("chimera", 1)],
)  # fmt: skip
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_it_equals_the_simulated_peak_of_every_schedule(schedule, vpp, recompute):
    job = small_job(
        small_model(layers=8), gpus=4, pp=4, vpp=vpp, schedule=schedule,
        recompute=recompute, global_batch=8,
    )  # fmt: skip
    assert [one.peak_bytes for one in quick_peaks(job)] == pytest.approx(simulated(job))


def test_schedules_without_a_flush_are_refused():
    with pytest.raises(UnsupportedError, match="between microbatches"):
        quick_peaks(small_job(gpus=2, pp=2, schedule="pipedream"))
