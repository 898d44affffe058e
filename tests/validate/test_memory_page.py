"""Does the report on memory find the spread of errors, and say whether it is right?"""

from __future__ import annotations

import math
import random
import statistics

import pytest

from reports.make.accuracy.memory_left_out import (
    left_out_runs,
    left_out_section,
    rows_to_predict_again,
)
from reports.make.accuracy.memory_page import Run, apart, page, placed
from reports.make.accuracy.memory_regimes import (
    Placed,
    SplitScore,
    left_out_score,
    regimes_section,
    share_within,
)
from reports.make.fit.memory_errors import TRAITS, MemoryResidual, fitted_spread, traits_of
from reports.make.fit.residual_facts import Bare
from simulator.validate.published.published_runs import PublishedResult


def residuals(scale: float, sources: int = 12, runs: int = 10) -> list[MemoryResidual]:
    """Logarithms of a normal distribution, which is Student's t of many degrees of freedom."""
    draw = random.Random(7)
    return [
        MemoryResidual(f"s{source}-{run:03d}", "megatron-core", "h100", draw.gauss(0.0, scale))
        for source in range(sources)
        for run in range(runs)
    ]


def test_the_next_source_is_expected_to_spread_more_than_those_that_told_of_it():
    """By less the more of them there are."""
    few, many = (
        -math.log(fitted_spread(residuals(0.05, sources)).allowed_bytes(1.0, 0.95))
        for sources in (2, 100)
    )
    assert few > 1.1 * many
    assert many == pytest.approx(statistics.NormalDist(0.0, 0.05).inv_cdf(0.95), rel=0.1)


def test_a_source_counts_as_one_however_many_runs_it_has():
    wide = [MemoryResidual(f"wide-{n:03d}", "jax", "h100", 0.3 * (-1) ** n) for n in range(2000)]
    assert fitted_spread([*residuals(0.05), *wide]) == fitted_spread([*residuals(0.05), *wide[:2]])


def test_where_every_source_holds_a_tenth_more_half_of_the_next_are_expected_to():
    more = [each._replace(log_ratio=each.log_ratio + 0.1) for each in residuals(0.02)]
    plain, shifted = fitted_spread(residuals(0.02)), fitted_spread(more)
    assert shifted.centre - plain.centre == pytest.approx(0.1, abs=0.005)
    assert shifted.scale == pytest.approx(plain.scale, rel=0.1)


def test_of_runs_like_all_others_as_many_hold_no_more_as_were_asked_to():
    found = placed(residuals(0.05, runs=30), [])
    for level in (0.5, 0.8, 0.95):
        assert share_within(found, level) == pytest.approx(level, abs=0.05)


def test_a_run_of_a_device_that_no_other_source_has_is_held_against_the_wider_spread():
    odd = MemoryResidual("odd-001", "megatron-core", "my-gpu", math.log(1.2))
    found = {each.source: each for each in placed([*residuals(0.05), odd], residuals(0.2))}
    assert found["odd"].probability < 0.9


def test_a_source_with_few_runs_weighs_as_much_as_one_with_many():
    found = [Placed("many", 0.1)] * 9 + [Placed("one", 0.9)]
    assert share_within(found, 0.5) == 0.5


def test_the_page_counts_right_and_wrong_verdicts():
    row = {"id": "lab-001", "mem_kind": "device"}
    ran = PublishedResult("lab-001", "A", "h100", 1.0, measured_mem_gib=50.0,
                          mem_error_pct=10.0, fits_probability=0.8, filled_share=0.9)  # fmt: skip
    out = PublishedResult("oom-001", "A", "h100", None, ran=False, fits_probability=0.7,
                          filled_share=0.93)  # fmt: skip
    text = page({"runs": [Run(row, ran)]}, [Run(row, out)], "", "")
    assert "| ran | 1 | 1 | 0 | 100.0 % |" in text
    assert "| out of memory | 1 | 1 | 0 | 0.0 % |" in text
    assert "oom-001 (93 %)." in text
    assert "| runs, device | 1 | 0 | 10.0 |" in text


def test_only_runs_that_lose_a_fact_are_predicted_again_and_stand_beside_what_was_known():
    rows = [{"id": f"lab-00{n}", "mem_kind": "device", "measured_mem_gib": "50"} for n in (1, 2)]
    bare = [Bare(rows[0], ("stack: field",)), Bare(rows[1], ())]
    results = [
        PublishedResult(row["id"], "A", "h100", 1.0, mem_error_pct=error)
        for row, error in zip(rows, (2.0, 4.0), strict=True)
    ]
    again = {"lab-001": PublishedResult("lab-001", "A", "h100", 1.0, mem_error_pct=-10.0)}
    assert rows_to_predict_again(bare) == rows[:1]
    runs = left_out_runs(list(zip(rows, results, strict=True)), bare, again)
    text = left_out_section(runs)
    assert "| those below | all | 2 | 3.0 | 7.0 |" in text
    assert "| stack: field | lab | 1 | 2.0 | 10.0 |" in text


def test_a_run_of_a_table_that_was_out_of_memory_is_none_that_ran():
    ran, failed = (
        Run({"id": name}, PublishedResult(name, "A", "h100", None, ran=ran))
        for name, ran in (("a-1", True), ("a-2", False))
    )
    assert apart({"a": [ran, failed]}) == ({"a": [ran]}, [failed])


def test_a_spread_of_its_own_is_worth_having_where_runs_differ_by_what_is_known_of_them():
    known = [
        each._replace(id=f"{trait}{each.id}", traits=frozenset({trait} - {""}))
        for trait, scale in (("experts", 0.3), ("", 0.02))
        for each in residuals(scale, sources=3, runs=4)
    ]
    assert left_out_score(known, "experts") > left_out_score(known) + 0.1


def test_shares_by_what_is_known_count_groups_of_five_sources_and_more():
    found = [
        Placed(f"s{n}", 0.1 if n % 2 else 0.85, frozenset({"experts"} if n < 6 else ()))
        for n in range(9)
    ]
    text = regimes_section(found, {"experts": SplitScore(0.5, 0.4)})
    assert "| experts | 6 | 50% | 50% | 100% | 100% | 100% | 0.50 | 0.40 |" in text
    assert "without experts" not in text


def test_traits_are_what_a_row_tells_beforehand():
    row = {"experts": "8", "gpus": "1", "precision": "fp8", "facts": '{"plan": {"lora": {}}}'}
    assert traits_of(row, "torch") == set(TRAITS)
    assert traits_of({"gpus": "8", "precision": "bf16"}, "megatron-core") == set()
