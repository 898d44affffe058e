"""Facts of frameworks: each has its evidence, and is read when it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from simulator import facts
from simulator.described.base import file_name_of_field
from simulator.described.plan.shipped_stacks import STACKS, evidence_of_stack
from simulator.described.plan.stack import Stack

ROOT = Path(__file__).parents[2]
FACTS_OF_A_STACK = {file_name_of_field(name) for name in Stack.model_fields}


@pytest.mark.parametrize("name", STACKS)
def test_every_fact_of_a_stack_is_stated_once_with_its_evidence(name):
    groups = facts.shipped_facts(f"stacks/{name}")["facts"]
    later = ("before", "only_named")
    newest = [
        fact for group in groups if not any(map(group.get, later)) for fact in group["values"]
    ]
    assert sorted(set(newest)) == sorted(newest)
    stated = [fact for group in groups for fact in group["values"]]
    assert set(stated) <= FACTS_OF_A_STACK
    assert {each.source for each in evidence_of_stack(name).values()} <= set(facts.EVIDENCE)


@pytest.mark.parametrize("name", STACKS)
def test_a_fact_that_is_not_assumed_names_its_reference(name):
    evidence = evidence_of_stack(name).items()
    assert [
        fact for fact, (source, where, _) in evidence if source != "assumed" and not where
    ] == []


def test_no_stack_takes_the_pace_of_hosts_from_residuals():
    evidence = [evidence_of_stack(name).get("host_work_per_launch") for name in STACKS]
    assert "residuals" not in {each.source for each in evidence if each is not None}


def test_a_stack_that_is_not_shipped_is_no_key():
    assert "turbo" not in STACKS
    with pytest.raises(KeyError):
        STACKS["turbo"]


def test_no_fact_is_read_before_it_is_asked_for():
    code = (
        "import simulator.api\nfrom simulator import facts\n"
        "print(facts.shipped_facts.cache_info().currsize)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"
