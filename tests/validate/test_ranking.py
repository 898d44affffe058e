"""Rankings of layouts against orders that a person can see."""

from __future__ import annotations

import pytest

from reports.make.accuracy.ranking import SweepRanking, sweep_rankings
from simulator.cells import Row
from simulator.validate.published.published_runs import PublishedResult

COLUMNS = (
    *("id", "source", "grade", "experts", "top_k", "gated_mlp", "tied_embeddings", "notes"),
    *("gpus_per_node", "nics_per_node", "nic_gbps", "fabric", "framework_version", "vpp", "cp"),
    *("ep", "dp", "zero_group", "sequence_parallel", "schedule", "recompute", "precision"),
    *("attention", "overlap_grad_reduce", "overlap_param_gather", "micro_batch"),
)
MEASURED = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def sweep(
    predicted: list[float], measured: list[float] | None = None, **columns: str
) -> tuple[list[PublishedResult], dict[str, Row]]:
    """One source's runs of one model on one cluster."""
    row = dict.fromkeys(COLUMNS, "") | {
        "model": "gpt", "layers": "12", "hidden": "768", "heads": "12", "kv_heads": "12",
        "ffn_hidden": "3072", "vocab": "50257", "profile": "a100-sxm-80gb", "gpus": "8",
        "framework": "megatron", "global_batch": "8", "seq_len": "128", "tp": "1", "pp": "1",
        "zero": "1", **columns,
    }  # fmt: skip
    pairs = zip(measured or MEASURED, predicted, strict=True)
    results = [
        PublishedResult(f"source-{i}", "A", "p", seconds, guess)
        for i, (seconds, guess) in enumerate(pairs)
    ]
    return results, {r.id: {**row, "micro_batch": str(i)} for i, r in enumerate(results)}


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


def test_runs_of_one_job_count_once_by_their_mean() -> None:
    results, rows = sweep([9.0, *MEASURED], [1.0, *MEASURED])
    rows["source-0"] = rows["source-8"] | {"notes": "again", "id": "source-0"}
    ranking = only(sweep_rankings(results, rows))
    assert ranking.layouts == 8
    # the last layout took 1 s and 8 s, 4.5 in the mean, but is predicted slowest:
    # ranks 1 2 3 4 6 7 8 5 against 1 to 8, so 1 - 6 (1 + 1 + 1 + 9) / (8 x 63)
    assert ranking.spearman == pytest.approx(1 - 6 * 12 / 504)


def test_eight_runs_of_fewer_jobs_are_no_sweep() -> None:
    results, rows = sweep(MEASURED)
    rows["source-0"] = rows["source-1"]
    assert sweep_rankings(results, rows) == []
