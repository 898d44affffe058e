"""Does validation print what it computed, and stop where a threshold is missed?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.csv_files import read_rows, write_rows
from tests.validate.published_jobs import ROW as RUN

ROW = {"id": "a-1", "measured_us": 10.0, "predicted_us": 11.0, "error_pct": 10.0, "skipped": None}
SKIPPED = {"id": "a-2", "measured_us": 5.0, "predicted_us": None, "error_pct": None}


@dataclass
class Report:
    """A validation that predicted one row and skipped one."""

    mape: float | None = 10.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": [ROW, SKIPPED | {"skipped": "no profile"}],
            "summary": {"n": 1, "mape": self.mape, "skipped": 1},
            "fits": {"ran_and_fits": 3},
            "by_source": {"a": {"n": 1, "mape": self.mape}},
        }


MODULES = {
    "published": "published.published_runs",
    "collectives": "collective_errors",
    "kernels": "kernel_errors",
}


@pytest.fixture(params=list(MODULES))
def kind(request, monkeypatch):
    """A kind of validation that returns the report above."""
    name = request.param
    monkeypatch.setattr(
        f"simulator.validate.{MODULES[name]}.validate_{name}", lambda path, **options: Report()
    )
    return name


def test_json_is_the_report(clustersim, kind):
    outcome = clustersim("validate", kind, "measured.csv", "--json")
    versioned = {"schema_version": 1, **Report().to_dict()}
    assert (outcome.code, json.loads(outcome.out)) == (0, versioned)


def test_tables_show_rows_groups_and_summary(clustersim, kind):
    lines = [line.split() for line in clustersim("validate", kind, "measured.csv").out.splitlines()]
    assert ["a-1", "10", "11", "10"] in lines
    assert ["a-2", "5", "no", "profile"] in lines
    assert ["source", "n", "mape"] in lines
    assert ["mape", "10"] in lines
    assert ["ran_and_fits", "3"] in lines


def test_rows_can_be_written_to_a_file(clustersim, kind, tmp_path):
    path = tmp_path / "deep" / "rows.csv"
    assert clustersim("validate", kind, "m.csv", "--json", "--out", path).err == f"wrote {path}\n"
    rows = read_rows(path)
    assert [row["skipped"] for row in rows] == ["", "no profile"]
    assert rows[0]["predicted_us"] == "11.0"


@pytest.mark.parametrize(("limit", "code"), [("10", 0), ("9.9", 1)])
def test_a_missed_threshold_ends_with_1(clustersim, kind, limit, code):
    outcome = clustersim("validate", kind, "m.csv", "--json", "--max-mape", limit)
    assert outcome.code == code
    assert ("the mean error is 10.0 %" in outcome.err) == bool(code)


def test_a_table_without_any_prediction_misses_every_threshold(clustersim, monkeypatch):
    none = Report(mape=None)
    monkeypatch.setattr("simulator.validate.kernel_errors.validate_kernels", lambda _, **__: none)
    outcome = clustersim("validate", "kernels", "m.csv", "--json", "--max-mape", "100")
    assert outcome.code == 1
    assert "there is no prediction" in outcome.err


@pytest.mark.parametrize("kind", ["published", "collectives", "kernels"])
def test_a_missing_table_ends_with_2(clustersim, tmp_path, kind):
    outcome = clustersim("validate", kind, tmp_path / "none.csv")
    assert (outcome.code, outcome.out) == (2, "")
    assert "none.csv" in outcome.err


@pytest.mark.parametrize("kind", ["published", "collectives", "kernels"])
@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "\x00\x01", "id\n"])
def test_a_table_of_something_else_ends_with_2(clustersim, write, kind, content):
    outcome = clustersim("validate", kind, write(content, "table.csv"))
    assert (outcome.code, outcome.out) == (2, "")
    assert "Traceback" not in outcome.err


def test_facts_beside_a_table_of_runs_are_used_and_that_is_said(clustersim, write, monkeypatch):
    monkeypatch.setattr(
        "simulator.validate.published.published_runs.validate_published",
        lambda path, **options: Report(),
    )
    table = write("id\n", "runs.csv")
    assert clustersim("validate", "published", table).err == ""
    facts = write("groups: []\n", "runs.facts.yaml")
    assert f"facts about its runs are read from {facts}" in clustersim(
        "validate", "published", table
    ).err.replace("\n", " ")


def test_ratios_are_printed_beside_the_rows(clustersim, tmp_path):
    runs = [
        {**RUN, "id": name, "grade": "A", "micro_batch": micro}
        for name, micro in (("a-1", "1"), ("a-2", "2"))
    ]
    path = write_rows(runs, tmp_path / "runs.csv")
    outcome = clustersim("validate", "published", path, "--ratios", "--json", "--workers", "1")
    document = json.loads(outcome.out)
    steps = [row["predicted_step_s"] for row in document["rows"]]
    # both took the same time, so all of the predicted difference is an error
    error_pct = 100 * (max(steps) / min(steps) - 1)
    assert document["ratios"]["median_pct"] == pytest.approx(error_pct)
    assert document["sweeps"][0]["regret_pct"] == pytest.approx(0.0)
