"""The accuracy report names what is furthest off, and why as far as anybody knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reports.make.accuracy.accuracy_picture import RunError, build_accuracy_figure
from reports.make.accuracy.accuracy_report import KnownMiss, accuracy_report
from simulator.validate.published.published_runs import PublishedReport, predicted
from tests.validate.published_jobs import ROW

NAMES = ("lab-001", "lab-002", "other-001", "third-001")
ROWS = [{**ROW, "id": name, "source": "a table"} for name in NAMES]


@pytest.fixture(scope="module")
def report() -> PublishedReport:
    results = [predicted(row) for row in ROWS]
    exact = results[0].predicted_step_s
    assert exact is not None
    measured = (1.2 * exact, 2.0 * exact, exact, exact)
    return PublishedReport(
        [
            replace(r, measured_step_s=m, error_pct=100 * (exact / m - 1))
            for r, m in zip(results, measured, strict=True)
        ]
    )


def section(text: str, title: str) -> list[str]:
    return text.partition(f"## {title}")[2].partition("\n## ")[0].splitlines()


def test_the_furthest_off_come_first_each_with_its_cause(report) -> None:
    known = [KnownMiss(r"lab-00\d", "the lab's clock is slow")]
    text = accuracy_report(report, ROWS, {}, known)
    rows = [line for line in section(text, "The 20 furthest off") if line.startswith("| ")][1:]
    assert [row.split(" | ")[0] for row in rows] == [f"| {NAMES[i]}" for i in (1, 0, 2, 3)]
    assert "| -50.0 |" in rows[0]
    assert rows[0].endswith("the lab's clock is slow |")
    assert rows[2].endswith("not understood |")
    assert "% backward" in rows[0]


def test_the_picture_counts_all_runs_and_the_close_ones() -> None:
    runs = [RunError("megatron", 1.0, 1.1), RunError("megatron", 1.0, 2.0), RunError("jax", 3.0, 3)]
    figure = build_accuracy_figure(runs, "runs", 15.0)
    words = " ".join(text.get_text() for text in figure.texts)
    assert "3 runs: mean error 36.7 %, median 10.0 %, 67 % within 15 %" in words
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "megatron (2)", "jax (1)",
    ]  # fmt: skip
