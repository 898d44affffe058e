"""Does anything that is recommended run out of memory more probably than was asked?"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.planning.changes.helpful_changes import nearest_fit, what_ifs
from simulator.planning.compared_strategies import compare_families
from simulator.planning.limits import limits
from simulator.planning.search.search import PlanSearches, search_plans
from simulator.results.simulation import run_step
from tests.planning.test_limits import small_job

FEW = {
    "plan.tp": [1, 2], "plan.vpp": [1], "plan.cp": [1], "plan.zero": [1], "batch.micro": [1, 2],
    "plan.recompute": ["none"],
}  # fmt: skip
RISKS = st.sampled_from([0.01, 0.05, 0.2])


def a_job(share: float, *, layers: int = 4, stack: str = "megatron-core", **fields):
    """A job on devices that have a share of what it is predicted to hold."""
    fields |= {"layers": layers, "stack": stack}
    needs = run_step(small_job(**fields), "replay").peak_device_bytes
    return small_job(f"{share * needs / 2**30:.3f} GiB", **fields)


def probability(job, changes) -> float:
    return run_step(job.replace(changes)).fits_probability


@settings(max_examples=6, deadline=None)
@given(
    layers=st.sampled_from([4, 8]),
    share=st.floats(0.4, 3.0),
    risk=RISKS,
    stack=st.sampled_from(["megatron-core", "jax", "torchtitan"]),
    micro=st.sampled_from([1, 4]),
    zero=st.sampled_from([0, 1, 3]),
    recompute=st.sampled_from(["none", "full"]),
)
def test_nothing_that_is_recommended_is_riskier_than_asked(layers, share, risk, **fields):
    job = a_job(share, layers=layers, **fields)
    plans = search_plans(job, FEW, top=3, risk=risk).choices
    families = [each.choice for each in compare_families(job, FEW, risk=risk) if each.choice]
    for choice in (*plans, *families):
        assert choice.fits_probability >= 1 - risk
        assert probability(job, choice.changes) == choice.fits_probability
    found = nearest_fit(job, risk)
    for way_out in filter(None, (found.nearest, found.faster)):
        assert probability(job, way_out.changes) >= 1 - risk
    for limit in limits(job, risk=risk):
        assert limit.largest == 0 or limit.fits_probability >= 1 - risk
        assert limit.largest <= limit.largest_even
    for change in what_ifs(job):
        assert change.fits == (change.fits_probability >= 0.95)


def test_more_risk_never_makes_the_best_plan_slower():
    risks = [0.01, 0.05, 0.2, 0.5]
    searches = PlanSearches(a_job(1.0), risks, FEW)
    found = [searches.fastest(risk).choices for risk in risks]
    steps = [choices[0].step_time_s for choices in found if choices]
    assert steps == sorted(steps, reverse=True)
    assert steps


@pytest.mark.parametrize("risk", [0.01, 0.05])
def test_the_search_of_one_risk_and_of_several_agree(risk):
    job = a_job(1.1)
    alone = search_plans(job, FEW, risk=risk).choices
    searches = PlanSearches(job, [0.2, risk], FEW)
    assert searches.fastest(0.2)
    assert searches.fastest(risk).choices == alone
