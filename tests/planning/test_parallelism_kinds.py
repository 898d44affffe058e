"""Is each strategy taken at its best, and does the best plan of all belong to the best one?"""

from __future__ import annotations

import pytest

from reports.make.strategies.strategy_map import build_strategy_map_figure
from reports.make.strategies.which_strategy import (
    SITUATIONS,
    map_cell,
    situation_job,
    situation_section,
    verdict,
)
from simulator.described.load import job_from_document
from simulator.planning.compared_strategies import FAMILIES, compare_families
from simulator.planning.search.search import search_plans
from simulator.planning.search.space import plan_space
from simulator.results.fit_probability import EVEN
from simulator.results.simulation import run_step


def job(gpus: int = 8, memory: str = "80 GiB", **network):
    return job_from_document(
        {
            "model": {"layers": 4, "hidden": 1024, "heads": 8, "ffn_hidden": 4096, "vocab": 32000},
            "cluster": {
                "profile": "h100-sxm-80gb",
                "gpus": gpus,
                "device": {"memory": memory},
                **({"network": network} if network else {}),
            },
            "batch": {"global": 16, "seq_len": 512},
            "plan": {"stack": "torchtitan"},
        }
    )


EXPERTS = {"experts": {"count": 8, "top_k": 2, "ffn_hidden": 4096}, "gated_mlp": True}
MIXTURE = job().replace({f"model.{field}": value for field, value in EXPERTS.items()})
JOBS = {
    "dense": job(),
    "mixture": MIXTURE,
    "little memory": job(memory="2.4 GiB"),
    "more ranks than sequences": job().replace(
        {"batch.global": 2, "batch.seq_len": 8192, "plan.cp": 4}
    ),
    "data parallelism only": job().replace({"plan.stack": "deepspeed"}),
}
FEWER = {"plan.recompute": ["none", "full"], "batch.micro": [1, 2]}
"""So that tests take seconds."""


@pytest.mark.parametrize("case", JOBS)
def test_every_plan_belongs_to_exactly_one_family(case):
    space = plan_space(JOBS[case], FEWER)
    homes = sum(family.plans(space).astype(int) for family in FAMILIES.values())
    assert len(homes) > 10
    assert (homes == 1).all()


@pytest.mark.parametrize("case", JOBS)
def test_the_best_family_has_the_best_plan_of_all(case):
    results = compare_families(JOBS[case], FEWER, risk=EVEN)
    best = search_plans(JOBS[case], FEWER, risk=EVEN).choices[0]
    assert results[0].choice.step_time_s == best.step_time_s


def test_virtual_stages_context_ranks_and_sharded_tensor_parallelism_are_tried():
    dense, long, tight = (
        {
            each.family.name: each
            for each in compare_families(JOBS[case], {**FEWER, **vary}, risk=EVEN)
        }
        for case, vary in (
            ("dense", {"plan.zero": [1]}),
            ("more ranks than sequences", {"plan.zero": [1]}),
            ("little memory", {"plan.zero": [0, 3]}),
        )
    )
    assert dense["PP + DP"].choice.changes["plan.vpp"] > 1
    assert "vpp" in dense["PP + DP"].plan_text
    assert long["ZeRO-1"].choice.changes["plan.cp"] > 1
    assert "cp" in long["ZeRO-1"].plan_text
    assert tight["TP + DP"].choice.changes["plan.zero"] == 3


def test_a_stack_without_model_parallelism_is_offered_none():
    results = {each.family.name: each for each in compare_families(JOBS["data parallelism only"])}
    assert results["TP + DP"].obstacle == "the job's stack has no model parallelism"
    assert results["ZeRO-1"].choice is not None


def test_a_stack_without_a_pipeline_is_offered_tensor_parallelism_alone():
    start = job().replace({"plan.stack": "trl"})
    results = {each.family.name: each for each in compare_families(start, FEWER)}
    assert results["PP + DP"].obstacle == "the job's stack has no pipeline"
    assert results["TP + DP"].choice is not None


