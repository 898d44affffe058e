"""The first runs of a source tell the others; nothing tells a run but others of its source."""

from __future__ import annotations

import pytest

from simulator.validate.published.anchored_runs import validate_anchored
from simulator.validate.published.published_runs import predicted
from tests.csv_files import write_rows
from tests.validate.published_jobs import ROW


@pytest.fixture(scope="module")
def exact_s() -> float:
    return predicted(ROW).predicted_step_s


@pytest.fixture
def table(tmp_path, exact_s):
    """Runs as a share of the predicted time, by id; returns the path."""

    def write(ratios: dict[str, float], **cells: str):
        rows = (
            {**ROW, **cells, "id": name, "measured_step_s": str(ratio * exact_s)}
            for name, ratio in ratios.items()
        )
        return write_rows(rows, tmp_path / "runs.csv", list(ROW))

    return write


def test_the_first_run_of_each_source_by_id_is_its_anchor(table):
    path = table({"b-2": 1.2, "a-2": 1.0, "b-1": 1.2, "a-1": 1.0})
    rows = {row.id: row for row in validate_anchored(path, 1).rows}
    assert [name for name, row in rows.items() if row.anchor] == ["b-1", "a-1"]
    assert abs(rows["b-2"].error_pct) < 5.0
    assert rows["b-1"].error_pct == pytest.approx(100 * (1 / 1.2 - 1))
    assert abs(rows["a-2"].error_pct) < 1e-6


def test_a_run_that_leaves_knobs_open_is_no_anchor_where_another_states_them(table):
    path = table({"b-1": 2.0, "b-2": 1.2})
    header, first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([header, first.replace(",A,", ",B,", 1), *rest]))
    assert ",B," in path.read_text()
    assert [row.anchor for row in validate_anchored(path, 1).rows] == [False, True]


def test_anchors_are_no_part_of_the_summary(table):
    report = validate_anchored(table({"b-1": 2.0, "b-2": 2.0, "b-3": 2.0}), 1)
    assert report.summary.n == 2
    assert [row["anchor"] for row in report.to_dict()["rows"]] == [True, False, False]


def test_more_anchors_narrow_the_band(table, exact_s):
    ratios = {f"b-{number}": 1.3 for number in range(5)}
    one, three = (validate_anchored(table(ratios), n).rows[-1] for n in (1, 3))
    assert max(abs(three.error_pct), abs(one.error_pct)) < 8.0
    widths = [(row.band_s[1] - row.band_s[0]) / row.predicted_step_s for row in (one, three)]
    assert widths[1] < widths[0]


def test_a_system_that_no_anchor_is_on_stays_as_it_is_shipped(table, exact_s):
    path = table({"b-1": 1.5, "b-2": 1.5})
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], lines[2].replace("h100-sxm-80gb", "a100-sxm-80gb")]))
    other = validate_anchored(path, 1).rows[1]
    assert other.predicted_step_s == predicted({**ROW, "profile": "a100-sxm-80gb"}).predicted_step_s
