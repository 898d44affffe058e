"""Does every number stay what it is, to the last digit?

Where a number was meant to move: ``make golden``, and explain the difference of its files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.described.plan.shipped_stacks import STACKS
from simulator.validate.published.published_runs import read_rows
from tests.golden.results import (
    PREDICTIONS,
    PUBLISHED_RUNS,
    RESULTS,
    golden_job,
    job_names,
    kept_predictions,
    kept_results,
    moved,
    prediction,
    results_of,
)

PARTS = 16
"""The published runs are predicted in so many tests, which run beside each other."""

SCHEMA = Path(__file__).parents[2] / "workloads" / "schema.json"
HOW = "if that was meant: make golden, and explain the difference of {}"


@pytest.mark.parametrize("name", job_names())
def test_no_number_of_a_golden_job_moves(name):
    found = moved(kept_results().get(name, {}), results_of(name))
    message = "\n  ".join([f"{name} moved:", *found, HOW.format(RESULTS.name)])
    assert not found, message


@pytest.mark.parametrize("part", range(PARTS))
def test_no_prediction_of_a_published_run_moves(part):
    kept = kept_predictions()
    changes = [
        f"{row['id']}: {change}"
        for row in read_rows(PUBLISHED_RUNS)[part::PARTS]
        for change in moved(kept.get(row["id"], {}), prediction(row))
    ]
    assert not changes, "\n  ".join(["moved:", *changes, HOW.format(PREDICTIONS.name)])


def test_every_job_and_every_published_run_is_kept_and_no_other():
    assert set(kept_results()) == set(job_names())
    assert list(kept_predictions()) == [row["id"] for row in read_rows(PUBLISHED_RUNS)]


def test_a_changed_digit_is_named_with_its_field():
    kept = {"step_time_s": 0.1, "mfu": 0.5, "gone": 1}
    assert moved(kept, {"step_time_s": 0.1 + 2**-55, "mfu": 0.5}) == [
        "gone: 1 -> not there",
        "step_time_s: 0.1 -> 0.10000000000000003",
    ]


def test_every_word_that_a_plan_knows_is_in_a_golden_job():
    plans = [golden_job(name).plan.model_dump(by_alias=True) for name in job_names()]
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"]
    missing = {}
    for spec, blocks in (("Plan", plans), ("Offload", [plan["offload"] for plan in plans])):
        for field, described in schema[spec]["properties"].items():
            used = {str(word) for block in blocks for word in _words(block[field])}
            unused = _choices(described) - used
            if unused or len(used) == 1:
                missing[f"{spec}.{field}"] = unused or "anything but its default"
    assert missing == {}


def test_every_stack_is_in_a_golden_job():
    stacks = [golden_job(name).plan.stack for name in job_names()]
    assert [name for name, stack in STACKS.items() if stack not in stacks] == []


def _words(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _choices(described: dict[str, Any]) -> set[str]:
    """The words that a field of a schema may be; empty where it is a number or a text."""
    parts = [described, described.get("items", {}), *described.get("anyOf", [])]
    words = {word for part in parts for word in part.get("enum", [part.get("const")])}
    return {str(word) for word in words if word is not None}
