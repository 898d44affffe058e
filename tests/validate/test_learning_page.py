"""Is a later version better on runs that it had not seen either?"""

from __future__ import annotations

import pandas as pd
import pytest

from reports.make.learning.earlier_versions import NEWEST, REFUSED, read_errors, write_errors
from reports.make.learning.learning_page import (
    held_out_section,
    learning_runs,
    ratios_around_first_sight,
    versions_table,
)

_RUNS = 40
_VERSIONS = ["2026-01-01T00:00 aaa", "2026-01-02T00:00 bbb", NEWEST]


@pytest.fixture
def runs():
    """Forty runs of each version: the newest halves all errors; one old run is refused."""
    early, late = ([f"{name}-{number}" for number in range(_RUNS)] for name in "pq")
    cells = pd.DataFrame(
        {
            _VERSIONS[0]: ["20.0"] * _RUNS + [REFUSED] + ["-40.0"] * (_RUNS - 1),
            _VERSIONS[1]: ["10.0"] * _RUNS + ["-20.0"] * _RUNS,
            NEWEST: ["5.0"] * _RUNS + ["-10.0"] * _RUNS,
        },
        index=[*early, *late],
    )
    rows = [
        {"id": name, "grade": grade, "measured_step_s": "1", "seen_by": version}
        for names, version in ((early, "aaa"), (late, "bbb"))
        for name, grade in zip(names, ["A", "A-"] * (_RUNS // 2), strict=True)
    ]
    rows.append({"id": "p-0-c", "grade": "C", "measured_step_s": "1", "seen_by": "aaa"})
    return learning_runs(cells, rows)


def test_a_version_is_held_against_runs_that_were_first_seen_after_it(runs):
    (line,) = versions_table(runs)
    assert line == "| 2026-01-01 `aaa` | 39 | 1 | 40.0 / 40.0 | 20.0 / 20.0 | 10.0 / 10.0 |"


def test_all_versions_are_compared_on_runs_that_each_predicts(runs):
    section = held_out_section(runs)
    assert "The 39 runs" in section
    assert "| 2026-01-01 `aaa` | 1 | 40.0 / 40.0 |" in section
    assert "| newest | 0 | 10.0 / 10.0 |" in section


def test_errors_around_first_sight_are_shares_of_those_at_it(runs):
    found = ratios_around_first_sight(runs)
    assert found[0].to_dict() == {0: 1.0, 1: 0.5, 2: 0.25}
    assert found[1].to_dict() == {-1: 2.0, 0: 1.0, 1: 0.5}


def test_versions_are_kept_in_order_of_time_with_the_newest_last(tmp_path, runs):
    path = tmp_path / "errors.csv"
    mixed = runs.errors[[NEWEST, _VERSIONS[1], _VERSIONS[0]]].rename_axis("id")
    write_errors(path, mixed)
    assert list(read_errors(path).columns) == _VERSIONS
