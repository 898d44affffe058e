"""How are published steps of reinforcement learning read, and what is assumed of them?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reports.make.rl_page import cut_mean_of, keep_first_sight, published_steps, uncut_mean
from simulator.api.rl_answers import KNOWN_ERROR
from simulator.cells import read_table

ROOT = Path(__file__).parents[2]
FIRST = ROOT / "reports/data/rl_first_sight.csv"


def test_lengths_cut_at_the_longest_have_the_published_mean():
    mean, longest, variation = 1500.0, 3946, 0.8
    spread = np.log1p(variation**2)
    draw = np.random.default_rng(1)
    lengths = draw.lognormal(np.log(mean) - spread / 2, np.sqrt(spread), size=400_000)
    cut = float(np.minimum(lengths, longest).mean())
    assert cut_mean_of(mean, longest, variation) == pytest.approx(cut, rel=0.005)
    assert uncut_mean(cut, longest, variation) == pytest.approx(mean, rel=0.02)


def test_what_was_predicted_first_stays(tmp_path):
    path = tmp_path / "first.csv"
    path.write_text("id,predicted_step_s\na,12.5\nb,\n", encoding="utf-8")
    assert keep_first_sight(path, {"a": None, "b": None, "c": None}) == {
        "a": 12.5, "b": None, "c": None,
    }  # fmt: skip


def test_every_published_step_has_its_first_prediction():
    rows = published_steps(ROOT / "reports/data/rl_runs.csv")
    first = FIRST.read_text(encoding="utf-8")
    assert all(f"\n{row.id}," in first for row in rows)


def test_the_error_that_the_command_prints_is_that_of_first_sight():
    rows = published_steps(ROOT / "reports/data/rl_runs.csv")
    first = {each["id"]: each["predicted_step_s"] for each in read_table(FIRST, ("id",))}
    ratios = [float(first[row.id]) / row.measured_step_s for row in rows if first[row.id]]
    short = 1 - np.mean(ratios)
    assert f"Of {len(ratios)} published steps" in KNOWN_ERROR
    assert f"{100 * short:.0f} % too short on average" in KNOWN_ERROR
