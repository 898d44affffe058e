"""From a timeline to the numbers that people ask for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from simulator.described.cluster.hardware import Provenance
from simulator.engine.replay import replay
from simulator.program.build import build_program
from simulator.program.ir import COMMUNICATION, Category
from simulator.program.layer.model_totals import model_flop_per_token
from simulator.program.price.executed_flop import hardware_flop_per_token
from simulator.results.simulation import run_step
from simulator.results.summary import summarise
from simulator.results.views.plain_data import result_to_dict, source_counts
from tests.jobs import gpt_model, jobs, small_job

few = settings(max_examples=30, deadline=None)


@given(jobs())
@few
def test_rates_follow_from_the_step_time(job):
    result = run_step(job)
    tokens_per_s = job.batch.global_batch * job.batch.seq_len / result.step_time_s
    assert result.tokens_per_s_per_gpu * job.cluster.gpus == pytest.approx(tokens_per_s)
    flop = model_flop_per_token(job.model, job.batch.seq_len)
    assert result.model_tflops_per_gpu == pytest.approx(result.tokens_per_s_per_gpu * flop / 1e12)
    # The round-number device peaks at 1 TFLOP/s.
    assert result.mfu == pytest.approx(result.model_tflops_per_gpu)


@given(jobs())
@few
def test_the_breakdown_sums_to_the_step_and_names_its_exposed_communication(job):
    result = run_step(job)
    assert sum(result.breakdown_s.values()) == pytest.approx(result.step_time_s, rel=1e-12)
    assert result.exposed_comm_s == {
        category: s for category, s in result.breakdown_s.items() if category in COMMUNICATION
    }
    bubble = result.breakdown_s.get(Category.BUBBLE, 0.0)
    assert result.bubble_fraction == bubble / result.step_time_s
    assert 0 <= result.bubble_fraction < 1


def test_mfu_without_the_mask_counts_half_of_the_scores_and_the_diagonal():
    job = small_job()
    result, s = run_step(job), job.batch.seq_len
    whole, seen = (model_flop_per_token(job.model, s, masked=masked) for masked in (True, False))
    heads, size, layers = job.model.heads, job.model.head_dim, job.model.layers
    left_out = 12 * layers * heads * size * (s - (s + 1) / 2)
    assert whole - seen == pytest.approx(left_out)
    assert result.mfu_causal is not None
    assert result.mfu_causal / result.mfu == pytest.approx(seen / whole)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_hfu_counts_what_recomputation_repeats(recompute):
    job = small_job(gpt_model(), recompute=recompute, attention="unfused")
    result = run_step(job)
    extra = hardware_flop_per_token(job) / model_flop_per_token(job.model, 64)
    assert result.hfu / result.mfu == pytest.approx(extra)
    assert (extra > 1) == (recompute != "none")


@given(jobs())
@few
def test_the_lower_bound_is_never_above_the_simulation(job):
    bound = run_step(job, "replay")
    assert bound.step_time_s <= run_step(job).step_time_s * (1 + 1e-12)
    assert bound.step_time_s == summarise(job, replay(build_program(job))).step_time_s


def test_a_utilisation_above_one_is_impossible_on_exact_kernels():
    assert 0 < run_step(small_job()).mfu <= run_step(small_job()).hfu <= 1


def test_the_report_is_json_with_the_promised_fields():
    job = small_job(gpus=2, pp=2)
    document = json.loads(json.dumps(result_to_dict(run_step(job), job)))
    assert {
        "schema_version", "step_time_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu",
        "hfu", "bubble_fraction", "breakdown_s", "exposed_comm_s", "memory", "fits", "sources",
    } <= set(document)  # fmt: skip
    assert sum(document["breakdown_s"].values()) == pytest.approx(
        document["step_time_s"], rel=1e-12
    )
    assert [memory["stage"] for memory in document["memory"]] == [0, 1]
    for memory in document["memory"]:
        assert sum(memory["by_owner"].values()) == pytest.approx(memory["peak_allocated_bytes"])


def test_a_job_fits_if_its_fullest_stage_does():
    """1 GiB per device; 16 to 20 bytes for each of 100 million parameters do not fit."""
    small = small_job()
    assert result_to_dict(run_step(small), small)["fits"]
    large = small_job(gpt_model(hidden=4096, ffn_hidden=16384, heads=8, kv_heads=8, layers=1))
    assert not result_to_dict(run_step(large), large)["fits"]


def test_sources_count_the_numbers_of_the_profile_by_kind():
    job = small_job()
    kinds = ["measured", "assumed", "measured"]
    provenance = {
        f"number.{i}": Provenance(kind=kind, reference="test") for i, kind in enumerate(kinds)
    }
    profile = job.cluster.profile.model_copy(update={"provenance": provenance})
    cluster = job.cluster.model_copy(update={"profile": profile})
    counts = source_counts(job.model_copy(update={"cluster": cluster}))
    assert counts == {"measured": 2, "assumed": 1}
