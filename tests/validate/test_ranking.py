"""Rankings of layouts against orders that a person can see."""

from __future__ import annotations

import pytest

from simulator.validate.published import PublishedResult
from simulator.validate.published_rows import Row
from simulator.validate.ranking import SweepRanking, sweep_rankings

MEASURED = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def sweep(
    predicted: list[float], measured: list[float] | None = None, **columns: str
) -> tuple[list[PublishedResult], dict[str, Row]]:
    """One source's runs of one model on one cluster."""
    row = {
        "layers": "12", "hidden": "768", "ffn_hidden": "3072", "profile": "p", "gpus": "8",
        "global_batch": "8", "seq_len": "128", **columns,
    }  # fmt: skip
    pairs = zip(measured or MEASURED, predicted, strict=True)
    results = [
        PublishedResult(f"source-{i}", "A", "p", seconds, guess)
        for i, (seconds, guess) in enumerate(pairs)
    ]
    return results, {result.id: row for result in results}


def only(rankings: list[SweepRanking]) -> SweepRanking:
    (ranking,) = rankings
    return ranking


def test_the_right_order_ranks_perfectly_however_wrong_the_seconds() -> None:
    ranking = only(sweep_rankings(*sweep([10 * seconds for seconds in MEASURED])))
    assert ranking.spearman == pytest.approx(1.0)
    assert ranking.finds_fastest


def test_the_reverse_order_ranks_minus_one_and_misses_the_fastest() -> None:
    ranking = only(sweep_rankings(*sweep(MEASURED[::-1])))
    assert ranking.spearman == pytest.approx(-1.0)
    assert not ranking.finds_fastest


def test_the_fastest_may_be_predicted_third() -> None:
    swapped = [3.0, 1.0, 2.0, *MEASURED[3:]]
    assert only(sweep_rankings(*sweep(swapped))).finds_fastest
    fourth = [4.0, 1.0, 2.0, 3.0, *MEASURED[4:]]
    assert not only(sweep_rankings(*sweep(fourth))).finds_fastest


def test_layouts_of_other_batches_are_compared_by_time_per_token() -> None:
    results, rows = sweep(MEASURED)
    double = {**rows["source-7"], "global_batch": "80"}
    rows["source-7"] = double
    ranking = only(sweep_rankings(results, rows))
    assert ranking.spearman == pytest.approx(1.0)
    assert ranking.finds_fastest


def test_fewer_than_eight_layouts_are_no_sweep() -> None:
    assert sweep_rankings(*sweep(MEASURED[:7], MEASURED[:7])) == []
