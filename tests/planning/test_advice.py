"""Advice: gains are simulated, and numbers that matter are found by changing them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

import simulator as sim
from simulator.planning.changes.helpful_changes import what_ifs
from simulator.planning.changes.plan_reasons import begin_reasons, reasons
from simulator.planning.changes.profile_numbers import influences
from simulator.planning.search.search import search_plans
from simulator.program.ir import Category
from simulator.results.fit_probability import DEFAULT_RISK

JOB = """
    model: {base: llama3.1-8b, layers: 8}
    cluster: {profile: h100-sxm-80gb, gpus: 16}
    batch: {global: 16, seq_len: 2048}
    plan: {tp: 2, pp: 4, recompute: full}
"""


@pytest.fixture
def job(write):
    return sim.load_job(write(JOB))


@pytest.fixture(scope="module")
def found():
    """What changes of the job give."""
    return what_ifs(sim.load_job(yaml.safe_load(JOB)))


def test_every_gain_is_what_simulating_the_changed_job_gives(job, found):
    base = sim.simulate(job)
    assert len(found) >= 5
    for each in found:
        changed = sim.simulate(job.replace(each.changes))
        rates = changed.tokens_per_s_per_gpu / base.tokens_per_s_per_gpu
        assert each.gain == pytest.approx(rates - 1)
        assert each.step_time_s == changed.step_time_s
        assert each.fits == changed.fits


def test_changes_are_in_the_order_of_their_gain_and_say_what_they_change(found):
    gains = [each.gain for each in found]
    assert gains == sorted(gains, reverse=True)
    words = {each.words: each.changes for each in found}
    assert words["raising microbatches from 8 to 16"] == {"batch.global": 32}
    assert words["changing recompute from full to none"] == {"plan.recompute": "none"}
    assert words["lowering pp from 4 to 2"] == {"plan.pp": 2}


def test_dropping_recomputation_and_filling_the_pipeline_gain(found):
    gain = {each.words: each.gain for each in found}
    assert gain["changing recompute from full to none"] > 0.1
    assert gain["raising microbatches from 8 to 16"] > 0.05


def test_a_stack_with_data_parallelism_only_is_offered_no_other_degree(write):
    job = sim.load_job(
        write("""
        model: {base: llama3.1-8b, layers: 4}
        cluster: {profile: h100-sxm-80gb, gpus: 8}
        batch: {global: 16, seq_len: 2048}
        plan: {stack: torch-fsdp, zero: 3}
        """)
    )
    paths = {path for each in what_ifs(job) for path in each.changes}
    kept = {"batch.global", "batch.micro", "plan.compile", "plan.recompute", "plan.zero"}
    assert paths <= kept


MIXTURE = """
    model: {base: qwen3-30b-a3b, layers: 4}
    cluster: {profile: h100-sxm-80gb, gpus: 32}
    batch: {global: 64, seq_len: 4096}
    plan: {ep: 32}
