"""Do sampled steps spread as order statistics and full simulations say?"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

import simulator as sim
from simulator.described.job import Job
from simulator.described.variation import ExpertVariation, Lengths, Perturbation, Variation
from simulator.engine.dependencies import dependencies
from simulator.engine.des import simulate_program
from simulator.engine.sampled_replay import Pipelines
from simulator.errors import InputError
from simulator.planning.distribution import step_sampler
from simulator.planning.distribution.draws import (
    DrawnMicrobatches,
    RoutingTables,
    largest_of_normals,
)
from simulator.planning.distribution.sampled_steps import step_distribution
from simulator.program.build import build_program
from simulator.program.ir import COMMUNICATION, Category, Program, Scope
from simulator.results.simulation import run_step
from tests.jobs import jobs as any_jobs
from tests.jobs import network_profile, small_job, small_model

EXPERTS = {"count": 8, "top_k": 2, "ffn_hidden": 128}


def varied(job: Job, **variation: Any) -> Job:
    return job.model_copy(update={"variation": Variation.model_validate(variation)})


def of_batch(job: Job, **fields: Any) -> Job:
    return job.model_copy(update={"batch": job.batch.model_copy(update=fields)})


def of_lengths(job: Job, *values: int) -> Job:
    return of_batch(job, lengths=Lengths(values=values))


def pipeline_job(**plan: Any) -> Job:
    sizes = {"pp": 2, "tp": 2, "schedule": "1f1b", **plan}
    return small_job(gpus=8, profile=network_profile(), global_batch=16, **sizes)


def mean_largest_lognormal(count: int, sigma: float) -> float:
    """Mean of the largest of some lognormals of median 1, integrated over its quantile."""
    parts = 200_000
    quantiles = (((k + 0.5) / parts) ** (1 / count) for k in range(parts))
    return fmean(math.exp(sigma * NormalDist().inv_cdf(q)) for q in quantiles)


def test_the_larger_of_two_lognormals_has_the_mean_of_the_closed_form():
    """E[max] = 2 exp(s^2 / 2) Phi(s / sqrt(2))."""
    sigma = 0.3
    drawn = np.exp(sigma * largest_of_normals(2))
    exact = 2 * math.exp(sigma**2 / 2) * NormalDist().cdf(sigma / math.sqrt(2))
    assert drawn.mean() == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(
    ("count", "mean"), [(1, 0.0), (2, 1 / math.sqrt(math.pi)), (8, 1.42360), (1000, 3.24144)]
)
def test_the_largest_of_some_normals_has_the_mean_that_tables_give(count, mean):
    """H. L. Harter, Expected values of normal order statistics, Biometrika 48, 1961."""
    assert largest_of_normals(count).mean() == pytest.approx(mean, abs=2e-4)


@pytest.mark.parametrize("zero", [1, 3])
def test_steps_without_spread_are_the_simulated_step(zero):
    job = varied(pipeline_job(zero=zero, pp=1), compute={"sigma": 0}, links={"sigma": 0})
    found = step_distribution(job, 3)
    assert found.steps_s == pytest.approx(run_step(job).step_time_s, rel=1e-9)
    assert found.control.largest_difference < 1e-9


def jittered(program: Program, sigma: float, draw: random.Random) -> Program:
    """Every rank of an operation draws a factor on what it computes; the slowest counts."""
    operations = []
    for operation in program.operations:
        work = operation.work
        computed_s = sum(
            part.seconds
            for part in work.parts
            if part.category not in COMMUNICATION and part.category is not Category.HOST
        )
        factor = max(draw.lognormvariate(0, sigma) for _ in operation.lanes)
        work = replace(work, seconds=work.seconds + (factor - 1) * computed_s)
        operations.append(replace(operation, work=work))
    return replace(program, operations=operations)


def test_the_mean_of_a_jittered_1f1b_is_that_of_simulations_of_every_rank():
    sigma, job = 0.3, pipeline_job()
    program, draw = build_program(job, unfolded=True), random.Random(1)
    simulated_s = [simulate_program(jittered(program, sigma, draw)).step_time_s for _ in range(60)]
    sampled = step_distribution(varied(job, compute={"sigma": sigma}), 2000)
    assert sampled.step_time_s.mean == pytest.approx(fmean(simulated_s), rel=0.01)
    assert sampled.amplification > 1.05


def test_stragglers_grow_with_the_ranks_as_the_largest_of_lognormals():
    """A GPU keeps its factor for the step, so only the slowest GPU of all counts."""
    sigma = 0.2
    job = small_job(gpus=16, profile=network_profile(), global_batch=16, zero=0)
    scales = step_distribution(
        varied(job, compute={"sigma": sigma, "lasting": 1.0}), 4000
    ).stragglers
    assert [each.gpus for each in scales] == [1, 2, 4, 8, 16]
    one, last = mean_largest_lognormal(2, sigma), mean_largest_lognormal(16, sigma)
    assert (scales[-1].amplification - 1) / (scales[1].amplification - 1) == pytest.approx(
        (last - 1) / (one - 1), rel=0.12
    )


def test_a_slow_gpu_anywhere_slows_the_whole_step():
    """One GPU in fifty is half as fast: a step is slow with the probability that any of 8 is."""
    job = varied(pipeline_job(), slow={"rate": 0.02, "slowdown": 1.0})
    found = step_distribution(job, 4000)
    slow_share = float((found.steps_s > 1.05 * found.typical_step_s).mean())
    assert slow_share == pytest.approx(1 - 0.98**8, abs=0.02)


def test_some_pipelines_stand_for_all(monkeypatch):
    job = small_job(gpus=32, profile=network_profile(), global_batch=64, pp=2)
    job = varied(job, compute={"sigma": 0.1}, slow={"rate": 0.01, "slowdown": 0.5})
    whole = step_distribution(job, 1000)
    monkeypatch.setattr(step_sampler, "_MOST_DRAWN", 1)
    part = step_distribution(job, 1000)
    assert part.step_time_s.mean == pytest.approx(whole.step_time_s.mean, rel=0.01)
    assert part.step_time_s.p95 == pytest.approx(whole.step_time_s.p95, rel=0.03)
    assert part.stragglers[1].mean_step_s == pytest.approx(
        whole.stragglers[1].mean_step_s, rel=0.02
    )


def test_the_same_seed_gives_the_same_steps_and_another_gives_others():
    job = varied(pipeline_job(), compute={"sigma": 0.1, "lasting": 0.5}, seed=3)
    first, again, other = (step_distribution(job, 20, seed) for seed in (None, 3, 4))
    assert first.to_dict() == again.to_dict()
    assert not np.array_equal(first.steps_s, other.steps_s)


def longest_path_s(program: Program, durations_s: Sequence[float]) -> float:
    """End of the last operation if each starts once all are done that it waits for [s]."""
    waiting, followers = dependencies(program)
    counts, starts_s = list(waiting), [0.0] * len(waiting)
    ready = [index for index, count in enumerate(counts) if not count]
    last_s = 0.0
    while ready:
        index = ready.pop()
        end_s = starts_s[index] + durations_s[index]
        last_s = max(last_s, end_s)
        for follower in followers[index]:
            starts_s[follower] = max(starts_s[follower], end_s)
            counts[follower] -= 1
            if not counts[follower]:
                ready.append(follower)
    return last_s


@given(any_jobs())
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_sampled_steps_are_the_longest_paths_one_at_a_time(job):
    assume(job.dp * job.plan.cp == 1)  # one pipeline, which waits for no other
    job = varied(job, compute={"sigma": 0.2, "lasting": 0.3}, links={"sigma": 0.1})
    sampler = step_sampler.StepSampler(job, seed=1)
    program, found_s = sampler.costs.program, sampler.ends(3)[0]
    durations_s = step_sampler._Chunk(sampler, 0, 3).durations_of([(0, 0), (0, 1), (0, 2)])
    expected_s = [longest_path_s(program, each) for each in durations_s.T.tolist()]
    assert found_s == pytest.approx(expected_s, rel=1e-12)


@pytest.mark.parametrize("varies", ["jitter", "lengths"])
def test_workers_sample_the_steps_of_one_process(varies, monkeypatch):
    monkeypatch.setattr(step_sampler, "_CHUNK", 40)
    job = varied(pipeline_job(), compute={"sigma": 0.3, "lasting": 0.5})
    if varies == "lengths":
        job = of_lengths(pipeline_job(), 16, 64)
    with ThreadPoolExecutor(2) as executor:
        spread = step_distribution(job, 400, executor=executor)
    assert spread.to_dict() == step_distribution(job, 400).to_dict()


def test_what_lasts_in_a_step_spreads_steps_wider_than_what_passes():
    passing, lasting = (
        step_distribution(
            varied(pipeline_job(), compute={"sigma": 0.1, "lasting": share}), 500
        ).steps_s.std()
        for share in (0.0, 0.9)
    )
    assert lasting > 1.5 * passing


def test_jitter_of_links_lengthens_what_waits_for_exchanges():
    found = step_distribution(varied(pipeline_job(), links={"sigma": 0.5}), 300)
    assert found.amplification > 1.01


def test_half_the_experts_receive_what_the_larger_part_of_a_stick_is():
    """Broken at an even place, the larger part of a stick is 3/4 of it in the mean."""
    job = small_job(small_model(experts=EXPERTS), gpus=2, profile=network_profile(), ep=2)
    tables = RoutingTables(job, ExpertVariation(microbatch=0.25), seed=0)
    assert tables.of_layers(1).mean() == pytest.approx(1.5, rel=0.01)
    assert tables.of_layers(4).mean() == pytest.approx(1.5, rel=0.01)
    assert tables.of_layers(4).std() == pytest.approx(tables.of_layers(1).std() / 2, rel=0.03)


def test_busy_experts_lengthen_steps_and_fill_memory():
    model = small_model(experts={**EXPERTS, "ffn_hidden": 4096})
    job = small_job(model, gpus=4, profile=network_profile(), ep=4, seq_len=4096, global_batch=8)
    even, uneven = (
        step_distribution(varied(job, experts={"microbatch": each}), 200) for each in (1e6, 1.0)
    )
    assert uneven.step_time_s.mean > even.step_time_s.mean
    assert uneven.peak_device_bytes.mean > 1.05 * even.peak_device_bytes.mean
    assert uneven.out_of_memory_probability > even.out_of_memory_probability


def test_experts_that_all_receive_the_same_change_next_to_nothing():
    job = small_job(small_model(experts=EXPERTS), gpus=4, profile=network_profile(), ep=4)
    found = step_distribution(varied(job, experts={"microbatch": 1e9}), 20)
    assert found.steps_s == pytest.approx(run_step(job).step_time_s, rel=3e-3)


@pytest.mark.parametrize("pp", [1, 2])
def test_equal_lengths_are_the_step_of_that_length(pp):
    job = small_job(gpus=2 * pp, profile=network_profile(), seq_len=64, pp=pp)
    found = step_distribution(of_lengths(job, 32), 5)
    short = run_step(of_batch(job, seq_len=32))
    assert found.steps_s == pytest.approx(short.step_time_s, rel=0.01)
    assert found.typical_step_s == pytest.approx(short.step_time_s, rel=0.01)
    assert found.peak_device_bytes.p95 == pytest.approx(short.peak_device_bytes, rel=1e-6)


def test_a_pipeline_waits_for_its_long_microbatches():
    job = of_lengths(pipeline_job(), 16, 64)
    found = step_distribution(job, 200)
    assert found.step_time_s.p5 < found.step_time_s.p95
    assert found.amplification > 1


def test_microbatches_in_flight_hold_the_mean_of_their_lengths():
    tokens = np.array([1.0, 5.0, 3.0, 1.0]).reshape(4, 1, 1)
    drawn = DrawnMicrobatches(tokens)
    assert drawn.kept(1).tolist() == [5.0]
    assert drawn.kept(2).tolist() == [4.0]
    assert drawn.kept(9).tolist() == [2.5]


def test_pipelines_of_one_group_wait_for_each_other_alone():
    labels = {Scope.SHARDS: np.array([0, 1, 0, 1]), Scope.WORLD: np.zeros(4, dtype=np.int64)}
    pipelines = Pipelines(labels, (4, 2))
    ends = np.array([[1.0, 8.0], [2.0, 7.0], [3.0, 6.0], [4.0, 5.0]])
    in_pairs = [[3.0, 8.0], [4.0, 7.0], [3.0, 8.0], [4.0, 7.0]]
    assert pipelines.slowest(ends, Scope.SHARDS).tolist() == in_pairs
    assert pipelines.slowest(ends, Scope.WORLD).tolist() == [[4.0, 8.0]]
    assert not pipelines.joins(Scope.PASS)


@pytest.mark.parametrize(
    ("variation", "plan", "rule"),
    [
        ({}, {}, "variation: contains nothing that varies"),
        ({"experts": {"microbatch": 5}}, {}, "variation.experts: needs a model with experts"),
        ({"links": {"sigma": 0.1}}, {"schedule": "pipedream"}, "steps that begin and end together"),
    ],
)
def test_what_is_not_modelled_is_refused_with_its_field(variation, plan, rule):
    job = varied(pipeline_job(zero=0, **plan), **variation)
    with pytest.raises(InputError, match=rule):
        step_distribution(job)


def test_perturbations_are_not_drawn():
    job = varied(pipeline_job(), links={"sigma": 0.1})
    slow = job.model_copy(update={"perturbations": (Perturbation(gpu=(0, 0), slowdown=0.1),)})
    with pytest.raises(InputError, match="perturbations"):
        step_distribution(slow)


def test_variation_changes_nothing_of_a_simulated_step():
    job = pipeline_job()
    changed = varied(job, compute={"sigma": 0.5})
    assert sim.simulate(changed).step_time_s == sim.simulate(job).step_time_s
