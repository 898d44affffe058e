"""Rankings of layouts against orders that a person can see."""

from __future__ import annotations

from typing import Any

import pytest

from reports.make.accuracy.band_coverage import Banded
from reports.make.accuracy.ranking import SweepRanking, sweep_rankings

MEASURED = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]

Documents = dict[str, dict[str, Any]]


def run(name: str, measured_s: float, predicted_s: float) -> Banded:
    return Banded(name, "torch", measured_s, predicted_s, 0.8, 1.3)


def document(*, micro: int = 1, batch: int = 8) -> dict[str, Any]:
    return {
        "model": {"name": "gpt", "layers": 12},
        "cluster": {"profile": "a100-sxm-80gb", "gpus": 8},
        "batch": {"global": batch, "micro": micro, "seq_len": 128},
        "plan": {"tp": 1},
    }


def sweep(
    predicted: list[float], measured: list[float] | None = None
) -> tuple[list[Banded], Documents]:
    """One source's runs of one model on one cluster, each of another microbatch."""
    pairs = zip(measured or MEASURED, predicted, strict=True)
    runs = [run(f"source-{i}", seconds, guess) for i, (seconds, guess) in enumerate(pairs)]
    return runs, {each.id: document(micro=i) for i, each in enumerate(runs)}


def only(rankings: list[SweepRanking]) -> SweepRanking:
    (ranking,) = rankings
    return ranking


def test_the_right_order_ranks_perfectly_however_wrong_the_seconds() -> None:
    ranking = only(sweep_rankings(*sweep([10 * seconds for seconds in MEASURED])))
    assert ranking.spearman == pytest.approx(1.0)
    assert ranking.finds_fastest
    assert ranking.loss == 0.0


def test_the_reverse_order_ranks_minus_one_and_misses_the_fastest() -> None:
    ranking = only(sweep_rankings(*sweep(MEASURED[::-1])))
    assert ranking.spearman == pytest.approx(-1.0)
    assert not ranking.finds_fastest


def test_the_loss_is_what_the_picked_layout_takes_longer_than_the_fastest() -> None:
    swapped = [3.0, 1.0, 2.0, *MEASURED[3:]]
    assert only(sweep_rankings(*sweep(swapped))).loss == pytest.approx(2.0 / 1.0 - 1.0)


def test_the_fastest_may_be_predicted_third() -> None:
    swapped = [3.0, 1.0, 2.0, *MEASURED[3:]]
    assert only(sweep_rankings(*sweep(swapped))).finds_fastest
    fourth = [4.0, 1.0, 2.0, 3.0, *MEASURED[4:]]
    assert not only(sweep_rankings(*sweep(fourth))).finds_fastest


def test_layouts_of_other_batches_are_compared_by_time_per_token() -> None:
    runs, documents = sweep(MEASURED)
    documents["source-7"] = document(micro=7, batch=80)
    ranking = only(sweep_rankings(runs, documents))
    # the slowest step has ten times the tokens, so that its tokens take 0.8 s each and are fastest
    assert ranking.spearman == pytest.approx(1.0)
    assert ranking.finds_fastest


def test_fewer_than_four_layouts_are_no_sweep() -> None:
    assert sweep_rankings(*sweep(MEASURED[:3], MEASURED[:3])) == []


def test_runs_of_one_job_count_once_by_their_mean() -> None:
    runs, documents = sweep([9.0, *MEASURED], [1.0, *MEASURED])
    documents["source-0"] = documents["source-8"]
    ranking = only(sweep_rankings(runs, documents))
    assert ranking.layouts == 8
    # the last layout took 1 s and 8 s, 4.5 in the mean, but is predicted slowest:
    # ranks 1 2 3 4 6 7 8 5 against 1 to 8, so 1 - 6 (1 + 1 + 1 + 9) / (8 x 63)
    assert ranking.spearman == pytest.approx(1 - 6 * 12 / 504)


def test_four_runs_of_fewer_jobs_are_no_sweep() -> None:
    runs, documents = sweep(MEASURED[:4], MEASURED[:4])
    documents["source-0"] = documents["source-1"]
    assert sweep_rankings(runs, documents) == []


def test_runs_of_another_framework_are_a_sweep_of_their_own() -> None:
    runs, documents = sweep(MEASURED)
    runs[:4] = [each._replace(framework="torchtitan") for each in runs[:4]]
    assert [each.layouts for each in sweep_rankings(runs, documents)] == [4, 4]
