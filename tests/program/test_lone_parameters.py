"""ZeRO-3 as DeepSpeed did it in 2021: every parameter has collectives of its own."""

from __future__ import annotations

import pytest

from simulator.program.build import build_program
from simulator.program.ir import Kind, Operation, Program, Stream
from simulator.spec.job import Job
from tests.jobs import free_latency_profile, gpt_model, small_job

RANKS, LAYERS = 8, 4
QKV, OUTPUT, UP, DOWN = 3 * 64 * 64, 64 * 64, 4 * 64 * 64, 4 * 64 * 64
EMBEDDING, POSITIONS = 1024 * 64, 64 * 64
SMALL = 4 * 64 + (3 + 1 + 4 + 1) * 64
"""Elements of two norms and four biases of a layer."""


MODEL = gpt_model(
    kv_heads=8, norm_bias=True, qkv_bias=True, attention_output_bias=True, mlp_bias=True,
    tied_embeddings=True,
)  # fmt: skip


def zero_job(*, recompute: str = "none", **facts: object) -> Job:
    stack = {"base": "deepspeed-2021", "whole_below_numel": 1000, **facts}
    return small_job(
        MODEL, gpus=RANKS, global_batch=RANKS, zero=3, recompute=recompute, stack=stack,
        profile=free_latency_profile(),
    )  # fmt: skip


def issued(program: Program, kind: Kind) -> list[Operation]:
    return [op for op in program.operations if op.kind is kind]


def elements(operations: list[Operation]) -> list[float]:
    return [c.num_bytes / 2 for op in operations for c in op.work.collectives]


def test_every_large_parameter_is_gathered_by_itself_and_small_ones_together_after_the_update():
    *uses, last = issued(build_program(zero_job()), Kind.ALL_GATHER)
    layer = [QKV, OUTPUT, UP, DOWN]
    assert elements(uses[: 1 + LAYERS]) == [EMBEDDING, POSITIONS, *layer * LAYERS]
    assert sum(elements(uses)) == 2 * (EMBEDDING + POSITIONS + LAYERS * sum(layer))
    assert elements([last]) == [LAYERS * SMALL + 2 * 64]


def test_every_parameter_is_reduced_by_itself_however_small():
    reduced = elements(issued(build_program(zero_job()), Kind.REDUCE_SCATTER))
    assert len(reduced) == 2 + 12 * LAYERS + 2
    assert sum(reduced) == EMBEDDING + POSITIONS + LAYERS * (QKV + OUTPUT + UP + DOWN + SMALL) + 128


def test_the_device_waits_for_every_collective():
    operations = build_program(zero_job()).operations
    assert {stream for op in operations for _, stream in op.lanes} == {Stream.COMPUTE}


@pytest.mark.parametrize(
    ("reuse", "again"),
    [
        (None, 0),
        (1e9, 0),
        (2 * (DOWN + SMALL), QKV + OUTPUT),
        (2 * DOWN, QKV + OUTPUT + UP),
        (0, QKV + OUTPUT + UP + DOWN),
    ],
)
def test_backward_gathers_again_what_lies_too_far_from_its_use_in_a_repeated_layer(reuse, again):
    def gathered(recompute: str) -> float:
        program = build_program(zero_job(recompute=recompute, reuse_numel=reuse))
        return sum(elements(issued(program, Kind.ALL_GATHER)))

    assert gathered("full") - gathered("none") == LAYERS * again


def test_a_list_of_shards_costs_a_kernel_for_each_rank_and_passes_over_all_of_it():
    def gather(*, lists: bool) -> Operation:
        return issued(build_program(zero_job(lists_of_shards=lists)), Kind.ALL_GATHER)[1]

    job = zero_job()
    profile = job.cluster.profile
    rate = profile.device.memory_bandwidth_bytes_per_s * profile.kernels.memory_efficiency
    copied_s = 3 * 2 * (QKV + OUTPUT + UP + DOWN) / rate
    launched_s = 4 * RANKS * profile.kernels.memory_floor_s
    added_s = gather(lists=True).work.seconds - gather(lists=False).work.seconds
    assert added_s == pytest.approx(copied_s + launched_s)


def test_small_parameters_are_unpacked_one_by_one_for_every_rank():
    def last(*, lists: bool) -> Operation:
        return issued(build_program(zero_job(lists_of_shards=lists)), Kind.ALL_GATHER)[-1]

    kernels = zero_job().cluster.profile.kernels
    parts = [part for part in last(lists=True).work.parts if part.name == "list_copies"]
    copies = parts[-1].seconds
    small = 8 * LAYERS + 2
    assert copies == pytest.approx(RANKS * small * kernels.memory_floor_s)
    assert "list_copies" not in {part.name for part in last(lists=False).work.parts}