"""


def test_experts_that_are_spread_over_nodes_are_tried_inside_one_and_by_another_dispatch(write):
    found = what_ifs(sim.load_job(write(MIXTURE)))
    gain = {each.words: each.gain for each in found}
    best = "lowering ep from 32 to 8", "changing ep_dispatch from all_to_all to hierarchical"
    assert {each.words for each in found[:2]} == set(best)
    assert gain["lowering ep from 32 to 8"] > gain["lowering ep from 32 to 16"] > 0.1
    assert gain["changing ep_dispatch from all_to_all to hierarchical"] > 0.1


def test_experts_that_are_divided_are_tried_spread_over_the_ranks_that_divide_them(write):
    job = sim.load_job(write(MIXTURE)).replace(**{"plan.tp": 8, "plan.ep": 1})
    gain = {each.words: each.gain for each in what_ifs(job)}
    assert gain["raising ep from 1 to 8"] > 0.3


def test_sharding_less_or_over_fewer_ranks_is_tried(write):
    job = sim.load_job(
        write("""
        model: {base: llama3.1-8b, layers: 4}
        cluster: {profile: h100-sxm-80gb, gpus: 256}
        batch: {global: 256, seq_len: 2048}
        plan: {stack: torch-fsdp, zero: 3}
        """)
    )
    words = {each.words: each.changes for each in what_ifs(job)}
    assert words["lowering zero from 3 to 1"] == {"plan.zero": 1}
    assert words["sharding over 8 ranks instead of 256"] == {"plan.zero_group": 8}
    within = job.replace({"plan.zero_group": 8})
    words = {each.words: each.changes for each in what_ifs(within)}
    assert words["sharding over 256 ranks instead of 8"] == {"plan.zero_group": 0}


def test_an_update_on_the_cpus_is_named_and_tried_without(write):
    job = sim.load_job(
        write("""
        model: {base: llama3.1-8b, layers: 4}
        cluster: {profile: a100-sxm-80gb, gpus: 8}
        batch: {global: 8, seq_len: 2048}
        plan: {stack: deepspeed, zero: 2, offload: {optimizer: cpu}}
        """)
    )
    result = sim.simulate(job)
    advice = result.advice()
    share = result.breakdown_s[Category.OPTIMIZER] / result.step_time_s
    assert share > 0.4
    assert f"{100 * share:.1f} % optimizer" in advice.verdict
    assert "Compute-bound: 9" not in advice.verdict
    gain = {each.words: each.gain for each in advice.what_ifs}
    assert gain["offloading nothing"] > 0.4


@pytest.fixture(scope="module")
def numbers():
    """What the numbers of the profile decide of the job."""
    return influences(sim.load_job(yaml.safe_load(JOB)))


def test_a_worse_number_never_makes_the_step_shorter_and_none_costs_more_than_it_lost(numbers):
    shares = [each.slower_share for each in numbers]
    assert all(-1e-9 <= share <= 1 / 0.9 - 1 + 1e-9 for share in shares)
    assert shares == sorted(shares, reverse=True)
    paths = {each.path for each in numbers}
    assert {"kernels.gemm.bf16.efficiency", "network.scale_up.efficiency"} <= paths


def test_numbers_keep_their_sources(job, numbers):
    provenance = job.cluster.profile.provenance
    assert len(numbers) > 2
    for each in numbers:
        assert (each.kind, each.reference) == (
            provenance[each.path].kind,
            provenance[each.path].reference,
        )


def test_numbers_of_links_that_a_job_does_not_use_are_not_asked_about(write):
    job = sim.load_job(
        write("""
        model: {base: llama3.1-8b, layers: 2}
        cluster: {profile: h100-sxm-80gb, gpus: 1}
        batch: {global: 2, seq_len: 1024}
        """)
    )
    assert not [each for each in influences(job) if each.path.startswith("network.")]


def test_advice_ends_in_a_sentence_and_explains_a_misfit(job, found):
    counted: list[int] = []
    result = sim.simulate(job)
    advice = result.advice(on_trial=lambda: counted.append(1))
    assert advice.verdict.endswith(".")
    assert advice.misfit == ""
    assert advice.what_ifs
    assert advice.influences
    assert len(counted) == len(found) + len(advice.influences)


def test_advice_on_a_job_that_does_not_fit_says_what_would(job):
    large = job.replace(**{"cluster.device.memory": "4 GiB"})
    result = sim.simulate(large)
    assert not result.fits
    assert result.advice().misfit == result.explain_misfit() != ""


def test_other_recomputation_is_tried_without_what_only_the_old_one_has(job):
    named = job.replace({"plan.recompute": "selective", "plan.recompute_modules": ["mlp"]})
    counted = job.replace({"plan.recompute": "full", "plan.recompute_layers": 1})
    for start, other in ((named, "full"), (counted, "none")):
        now = start.plan.recompute
        words = {each.words for each in what_ifs(start)}
        assert f"changing recompute from {now} to {other}" in words


def test_a_change_that_reads_as_nothing_is_no_advice_unless_it_saves_memory_that_lacks(write):
    job = sim.load_job(
        write("""
        model: {base: llama3.1-8b, layers: 4}
        cluster: {profile: h100-sxm-80gb, gpus: 8}
        batch: {global: 8, seq_len: 4096}
        plan: {zero: 1}
        """)
    )
    small = job.replace({"cluster.device.memory": "18 GiB"})
    words = "raising zero from 1 to 2"
    assert abs({each.words: each.gain for each in what_ifs(job)}[words]) < 0.0005
    enough, too_little = (
        [each.words for each in sim.simulate(each).advice().what_ifs] for each in (job, small)
    )
    assert words not in enough
    assert words in too_little


def test_layers_are_dealt_anew_where_that_helps(write):
    """Four layers per stage, and the head takes as long as almost three."""
    heavy_head = sim.load_job(write(JOB)).replace({"model.layers": 16, "plan.recompute": "none"})
    dealt = [each for each in what_ifs(heavy_head) if "plan.layout" in each.changes]
    assert len(dealt) == 1
    layout = dealt[0].changes["plan.layout"]
    assert dealt[0].words.startswith("giving ")
    assert dealt[0].words.endswith(" layers to the stages")
    assert layout[-1] < 4
    assert sum(layout) == 16
    assert dealt[0].gain > 0.09
    knobs = [knob for knob in reasons(heavy_head).knobs if "plan.layout" in knob.changes]
    assert [knob.changes["plan.layout"] for knob in knobs] == [layout]
    again = what_ifs(heavy_head.replace(dealt[0].changes))
    assert all(each.gain <= 1e-9 for each in again if "plan.layout" in each.changes)


def test_reasons_of_a_plan_that_was_found_are_those_of_its_job_whoever_simulates_them(write):
    job = sim.load_job(write(JOB))
    found = search_plans(job, {"plan.pp": [2, 4], "plan.tp": [2]}).choices[0]
    alone = reasons(job.replace(found.changes))
    assert alone.knobs
    assert alone.links
    assert begin_reasons(job, found, DEFAULT_RISK, None)() == alone
    with ThreadPoolExecutor(1) as executor:
        assert begin_reasons(job, found, DEFAULT_RISK, executor, parts=3)() == alone


def test_no_layout_is_offered_where_even_is_best(write):
    no_head = sim.load_job(write(JOB)).replace({"model.vocab": 128, "model.layers": 16})
    assert not [each for each in what_ifs(no_head) if "plan.layout" in each.changes]


def test_a_job_that_shards_more_than_its_stack_is_offered_what_shards_no_more(write):
    job = sim.load_job(write(JOB)).replace({"plan.zero": 2})
    words = {each.words for each in what_ifs(job)}
    assert {"changing recompute from full to none", "lowering zero from 2 to 1"} <= words
    assert "raising zero from 2 to 3" not in words
