"""Which ranks of a pipeline hold the same is decided by layers and ends, not by their place."""

from __future__ import annotations

import simulator as sim
from simulator.program.states.pipeline_ranks import PipelineRanks
from simulator.program.states.resident import slice_parameters

LLAMA = "llama3.1-405b-16384xh100"
MIXED = {
    "model": "deepseek-v3",
    "cluster": {"profile": "h100-sxm-80gb", "gpus": 512},
    "batch": {"global": 256, "seq_len": 4096},
    "plan": {"pp": 8, "ep": 32},
}


def ranks_of(job):
    return PipelineRanks(job, job.choices.schedule)


def test_ranks_between_the_ends_hold_the_same_where_their_layers_are_as_many_and_equal():
    """126 layers on 16 stages: the first and the last have seven, and an end of the model."""
    ranks = ranks_of(sim.load_job(LLAMA, {"plan": {"tp": 8, "pp": 16}}))
    assert ranks.like == [0, *[1] * 14, 15]


def test_a_rank_with_dense_layers_is_unlike_one_whose_layers_have_experts():
    """The first three layers of DeepSeek-V3 have no experts, so the first rank is like no other."""
    ranks = ranks_of(sim.load_job(MIXED))
    assert ranks.like.count(0) == 1


def test_ranks_that_are_alike_hold_as_many_parameters_as_their_own_layers_have():
    for job in (sim.load_job(LLAMA), sim.load_job(MIXED)):
        ranks = ranks_of(job)
        for rank in range(ranks.stages):
            copied = ranks.copies_embedding
            runs = ranks.runs_of(rank)
            counts = [slice_parameters(job, run, tied_copy=copied) for run in runs]
            assert ranks.parameters(rank).total == sum(count.total for count in counts)
