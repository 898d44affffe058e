"""Is every entry of the list of single changes a change, of one decision, that a job could take?"""

from __future__ import annotations

from contextlib import suppress

import pytest

from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.planning.changes.single_changes import DECISIONS, Question, single_changes

EXPERTS = {"count": 8, "top_k": 2, "ffn_hidden": 1024}
MODEL = {"layers": 8, "hidden": 1024, "heads": 8, "ffn_hidden": 4096, "vocab": 32000}


def job(gpus=16, experts=None, batch=None, **plan):
    return job_from_document(
        {
            "model": {**MODEL, "gated_mlp": True, "experts": experts} if experts else MODEL,
            "cluster": {"profile": "h100-sxm-80gb", "gpus": gpus},
            "batch": {"global": 64, "seq_len": 8192, **(batch or {})},
            "plan": plan,
        }
    )


JOBS = {
    "dense in a pipeline": job(tp=2, pp=4, batch={"micro": 2}),
    "interleaved": job(pp=4, vpp=2, recompute="selective", recompute_modules=["mlp"]),
    "experts": job(experts=EXPERTS, ep=4),
    "experts under autocast": job(1, experts=EXPERTS, stack="trl", zero=0),
    "sharded weights": job(stack="torch-fsdp", zero=3, zero_group=8),
    "offloaded": job(8, stack="deepspeed", zero=2, offload={"optimizer": "cpu"}),
    "contexts": job(cp=2, tp=2, overlap_grad_reduce=False),
    "one GPU": job(1, stack="torch", batch={"micro": 8}),
}
each_job = pytest.mark.parametrize("start", JOBS.values(), ids=JOBS)


@each_job
@pytest.mark.parametrize("question", Question)
def test_a_candidate_changes_the_job_or_is_refused_by_a_rule(start, question):
    fields = []
    for change in single_changes(start, question):
        fields.append(dict(change.fields))
        with suppress(InputError):
            assert start.replace(change.fields) != start, change.words
    assert all(fields.count(each) == 1 for each in fields)


@each_job
def test_what_saves_memory_leaves_model_batch_and_number_formats_as_they_are(start):
    for change in single_changes(start, Question.SMALLER):
        assert change.keeps_learning
        blocks = {path.rpartition(".")[0] for path in change.fields}
        assert blocks <= {"plan", "plan.offload", "batch"}
        assert not {"batch.global", "batch.seq_len", "plan.precision"} & change.fields.keys()


@each_job
def test_a_decision_yields_only_what_it_is_registered_for(start):
    for decision in DECISIONS:
        for change in decision.changes(start):
            assert change.answers
            assert change.answers in decision.answers


def test_pipeline_stages_are_offered_only_where_the_stack_has_them():
    def stages(stack):
        found = single_changes(job(stack=stack), Question.SMALLER)
        return [change for change in found if "plan.pp" in change.fields]

    assert stages("megatron-core")
    assert not stages("trl")


def test_degrees_are_offered_in_both_directions_and_larger_ones_to_save_memory():
    start = JOBS["dense in a pipeline"]

    def degrees(question):
        found = (change.fields for change in single_changes(start, question))
        return [each["plan.tp"] for each in found if "plan.tp" in each]

    assert degrees(Question.FASTER) == [1, 4]
    assert degrees(Question.SMALLER) == [4]


def test_exchanges_are_offered_to_hide_only_where_there_are_any_and_they_do_not_hide_yet():
    def overlaps(start):
        found = (change.fields for change in single_changes(start, Question.FASTER))
        return {path for each in found for path in each if "overlap" in path}

    assert overlaps(JOBS["one GPU"]) == set()
    assert "plan.overlap_tp" in overlaps(JOBS["dense in a pipeline"])
    shown = JOBS["dense in a pipeline"].replace({"plan.overlap_tp": True})
    assert "plan.overlap_tp" not in overlaps(shown)
    assert "plan.overlap_grad_reduce" in overlaps(JOBS["contexts"])


def test_context_ranks_are_offered_for_speed_only_where_there_are_some():
    """Where there are none, they save memory and cost exchanges."""

    def contexts(start, question):
        found = (change.fields for change in single_changes(start, question))
        return [each["plan.cp"] for each in found if "plan.cp" in each]

    assert contexts(JOBS["dense in a pipeline"], Question.FASTER) == []
    assert contexts(JOBS["dense in a pipeline"], Question.SMALLER) == [2]
    assert contexts(JOBS["contexts"], Question.FASTER) == [1, 4]
    assert contexts(JOBS["contexts"], Question.SMALLER) == [4]


def offered(start, question):
    """Fields of every change that is a candidate for the question, by their paths."""
    return [dict(change.fields) for change in single_changes(start, question)]


@pytest.mark.parametrize("question", [Question.FASTER, Question.SMALLER, Question.UNSEARCHED])
def test_flash_attention_is_offered_where_the_job_has_another(question):
    flash = {"plan.attention": "flash"}
    assert flash in offered(job(attention="unfused"), question)
    assert flash in offered(job(stack="megatron-deepspeed", zero=1), question)
    assert flash not in offered(job(), question)
    assert flash not in offered(job(precision="fp32"), question)


@pytest.mark.parametrize("question", [Question.FASTER, Question.UNSEARCHED])
def test_experts_are_grouped_and_sent_by_node_where_a_rank_has_several_of_them(question):
    grouped = {"plan.stack.grouped_experts": True}
    by_node = {"plan.ep_dispatch": "hierarchical"}
    assert grouped in offered(JOBS["experts"], question)
    assert by_node in offered(JOBS["experts"], question)
    assert grouped not in offered(JOBS["experts"].replace(grouped), question)
    assert grouped not in offered(job(experts=EXPERTS, ep=8), question)
    assert grouped not in offered(job(experts=EXPERTS, stack="torchtitan", zero=3), question)
    assert by_node not in offered(JOBS["one GPU"], question)


def test_gradients_that_are_reduced_in_16_bits_already_are_not_told_to_be():
    """FSDP of accelerate reduces in the format of the products, which the stack says."""
    stack = {"base": "trl", "grad_reduce_precision": "bf16"}
    start = job(zero=3, stack=stack)
    fields = [dict(each.fields) for each in single_changes(start, Question.UNSEARCHED)]
    assert {"plan.grad_reduce_precision": "bf16"} not in fields
    plain = [dict(each.fields) for each in single_changes(job(), Question.UNSEARCHED)]
    assert {"plan.grad_reduce_precision": "bf16"} in plain
