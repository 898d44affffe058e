"""Does each cluster get its own fastest plan, and do equal steps share a search?"""

from __future__ import annotations

import math
from dataclasses import replace

from simulator.api.plan_answers import PlanAnswer
from simulator.described.load import job_from_document
from simulator.planning.campaign.capacity import Capacity, Refusal, compare_clusters
from simulator.planning.search import best_plans
from simulator.planning.search.best_plans import replanned
from simulator.planning.search.search import search_plans
from simulator.program.ir import Category


def small_job(gpus=4, **campaign):
    return job_from_document(
        {
            "model": {"layers": 2, "hidden": 512, "heads": 8, "ffn_hidden": 2048, "vocab": 32000},
            "cluster": {"profile": "h100-sxm-80gb", "gpus": gpus},
            "batch": {"global": 8, "seq_len": 1024},
            "plan": {"tp": 2, "recompute": "full"},
            "campaign": {"tokens": "2B", "goodput": 0.9, **campaign},
        }
    )


def test_each_cluster_runs_the_plan_that_a_search_of_its_own_finds():
    job = small_job()
    small, large = compare_clusters(job, ["h100-sxm-80gb"], [1, 8])
    for found, gpus in ((small, 1), (large, 8)):
        assert isinstance(found, Capacity)
        best = search_plans(small_job().replace({"cluster.gpus": gpus, "plan.tp": 1})).choices[0]
        assert found.step.step_time_s == best.step_time_s
        assert found.job.plan.recompute == "none"


def test_a_plan_that_is_kept_is_never_faster_than_the_best():
    job, names, sizes = small_job(), ["h100-sxm-80gb", "a100-sxm-80gb"], [2, 4]
    best = compare_clusters(job, names, sizes)
    kept = compare_clusters(job, names, sizes, keep_plan=True)
    assert all(each.job.plan.tp == 2 for each in kept)
    pairs = zip(best, kept, strict=True)
    assert all(mine.step.step_time_s <= own.step.step_time_s for mine, own in pairs)


def test_clusters_that_cannot_be_planned_say_so_in_their_place():
    odd, fine = compare_clusters(small_job(), ["h100-sxm-80gb"], [88, 4])
    assert isinstance(odd, Refusal)
    assert odd.gpus == 88
    assert isinstance(fine, Capacity)


def test_jobs_that_differ_in_their_campaign_alone_share_a_search(monkeypatch):
    searched = []

    def counted(job, **settings):
        searched.append(job)
        return search_plans(job, **settings)

    monkeypatch.setattr(best_plans, "search_plans", counted)
    jobs = [small_job(), small_job(tokens="3B"), small_job(2)]
    found = dict(replanned(jobs))
    assert len(searched) == 2
    assert found[0].job.plan == found[1].job.plan
    assert [found[n].job.campaign.tokens for n in (0, 1)] == [2 * 10**9, 3 * 10**9]


def test_where_no_plan_fits_the_reason_is_said():
    sizes = {"model.layers": 400, "model.hidden": 8192, "cluster.gpus": 1, "plan.tp": 1}
    large = small_job().replace(sizes)
    ((_, found),) = replanned([large])
    assert found.job is None
    assert "is 95 % likely to fit into 79.1 GiB; the smallest is 0 %" in found.reason


def test_what_sets_two_plans_apart_adds_up():
    """Three causes by name, and the rest in one."""
    job = small_job()
    search = search_plans(job)
    causes = [Category.FORWARD, Category.BACKWARD, Category.BUBBLE, Category.HOST]
    choices = [
        replace(
            search.choices[0],
            step_time_s=math.fsum(parts),
            breakdown_s=dict(zip(causes, parts, strict=True)),
        )
        for parts in ([2.0, 4.0, 1.0, 1.0], [2.4, 4.7, 1.5, 0.8])
    ]
    answer = PlanAnswer(job, 0.05, replace(search, choices=tuple(choices)), {}, None, None)
    (line,) = [each for each in answer.explanation() if each.startswith("Plan 2 takes")]
    assert line == (
        "Plan 2 takes 1.40 s longer than plan 1: backward +700 ms, bubble +500 ms, "
        "forward +400 ms, all else -200 ms"
    )
