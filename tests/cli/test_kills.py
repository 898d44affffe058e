"""A killed command leaves nothing behind, and goes on; `make kills` tries it two hundred times."""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import pytest

from reports.make.kills.killed_commands import SWEEP, SWEEP_ALONE
from reports.make.kills.starts import two_starts
from reports.make.kills.trials import fresh, kill, kill_itself, undisturbed


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    return undisturbed(SWEEP_ALONE, tmp_path_factory.mktemp("undisturbed"))


def test_a_sweep_that_dies_within_a_write_goes_on_without_losing_a_row(wanted, tmp_path):
    outcome = kill_itself(SWEEP_ALONE, wanted, "half of a row's line", tmp_path)
    assert outcome.hit
    assert outcome.faults == []


def test_workers_end_with_a_killed_sweep(wanted, tmp_path):
    outcome = kill(SWEEP, wanted, signal.SIGKILL, 0.6 * wanted.duration_s, tmp_path)
    assert outcome.faults == []


def test_of_two_sweeps_that_start_at_once_one_is_refused_or_comes_later(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert two_starts(fresh(tmp_path / "two"), Random(1)) in {"one refused", "both ended"}
    assert Path.cwd() == tmp_path  # where the rest of the page is kept
