"""The search for a rate: against deployments that bear a rate which is known."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import DoesNotFitError, InputError
from simulator.serving import bearable_rate
from simulator.serving.bearable_rate import largest_rate, ranked_splits
from simulator.serving.described import PrefillPool, ServingJob
from simulator.serving.requests import requests_of
from simulator.serving.workload import Arrivals, Lengths, Objective, Workload
from tests.serving.workloads import deployment_of

PRECISION = 1.03
WORKLOAD = Workload(
    requests=100,
    arrivals=Arrivals(kind="poisson", rate=1.0),
    prompt=Lengths(mean=100),
    answer=Lengths(mean=10),
    objective=Objective(ttft="1 s"),
)


def bears(monkeypatch: pytest.MonkeyPatch, limit_of) -> list[float]:
    """Let every deployment bear rates up to a limit; the rates that are asked, in order."""
    asked = []

    def at_rate(deployment, workload, rate):
        del workload
        asked.append(rate)
        return SimpleNamespace(keeps_objective=rate <= limit_of(deployment), rate=rate)

    monkeypatch.setattr(bearable_rate, "at_rate", at_rate)
    return asked


@given(st.floats(1 / 128, 1e5))
@settings(max_examples=60)
def test_a_rate_is_found_within_three_hundredths_and_never_above_what_is_borne(limit):
    with pytest.MonkeyPatch.context() as patch:
        asked = bears(patch, lambda _: limit)
        found = largest_rate(deployment_of(), WORKLOAD)
    assert limit / PRECISION <= found.rate <= limit
    assert found.answers.rate == found.rate
    assert len(asked) <= 30


def test_what_bears_nothing_has_no_rate(monkeypatch):
    bears(monkeypatch, lambda _: 0.0)
    assert largest_rate(deployment_of(), WORKLOAD) == (0.0, None)


def test_what_bears_every_rate_has_no_largest_and_none_above_a_million_is_asked(monkeypatch):
    asked = bears(monkeypatch, lambda _: float("inf"))
    with pytest.raises(InputError, match="is met at every rate"):
        largest_rate(deployment_of(), WORKLOAD)
    assert max(asked) < 1e6


def served_at(monkeypatch, workload: Workload, rate: float) -> list[float]:
    """When the requests of a workload come at a mean rate [s]."""
    came: list[float] = []

    def serve(deployment, workload, *, requests=None):
        del deployment
        requests = requests_of(workload) if requests is None else requests
        came.extend(request.arrival_s for request in requests)

    monkeypatch.setattr(bearable_rate, "serve", serve)
    monkeypatch.setattr(bearable_rate, "answers_of", lambda *_: None)
    bearable_rate.at_rate(deployment_of(), workload, rate)
    return came


def test_a_trace_keeps_its_gaps_in_proportion_at_every_rate_and_repeats_for_a_minute(
    monkeypatch, tmp_path
):
    """Four requests in 30 s are one in 10 s: at one per second, a round of them takes 4 s."""
    trace = tmp_path / "t.csv"
    rows = "".join(f"{second},10,1\n" for second in (7, 17, 18, 37))
    trace.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}", encoding="utf-8")
    came = served_at(monkeypatch, Workload(trace=str(trace), requests=4), 1.0)
    assert came[:5] == pytest.approx([0.0, 1.0, 1.1, 3.0, 4.0])
    assert len(came) == 60
    assert came[-1] == pytest.approx(59.0)


def test_bursty_arrivals_stay_bursty_at_every_rate(monkeypatch):
    bursty = Arrivals(kind="gamma", rate=1.0, burstiness=9.0)
    workload = WORKLOAD.model_copy(update={"arrivals": bursty})
    gaps = np.diff(served_at(monkeypatch, workload, 200.0))
    assert gaps.mean() == pytest.approx(1 / 200, rel=0.1)
    assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(9.0, rel=0.15)


def gpus_that_are_asked(monkeypatch) -> set[int]:
    """Let every deployment bear ten requests/s; the GPUs of those that are asked."""
    asked: set[int] = set()
    bears(monkeypatch, lambda deployment: asked.add(deployment.gpus) or 10.0)
    return asked


def test_replicas_behind_a_router_bear_as_much_more_and_one_of_them_is_asked(monkeypatch):
    asked = gpus_that_are_asked(monkeypatch)
    found = largest_rate(deployment_of(8, tp=2), WORKLOAD)
    assert 40.0 / PRECISION <= found.rate <= 40.0
    assert asked == {2}


def test_a_pool_for_prompts_feeds_all_replicas_so_all_are_asked_together(monkeypatch):
    asked = gpus_that_are_asked(monkeypatch)
    found = largest_rate(deployment_of(4, prefill=PrefillPool(gpus=2)), WORKLOAD)
    assert 10.0 / PRECISION <= found.rate <= 10.0
    assert asked == {4}


def test_an_objective_without_a_limit_is_refused():
    every_rate = WORKLOAD.model_copy(update={"objective": Objective()})
    with pytest.raises(InputError, match="sets no limit"):
        largest_rate(deployment_of(), every_rate)


def test_splits_come_with_the_largest_rate_first_and_those_that_cannot_run_last(monkeypatch):
    """Ranks help by their square root, two stages hold nothing, and eight ranks do not fit."""

    def limit_of(deployment):
        if deployment.tp * deployment.pp == 8:
            raise DoesNotFitError("too   wide")
        return 0.0 if deployment.pp == 2 else deployment.ranks**0.5

    bears(monkeypatch, limit_of)
    choices = ranked_splits(ServingJob(deployment=deployment_of(8), workload=WORKLOAD))
    assert [choice.rate for choice in choices] == sorted((c.rate for c in choices), reverse=True)
    assert choices[0].settings == {"tp": 1, "pp": 1}
    assert choices[0].rate == pytest.approx(8.0, rel=PRECISION - 1)
    reasons = {tuple(c.settings.values()): c.reason for c in choices if not c.rate}
    assert reasons == {
        (1, 8): "too wide", (2, 4): "too wide", (4, 2): "too wide", (8, 1): "too wide",
        (1, 2): "misses the objective at any rate", (2, 2): "misses the objective at any rate",
    }  # fmt: skip
    assert {tuple(choice.settings.values()) for choice in choices} == {
        (tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8) if tp * pp <= 8
    }
