"""Predictions of unseen runs of serving: written once, and never again."""

import datetime
from pathlib import Path

from reports.make.gathered_serving import gathered_section
from simulator.validate.serving import ServingResult
from simulator.validate.serving_first_sight import (
    keep_serving_first_sight,
    read_serving_first_sight,
)

KEPT = Path(__file__).parents[2] / "reports" / "serving_first_sight.csv"
DAY = datetime.date(2027, 1, 2)


def result(name: str, predicted: float | None, skipped: str = "") -> ServingResult:
    error = None if predicted is None else 100 * (predicted / 200.0 - 1)
    about = (name, f"source of {name}", "A", "vllm", "llama2-7b", "h100")
    return ServingResult(*about, 200.0, predicted, error, skipped=skipped)


def test_a_served_run_keeps_what_was_predicted_when_it_was_first_seen(tmp_path):
    path = tmp_path / "kept.csv"
    keep_serving_first_sight([result("a-1", 300.0)], path, seen_on=DAY)
    before = path.read_text()
    again = [result("a-1", 200.0), result("a-2", None, "no such GPU")]
    kept = keep_serving_first_sight(again, path, seen_on=DAY)
    assert (kept.new, kept.known) == (1, 1)
    assert path.read_text().startswith(before)
    first, second = read_serving_first_sight(path)
    assert (first["throughput_error_pct"], first["seen_on"]) == ("50.000", "2027-01-02")
    assert (second["throughput_error_pct"], second["skipped"]) == ("", "no such GPU")


def test_every_kept_run_says_what_was_predicted_or_why_nothing_was():
    for row in read_serving_first_sight(KEPT):
        assert row["predicted_tokens_per_s"] or row["skipped"]


def test_the_section_on_gathered_runs_compares_first_sight_with_now():
    def row(name: str, error: float | None) -> dict[str, object]:
        about = {"id": name, "source": "a", "grade": "A-", "engine": "vllm", "skipped": ""}
        about["seen_by"] = f"commit of {name}"
        errors = {"throughput_error_pct": error, "tpot_error_pct": "", "ttft_error_pct": None}
        return about | errors

    first, now = [row("a-1", -50.0), row("a-2", 30.0)], [row("a-1", 10.0), row("a-2", None)]
    section = gathered_section(first, now, now)
    assert "| A and A- | first sight | 40.0 %, 40.0 % (2) |  |  |" in section
    assert "| A and A- | now | 10.0 %, 10.0 % (1) |  |  |" in section
    assert "| a | vllm | 2 | 40.0 % | 10.0 % |" in section
    assert "| commit of a-2 | first sight | 30.0 %, 30.0 % (1) |  |  |" in section
