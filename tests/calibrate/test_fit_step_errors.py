"""The fit of the model of errors finds what made the errors, and leaves no source to itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_t

from reports.make.accuracy.band_coverage import Banded, chance_range, coverage_section, likeness
from reports.make.accuracy.own_runs_section import LearntRun, own_runs_section
from reports.make.fit.fit_step_errors import (
    Likelihood,
    SeenRun,
    Sizes,
    as_single_runs_are,
    common_variance,
    fit,
    left_out_bands,
    without_each_source,
)
from reports.make.fit.learnt_runs import learnt_runs
from simulator.results.step_error import REGIMES, alike_covariance, shipped_errors

MODEL = replace(shipped_errors(), frameworks={})
REGIME_COUNT = len(REGIMES)


def run_of(source: str, number: int, log_ratio: float, exposed=(1.0, 0.0, 0.0, 0.0)) -> SeenRun:
    seconds = float(np.exp(log_ratio))
    weights = np.array(exposed)
    return SeenRun(f"{source}-{number}", "h100", "any", seconds, 1.0, weights, weights, ())


def drawn_runs(spread: float, noise: float, sources: int = 40) -> list[SeenRun]:
    random = np.random.default_rng(1)
    return [
        run_of(f"s{source:02}", number, common + noise * random.normal())
        for source, common in enumerate(spread * random.normal(size=sources))
        for number in range(8)
    ]


def test_the_likelihood_is_the_density_of_the_multivariate_t():
    random = np.random.default_rng(2)
    runs = [
        replace(
            run_of("a", n, 0.1 * n, (1.0, *random.random(REGIME_COUNT - 1))),
            in_view=n < 2,
            has_experts=n > 2,
            traits=(n % 2, n, n, n, 0),
        )
        for n in range(5)
    ]
    alike = np.array((0.1, 0.01, 0.02, 0.03, 0.05))
    sizes = Sizes(
        np.array((0.1, 0.2, 0.3, 0.4, 0.2)), np.array((0.05, 0.1, 0.1, 0.2, 0.1)), alike, 3.0, 0.5
    )
    exposed = np.array([run.weights for run in runs])
    covariance = (exposed * sizes.spread**2) @ exposed.T
    covariance += np.diag(exposed**2 @ sizes.noise**2)
    covariance += alike_covariance([run.traits for run in runs], alike**2)
    covariance *= np.outer(*[np.where([run.in_view for run in runs], 0.5, 1.0)] * 2)
    density = multivariate_t(shape=covariance, df=3.0).logpdf([run.log_ratio for run in runs])
    constant = 5 / 2 * np.log(np.pi)
    likelihood = Likelihood(runs, MODEL.number_spread)
    assert -likelihood.negative_log(sizes) == pytest.approx(density + constant)


def test_the_fit_finds_the_sizes_that_the_runs_were_drawn_with():
    found = fit(drawn_runs(spread=0.2, noise=0.05), MODEL)
    assert found.spread["overall"] == pytest.approx(0.2, rel=0.25)
    of_one_run = np.hypot(found.noise["overall"], np.linalg.norm([*found.alike.values()]))
    assert of_one_run == pytest.approx(0.05, rel=0.25)


def test_the_fit_tells_what_runs_of_one_network_share_from_what_is_of_each():
    random = np.random.default_rng(4)
    runs = [
        replace(
            run_of(f"s{source:02}", number, off), traits=(network, number, number, number, number)
        )
        for source, common in enumerate(0.1 * random.normal(size=30))
        for network, shared in enumerate(0.2 * random.normal(size=3))
        for number, off in enumerate(common + shared + 0.03 * random.normal(size=4))
    ]
    found = fit(runs, MODEL)
    assert found.alike["network"] == pytest.approx(0.2, rel=0.25)
    assert found.noise["overall"] < 0.05


def test_tails_and_nearness_are_those_of_single_runs():
    """Errors of Student's t with three degrees of freedom, a half of them where in view."""
    random = np.random.default_rng(5)
    model = replace(MODEL, freedom=9.0, in_view=1.0)
    scale = run_of("a", 0, 0.0).error(model).scale(np.array((1.0, 0.0, 0.0, 0.0)))
    runs = [
        replace(run_of(f"s{n}", 0, scale * off * (0.5 if n % 2 else 1.0)), in_view=bool(n % 2))
        for n, off in enumerate(random.standard_t(3.0, size=1000))
    ]
    found = as_single_runs_are(runs, model)
    assert found.freedom == pytest.approx(3.0, rel=0.2)
    assert found.in_view == pytest.approx(0.5, rel=0.15)
    assert found.skew == pytest.approx(1.0, rel=0.1)


def test_steps_that_are_slower_by_more_than_others_are_quicker_make_a_skew():
    random = np.random.default_rng(6)
    scale = run_of("a", 0, 0.0).error(MODEL).scale(np.array((1.0, 0.0, 0.0, 0.0)))
    off = np.abs(random.standard_t(3.0, size=1000))
    slower = random.random(1000) < 1.5**2 / (1 + 1.5**2)
    apart = scale * np.where(slower, 1.5 * off, -off / 1.5)
    runs = [run_of(f"s{n}", 0, float(each)) for n, each in enumerate(apart)]
    assert as_single_runs_are(runs, MODEL).skew == pytest.approx(1.5, rel=0.1)


