"""What does an allocator reserve where sequences are of several lengths?"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.described.plan.plan_blocks import AllocatorSettings
from simulator.results.allocator.exchanges import (
    Exchange,
    one_after_another,
    reserved_bytes,
    told_apart,
)
from simulator.results.shorter_sequences import (
    in_several_orders,
    microbatch_lengths,
    shorter_programs,
)
from simulator.results.simulation import run_step

MIB = 2**20
SHORT, LONG = (told_apart([Exchange((n * MIB,), (n * MIB,))]) for n in (30, 50))
"""Steps of one block each."""
SEQ_LEN = 512


def job_of(lengths: dict[str, Any] | None, *, micro: int = 1) -> Job:
    """Its sequences are so long at most."""
    model = {"name": "small", "layers": 2, "hidden": 256, "heads": 4, "kv_heads": 4,
             "ffn_hidden": 1024, "vocab": 32000}  # fmt: skip
    batch = {"global": 4 * micro, "micro": micro, "seq_len": SEQ_LEN, "lengths": lengths}
    cluster = {"profile": "h100-sxm-80gb", "gpus": 1}
    return job_from_document(
        {"model": model, "cluster": cluster, "batch": batch, "plan": {"stack": "torch"}},
        source="job.yaml",
    )


def reserved(job: Job) -> float:
    return run_step(job, "replay").memory[0].peak_reserved_bytes


@pytest.mark.parametrize(("steps", "most"), [([SHORT, LONG], 80), ([LONG, SHORT], 50)])
def test_a_block_of_a_short_sequence_serves_no_longer_one_but_the_other_way_round(steps, most):
    assert reserved_bytes(one_after_another(steps), AllocatorSettings(), steps=3) == most * MIB


def test_expandable_segments_grow_for_the_longer_one():
    grows = AllocatorSettings(expandable_segments=True)
    assert reserved_bytes(one_after_another([SHORT, LONG]), grows, steps=3) == 60 * MIB


def test_orders_put_the_longest_somewhere_among_the_others():
    orders = [*in_several_orders(LONG, [SHORT] * 8)]
    most = [reserved_bytes(each, AllocatorSettings(), steps=3) / MIB for each in orders]
    assert set(most) <= {50, 80}
    assert most.count(80) > most.count(50)


def test_a_job_without_lengths_runs_nothing_beside_its_step():
    assert shorter_programs(job_of(None)) == ()
    assert [*in_several_orders(LONG, [])] == [LONG]


def test_lengths_that_are_all_as_long_as_the_longest_change_nothing():
    assert reserved(job_of({"values": [SEQ_LEN]})) == reserved(job_of(None))


def test_packed_sequences_are_all_full():
    lengths = {"values": [64], "layout": "packed"}
    assert reserved(job_of(lengths)) == reserved(job_of(None))


def test_shorter_sequences_leave_what_the_longest_cannot_use():
    assert reserved(job_of({"values": [200, 300, 400]})) > reserved(job_of(None))


def test_lengths_stand_for_equal_parts_of_all_and_are_padded_to_eight_tokens():
    lengths = microbatch_lengths(job_of({"values": [101, 203, 305, 407]}))
    assert lengths == (104, 104, 208, 208, 312, 312, 408, 408)


def test_lognormal_lengths_lie_about_their_median_and_are_cut_to_the_longest():
    lengths = microbatch_lengths(job_of({"lognormal": {"median": 256, "sigma": 1}}))
    assert all(a <= b for a, b in pairwise(lengths))
    assert lengths[3] < 256 < lengths[4]
    assert lengths[4] == math.ceil(256 * math.exp(0.157310685) / 8) * 8
    assert lengths[-1] == SEQ_LEN


def test_a_microbatch_is_as_long_as_its_longest_sequence():
    one, four = (
        microbatch_lengths(job_of({"values": [*range(64, SEQ_LEN, 8)]}, micro=micro))
        for micro in (1, 4)
    )
    assert sum(four) > sum(one)
    assert four[0] > one[0]
