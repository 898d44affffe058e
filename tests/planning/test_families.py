"""Is each strategy taken at its best, and does the best plan of all belong to the best one?"""

from __future__ import annotations

import pytest

from simulator.planning.families import AXES, FAMILIES, compare_families
from simulator.planning.search import search_plans
from simulator.planning.which_strategy import (
    SITUATIONS,
    map_cell,
    situation_job,
    situation_section,
    verdict,
)
from simulator.plots.strategy_map import build_strategy_map_figure
from simulator.spec.load import job_from_document


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


def test_every_plan_belongs_to_exactly_one_family():
    for tp in (1, 2):
        for pp in (1, 4):
            stages = (0, 1, 2, 3) if tp == pp == 1 else (0, 1)
            for zero in stages:
                homes = [
                    each.name
                    for each in FAMILIES.values()
                    if (tp > 1, pp > 1) == (each.has_tp, each.has_pp) and zero in each.zero
                ]
                assert len(homes) == 1, (tp, pp, zero)


def test_the_best_family_has_the_best_plan_of_all():
    results = compare_families(job())
    axes = {**AXES, "plan.tp": [1, 2, 4, 8], "plan.pp": [1, 2, 4, 8], "plan.zero": [0, 1]}
    best = search_plans(job(), axes).choices[0]
    simple = [each for each in results if each.choice and max(each.family.zero) <= 1]
    assert simple[0].choice.step_time_s == best.step_time_s


def test_families_are_ranked_and_those_without_a_plan_come_last():
    results = compare_families(job(gpus=1))
    assert results[0].family.name == "DDP"
    assert results[0].choice.dp == 1
    assert all(each.choice is None and each.obstacle for each in results[1:])


def test_the_plan_of_a_mixture_says_over_how_many_ranks_its_experts_are_spread():
    experts = {"count": 8, "top_k": 2, "ffn_hidden": 4096}
    results = compare_families(job().replace({"model.experts": experts, "model.gated_mlp": True}))
    chosen = [(each.plan_text, each.choice.changes["plan.ep"]) for each in results if each.choice]
    assert max(ep for _, ep in chosen) > 1
    for text, ep in chosen:
        assert (f"ep{ep} " in text) == (ep > 1)


def test_a_model_too_large_for_a_gpu_is_divided():
    memory = "2.5 GiB"
    results = {each.family.name: each for each in compare_families(job(memory=memory))}
    assert results["DDP"].choice is None
    assert results["DDP"].obstacle == "does not fit into memory"
    assert any(each.choice for each in results.values())


def test_a_slow_network_turns_plain_data_parallelism_into_the_wrong_choice():
    fast, slow = (
        map_cell(compare_families(job(gpus=16, fabric={"nics_per_node": 1, "nic": nic})))
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