def test_what_models_with_experts_add_is_told_from_the_rest():
    """Of each source, runs with experts are off by more, and together; the others are near."""
    random = np.random.default_rng(3)
    added = 0.3 * random.normal(size=40)
    runs = [
        replace(run, measured_s=run.measured_s * np.exp(added[n // 8]), has_experts=True)
        if n % 2
        else run
        for n, run in enumerate(drawn_runs(spread=0.05, noise=0.02))
    ]
    found = fit(runs, MODEL)
    assert found.spread["experts"] == pytest.approx(0.3, rel=0.25)
    assert found.spread["overall"] == pytest.approx(0.05, rel=0.4)


def test_sources_that_were_in_view_are_nearer_by_one_factor():
    found = fit(
        [
            replace(
                run_of(f"{run.source}{seen}", 0, run.log_ratio * (0.4 if seen else 1.0)),
                in_view=seen,
            )
            for run in drawn_runs(spread=0.2, noise=0.05, sources=12)
            for seen in (False, True)
        ],
        MODEL,
    )
    assert found.in_view == pytest.approx(0.4, rel=0.1)


def test_a_source_is_not_held_against_a_band_that_it_made():
    """Two sources agree; the third is far off, so it lies outside of what they say."""
    near = drawn_runs(spread=0.02, noise=0.02, sources=4)
    far = [run_of("far", number, 1.5) for number in range(4)]
    bands = {band.id: band for band in left_out_bands(without_each_source([*near, *far], MODEL))}
    assert not any(bands[run.id].is_inside for run in far)
    assert np.mean([bands[run.id].is_inside for run in near]) > 0.8


def test_one_source_that_is_far_off_does_not_decide_alone():
    assert common_variance([1.0, 1.0, 1.0], freedom=3) == pytest.approx(1.0)
    assert common_variance([0.0] * 12, freedom=3) == pytest.approx(0.25)
    assert 1.0 < common_variance([1.0, 1.0, 1.0, 1000.0], freedom=3) < 2.0


def test_the_table_counts_the_runs_inside_their_bands():
    bands = [Banded("a-1", "any", 1.0, 1.0, 0.9, 1.1), Banded("b-1", "any", 2.0, 1.0, 0.9, 1.1)]
    lines = coverage_section(bands, ["b-1"]).splitlines()
    assert "| all | 2 | 2 | 50 | 33 to 100 | 50 | 50 | 0 | 10 |" in lines
    assert "| predicted at first sight | 1 | 1 | 0 | 14 to 100 | 0 | 100 | 0 | 10 |" in lines


def banded(source: str, inside: list[bool]) -> list[Banded]:
    return [
        Banded(f"{source}-{number}", "any", 1.0 if is_inside else 2.0, 1.0, 0.9, 1.1)
        for number, is_inside in enumerate(inside)
    ]


def test_runs_of_a_source_that_are_off_together_are_one_draw():
    """Eight of ten sources lie inside as a whole: forty runs say as much as ten."""
    bands = [band for n in range(10) for band in banded(f"s{n}", [n < 8] * 4)]
    assert likeness(bands) == pytest.approx(1.0)
    away = 1.645 * (0.8 * 0.2 / 10) ** 0.5
    assert chance_range(bands, 1.0) == pytest.approx((0.8 - away, 1.0))


def test_runs_that_are_off_each_for_itself_are_each_a_draw():
    """Of five runs of every source one is outside, which is less alike than chance makes them."""
    bands = [band for n in range(20) for band in banded(f"s{n}", [True] * 4 + [False])]
    assert likeness(bands) == 0.0
    away = 1.645 * (0.8 * 0.2 / 100) ** 0.5
    assert chance_range(bands, 0.0) == pytest.approx((0.8 - away, 0.8 + away))


def test_one_run_of_a_source_that_is_slower_throughout_brings_the_others_nearer():
    slower = [run_of("slow", number, 0.3) for number in range(4)]
    learnt = list(learnt_runs(slower, MODEL))
    assert [(run.id, run.known) for run in learnt] == [
        ("slow-1", 1),
        ("slow-2", 1),
        ("slow-3", 1),
        ("slow-3", 3),
    ]
    assert all(1.0 < run.learnt_step_s < run.measured_step_s for run in learnt)
    assert learnt[-1].learnt_step_s > learnt[0].learnt_step_s


def test_the_table_says_what_known_runs_are_worth_to_a_team():
    """The source of one later run counts as much as that of three; one factor mends the first."""
    off = [LearntRun(f"a-{n}", 1, 1.0, 0.8, 0.9, 0.95, 1.05) for n in range(3)]
    near = LearntRun("b-1", 1, 1.0, 1.0, 1.0, 0.95, 1.05)
    line = own_runs_section([*off, near]).splitlines()[-1]
    assert line == (
        "| 1 | 4 | 2 | 15.0 | 7.5 | 20.0 | 10.0 | 10.0 | 5.0 | 0.0 | 10.0 | 5.0 | 50 | 0 | 50 |"
    )
