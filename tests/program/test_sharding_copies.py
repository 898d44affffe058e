"""What FSDP2 copies between gathered buffers, whole parameters and what it reduces."""

from __future__ import annotations

import pytest

from simulator.cost.rates import memory_bound_s
from simulator.described.job import Job
from simulator.described.model import Experts
from simulator.program.grid.stage_layers import Slice
from simulator.program.layer.tensors import ParameterTensor, TensorRole, padded_shard_numel
from simulator.program.price.stage_cost import SHARDING_COPY, StageCosts
from simulator.program.states.resident import slice_parameters
from simulator.results.simulation import run_step
from simulator.results.traffic import rank_collectives
from simulator.schedule.slots import Phase
from tests.jobs import small_job, small_model

LAYER, EMBEDDING = Slice(0, 1), Slice(0, 0, has_embedding=True)


def a_job(**plan) -> Job:
    return small_job(gpus=8, global_batch=8, stack="torch", zero=3, **plan)


def copied_s(job: Job, run: Slice, phase: Phase) -> float:
    parts = StageCosts(job).work(run, phase).parts
    return sum(part.seconds for part in parts if part.name == SHARDING_COPY)


@pytest.mark.parametrize(
    ("run", "reshards", "again"),
    [(LAYER, None, 4), (LAYER, False, 0), (EMBEDDING, None, 0), (EMBEDDING, True, 0)],
)
def test_backward_copies_out_only_what_it_gathers_again(run, reshards, again):
    job = a_job(reshard_after_forward=reshards)
    numel, profile = slice_parameters(job, run).total, job.cluster.profile
    assert copied_s(job, run, Phase.FORWARD) == memory_bound_s(profile, 4 * numel)
    assert copied_s(job, run, Phase.BACKWARD) == memory_bound_s(profile, (again + 6) * numel)


def test_gathers_of_torchs_own_sharding_run_beside_the_layers():
    assert a_job().choices.overlaps_gather


@pytest.mark.parametrize(("shape", "numel"), [((28, 128), 3584), ((3, 5), 16)])
def test_a_bias_is_padded_as_the_one_axis_that_it_has_in_torch(shape, numel):
    bias = ParameterTensor("attention.query.bias", shape, role=TensorRole.BIAS)
    assert padded_shard_numel(bias, 1, 16) == numel


def test_ranks_that_hold_different_experts_add_up_their_norms():
    model = small_model(experts=Experts(count=8, top_k=2, ffn_hidden=32))
    job = small_job(model, gpus=8, global_batch=8, stack="torch", zero=0, ep=8)
    norms = [
        each
        for each in rank_collectives(run_step(job).timeline.program)
        if each.name == "gradient_norm"
    ]
    assert [(each.ranks, each.num_bytes) for each in norms] == [(8, 4.0)]


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD_INPUT])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_how_long_a_run_takes_is_the_same_to_the_last_bit_without_its_parts(phase, recompute):
    costs = StageCosts(a_job(recompute=recompute))
    for run in (LAYER, EMBEDDING, Slice(0, 3), Slice(1, 4, has_head=True, has_loss=True)):
        work = StageCosts(costs.job).work(run, phase)
        assert costs.seconds(run, phase) == work.seconds > 0
