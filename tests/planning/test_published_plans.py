"""Do the reports compare like with like?"""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.make.planning.planning_report import RECIPES
from reports.make.planning.published_campaigns import campaigns_section, published_campaigns
from reports.make.planning.published_recipes import (
    options_of_its_time,
    plan_text,
    published_recipes,
    recipes_section,
)
from simulator.described.load import job_from_document, load_job
from simulator.validate.published.published_rows import job_document
from simulator.validate.published.published_runs import read_rows

DATA = Path(__file__).parents[2] / "reports" / "data"


@pytest.mark.parametrize("path", sorted((DATA / "campaigns").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_campaign_says_its_tokens_and_goodput(path):
    job = load_job(path)
    assert job.campaign.tokens
    assert job.campaign.goodput


def test_a_campaign_is_compared_in_gpu_hours(tmp_path):
    folder = tmp_path / "table"
    folder.mkdir()
    (folder / "small.yaml").write_text(
        "model: {base: llama3.1-8b, layers: 2}\n"
        "cluster: {profile: h100-sxm-80gb, gpus: 8}\n"
        "batch: {global: 8, seq_len: 2048}\n"
        "campaign: {tokens: 1B, goodput: 0.5}\n"
    )
    table = tmp_path / "table.csv"
    table.write_text(
        "name,job,published_gpu_hours,published_days,source,remark\n"
        "A,small,10,,a paper,a remark\nB,small,,0.5,a paper,a remark\n"
    )
    by_hours, by_days = published_campaigns(table)
    assert by_days.published_gpu_hours == 0.5 * 24 * 8
    assert by_hours.error == pytest.approx(by_hours.predicted_gpu_hours / 10 - 1)
    # At the implied goodput the prediction would be what was published.
    work_hours = by_hours.found.time.work_s * 8 / 3600
    assert work_hours / by_hours.implied_goodput == pytest.approx(10)
    text = campaigns_section([by_hours, by_days])
    assert "| A | 8 x h100-sxm-80gb | 0.001 T |" in text
    assert "- **B**: a paper. A remark." in text


def test_the_recipes_are_rows_of_the_table_and_have_options():
    rows = {row["id"]: row for row in read_rows(DATA / "runs_open.csv")}
    jobs = [job_from_document(job_document(rows[name])) for name in RECIPES]
    assert len(set(RECIPES)) == len(RECIPES) == 10
    for job in jobs:
        assert job.plan.zero in options_of_its_time(job)["plan.zero"]


def test_a_published_plan_is_compared_with_one_that_is_no_slower():
    (recipe,) = published_recipes(DATA / "runs_open.csv", ["simumax-001"])
    assert recipe.ratio >= 1 - 1e-9
    text = recipes_section([recipe])
    assert f"| {plan_text(recipe.job)} |" in text