def test_a_kind_that_may_fit_names_its_nearest_plan_and_how_likely_that_fits():
    """The answer is what running its only plan says."""
    only = {"plan.zero": [0], "plan.recompute": ["none"], "batch.micro": [1], "plan.tp": [1]}
    start = job().replace({"plan.zero": 0})
    held = run_step(start, "replay").peak_device_bytes
    start = start.replace({"cluster.device.memory": f"{1.08 * held / 2**30} GiB"})
    results = {each.family.name: each for each in compare_families(start, only, risk=0.001)}
    fits = run_step(start, "replay").fits_probability
    assert EVEN < fits < 0.999
    assert results["DDP"].obstacle == f"dp8 ZeRO 0 micro 1 is {100 * fits:.0f} % likely to fit"


def test_what_is_varied_narrows_every_family():
    results = compare_families(job(), {"plan.tp": [1], "batch.micro": [1]})
    chosen = [each.choice for each in results if each.choice]
    assert {choice.changes["batch.micro"] for choice in chosen} == {1}
    assert all(each.choice is None for each in results if each.family.has_tp)


def test_families_are_ranked_and_those_without_a_plan_come_last():
    results = compare_families(job(gpus=1))
    assert results[0].family.name == "DDP"
    assert results[0].choice.dp == 1
    assert all(each.choice is None and each.obstacle for each in results[1:])


def test_the_plan_of_a_mixture_says_over_how_many_ranks_its_experts_are_spread():
    results = compare_families(MIXTURE, FEWER)
    chosen = [(each.plan_text, each.choice.changes["plan.ep"]) for each in results if each.choice]
    assert max(ep for _, ep in chosen) > 1
    for text, ep in chosen:
        assert (f"ep{ep} " in text) == (ep > 1)


def test_a_model_too_large_for_a_gpu_is_divided():
    memory = "2.5 GiB"
    results = {each.family.name: each for each in compare_families(job(memory=memory), risk=EVEN)}
    assert results["DDP"].choice is None
    assert results["DDP"].obstacle == "does not fit into memory"
    assert any(each.choice for each in results.values())


def test_a_slow_network_turns_plain_data_parallelism_into_the_wrong_choice():
    fast, slow = (
        map_cell(compare_families(job(gpus=16, fabric={"nics_per_node": 1, "nic": nic}), FEWER))
        for nic in ("3200 Gbit/s", "1 Gbit/s")
    )
    assert slow[1] > fast[1] >= 1
    assert FAMILIES[slow[0]].has_tp or FAMILIES[slow[0]].has_pp


def test_the_report_shows_every_family_and_says_what_to_take():
    base = job()
    results = compare_families(base)
    text = situation_section(SITUATIONS[2], base, results, verdict(base, results))
    assert all(f"| {name} |" in text for name in FAMILIES)
    assert f"**Simulated: {results[0].family.name}" in text


def test_where_nothing_fits_the_nearest_change_is_named():
    small = job(gpus=1, memory="2.2 GiB")
    text = verdict(small, compare_families(small))
    assert text.startswith("nothing fits; the nearest that does is")


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name)
def test_every_situation_is_a_sound_job(situation):
    assert situation_job(situation.model, situation.cluster).cluster.gpus >= 1


def test_the_map_has_a_cell_per_model_and_speed():
    cells = {("a", 10): ("DDP", 1.0), ("a", 100): ("TP + DP", 2.0), ("b", 10): ("", float("inf")),
             ("b", 100): ("PP + DP", float("inf"))}  # fmt: skip
    figure = build_strategy_map_figure("map", list(FAMILIES), ["a", "b"], [10, 100], cells)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["nothing fits", "PP + DP\nDP does not fit", "DDP\n1.00 x", "TP + DP\n2.00 x"]
