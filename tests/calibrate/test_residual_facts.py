"""A run that is predicted without its source is predicted without what its errors taught."""

from __future__ import annotations

import pytest

from reports.make.accuracy.fact_gap import gap_section
from reports.make.fit.fit_training import LeftOut, cross_validation
from reports.make.fit.residual_facts import bare_rows
from reports.make.fit.training_response import CLOCKS, Response
from simulator.described.plan.shipped_stacks import STACKS, evidence_of_stack
from simulator.validate.published.published_runs import PublishedResult
from simulator.validate.published.row_facts import stated_facts
from tests.csv_files import write_rows
from tests.validate.published_jobs import ROW

FACTS = """
groups:
- {where: {id: "lab-*"}, job: {plan: {recompute: full}}, source: residuals, reference: errors}
- {where: {id: "lab-*"}, job: {plan: {overlap_tp: true}}, source: documentation, reference: a page}
"""


@pytest.fixture
def table(tmp_path):
    rows = [{**ROW, "id": name, "source": "a table"} for name in ("lab-1", "bridge25-1")]
    path = write_rows(rows, tmp_path / "runs.csv")
    path.with_suffix(".facts.yaml").write_text(FACTS)
    return path


def test_facts_found_in_residuals_are_taken_away_and_documented_ones_stay(table):
    lab, _ = bare_rows(table)
    assert stated_facts(lab.row) == {"plan": {"overlap_tp": True}}
    assert lab.taken == ("plan.recompute: full",)


def test_a_fact_of_a_framework_is_taken_from_the_sources_it_was_found_with_alone(table):
    lab, bridge = bare_rows(table)
    assert stated_facts(bridge.row) == {"plan": {"stack": {"fused_expert_extras": True}}}
    assert bridge.taken == ("megatron-core: fused_expert_extras",)
    assert "stack" not in stated_facts(lab.row)["plan"]


@pytest.mark.parametrize("name", STACKS)
def test_a_fact_found_in_residuals_names_the_sources_of_the_errors(name):
    found = [e.found_with for e in evidence_of_stack(name).values() if e.source == "residuals"]
    assert all(found)


def response(name: str, step_s: float) -> Response:
    row = {**ROW, "id": name, "seq_len": "8192", "tp": "1", "measured_step_s": "1"}
    return Response(row, tuple(step_s for _ in CLOCKS))


def test_cross_validation_predicts_the_run_without_its_facts():
    runs = [response("a-1", 1.0), response("b-1", 1.0)]
    bare = {"a-1": (response("a-1", 3.0), "a fact")}
    a, b = cross_validation(runs, bare)
    assert (a.predicted_step_s, a.with_facts_s, a.taken) == (3.0, 1.0, "a fact")
    assert (b.predicted_step_s, b.with_facts_s, b.taken) == (1.0, 1.0, "")


def test_the_gap_is_told_fact_by_fact():
    results = [
        PublishedResult(name, "A", "h100", 1.0, predicted_step_s=1.02, error_pct=2.0)
        for name in ("a-1", "b-1")
    ]
    left_out = {
        "a-1": LeftOut("a-1", True, 1.4, 1.1, "a fact"), "b-1": LeftOut("b-1", True, 1.0, 1.0),
    }  # fmt: skip
    lines = gap_section(results, left_out).splitlines()
    assert lines[-1] == "| a fact | a | 1 | 2.0 | 10.0 | 40.0 |"
    assert "| all | 2 | 2.0 | 5.0 | 20.0 |" in lines[-2]
