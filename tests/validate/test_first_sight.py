"""Predictions of unseen runs: written once, never again, and shown as they were."""

import datetime
from pathlib import Path

import pytest

from reports.make.accuracy.first_sight_page import (
    by_framework_section,
    first_sight_headline,
    first_sight_section,
    first_sight_sources,
)
from simulator.errors import InputError
from simulator.validate.first_sight import keep_first_sight, read_first_sight
from simulator.validate.published.published_runs import PublishedResult

KEPT = Path(__file__).parents[2] / "reports" / "first_sight.csv"
DAY = datetime.date(2027, 1, 2)


def result(name: str, predicted_s: float | None, skipped: str = "") -> PublishedResult:
    error = None if predicted_s is None else 100 * (predicted_s / 2.0 - 1)
    return PublishedResult(name, "A", "h100", 2.0, predicted_s, error, skipped=skipped)


def table(*names: str) -> list[dict[str, str]]:
    return [{"id": name, "source": f"source of {name}"} for name in names]


def test_a_run_keeps_what_was_predicted_when_it_was_first_seen(tmp_path):
    path = tmp_path / "kept.csv"
    keep_first_sight([result("a-1", 3.0)], table("a-1"), path, seen_on=DAY)
    before = path.read_text()
    again = [result("a-1", 2.0), result("a-2", 1.0)]
    kept = keep_first_sight(again, table("a-1", "a-2"), path, seen_on=DAY)
    assert (kept.new, kept.known) == (1, 1)
    assert path.read_text().startswith(before)
    rows = read_first_sight(path)
    assert [row["error_pct"] for row in rows] == ["50.0", "-50.0"]
    assert rows[1]["source"] == "source of a-2"
    assert rows[1]["seen_on"] == "2027-01-02"


def test_nothing_new_leaves_the_file_as_it_is(tmp_path):
    path = tmp_path / "kept.csv"
    path.write_bytes(KEPT.read_bytes())
    name = read_first_sight(path)[0]["id"]
    keep_first_sight([result(name, 1.0)], table(name), path)
    assert path.read_bytes() == KEPT.read_bytes()


def test_appending_leaves_the_lines_that_are_there_as_they_are(tmp_path):
    path = tmp_path / "kept.csv"
    path.write_bytes(KEPT.read_bytes())
    keep_first_sight([result("new-1", 1.0)], table("new-1"), path)
    assert path.read_bytes().startswith(KEPT.read_bytes())


def test_a_refused_run_is_kept_with_the_reason(tmp_path):
    path = tmp_path / "kept.csv"
    keep_first_sight([result("a-1", None, "no such GPU")], table("a-1"), path)
    (row,) = read_first_sight(path)
    assert (row["error_pct"], row["skipped"]) == ("", "no such GPU")


def test_a_run_named_twice_is_refused(tmp_path):
    lines = KEPT.read_text().splitlines(keepends=True)
    path = tmp_path / "kept.csv"
    path.write_text("".join([*lines[:3], lines[2]]))
    with pytest.raises(InputError, match="contains one run 2 times"):
        read_first_sight(path)


def test_the_headline_counts_refusals_and_takes_absolute_errors():
    stated = {
        "grade": "A",
        "mem_error_pct": "-5.0",
        "measured_step_s": "1",
        "seen_on": "2027-01-02",
    }
    rows = [
        {"id": "a-1", "error_pct": "10.0", **stated},
        {"id": "a-2", "error_pct": "-30.0", **stated},
        {"id": "b-1", "error_pct": "", **stated, "mem_error_pct": ""},
    ]
    assert "| grade A and A- | 2 | 1 | 20.0 | 20.0 | 28.0 | 5.0 |" in first_sight_headline(rows)
    assert [source.name for source in first_sight_sources(rows)] == ["a", "b"]


def test_a_run_whose_source_states_memory_alone_is_no_refusal():
    memory = {"id": "a-1", "grade": "A", "measured_step_s": "", "error_pct": ""}
    rows = [{**memory, "mem_error_pct": "4.0", "seen_on": "2027-01-02"}]
    assert "| grade A and A- | 0 | 0 |  |  |  | 4.0 |" in first_sight_headline(rows)


def test_runs_that_were_seen_last_have_a_line_of_their_own():
    """They say what the present version does; older ones were seen by older versions."""
    cells = {"grade": "A", "measured_step_s": "1", "mem_error_pct": ""}
    rows = [
        {"id": "a-1", "error_pct": "40.0", "seen_on": "2027-01-01", **cells},
        {"id": "b-1", "error_pct": "4.0", "seen_on": "2027-01-02", **cells},
    ]
    last = first_sight_headline(rows).splitlines()[-1]
    assert last == "| grade A and A-, first seen on 2027-01-02 | 1 | 0 | 4.0 | 4.0 | 4.0 |  |"


def test_sources_of_a_framework_count_the_same_in_its_bias():
    """Two runs 30 % too slow and one 10 % too fast: on average of the sources 10 % too slow."""
    errors = {"a-1": "30.0", "a-2": "30.0", "b-1": "-10.0", "c-1": "99.0", "d-1": ""}
    rows = [{"id": name, "grade": "A", "error_pct": error} for name, error in errors.items()]
    section = by_framework_section(rows, {"a-1": "x", "a-2": "x", "b-1": "x", "d-1": "y"})
    assert section.splitlines()[-1] == "| x | 3 | 2 | 23.3 | 30.0 | +10.0 |"


def test_the_report_shows_the_file_as_it_is():
    section = first_sight_section(read_first_sight(KEPT))
    report = (KEPT.parent / "accuracy.md").read_text(encoding="utf-8")
    assert section in report
