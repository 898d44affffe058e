"""ZeRO-3 as DeepSpeed did it in 2021: every parameter has collectives of its own."""

from __future__ import annotations

import pytest

from simulator.program.build import build_program
from simulator.program.ir import Kind, Operation, Owner, Program, Stream
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
    known = {"whole_below_numel": 1000, "keeps_tied_embedding": False}
    stack = {"base": "deepspeed-2021", **known, **facts}
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


def held(job: Job, kind: Kind, owner: Owner) -> list[float]:
    """Elements of 16 bits that each pass over a layer holds or takes for an owner."""
    passes = [op for op in issued(build_program(job), kind) if op.layers[1] - op.layers[0] == 1]
    return [sum(size / 2 for o, size in (*op.holds, *op.takes) if o is owner) for op in passes]


@pytest.mark.parametrize(
    ("live", "most"),
    [(None, UP + DOWN), (UP, OUTPUT + UP), (QKV, OUTPUT + UP), (OUTPUT, UP)],
)
def test_one_weight_is_whole_and_the_next_unless_too_much_is(live, most):
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        assert held(zero_job(live_numel=live), kind, Owner.GATHERED_WEIGHTS) == [most] * LAYERS


def test_an_embedding_that_is_the_output_matrix_too_stays_whole():
    job = zero_job(live_numel=OUTPUT, keeps_tied_embedding=True)
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        assert held(job, kind, Owner.GATHERED_WEIGHTS) == [UP + EMBEDDING] * LAYERS
    tied = zero_job().model
    untied = job.model_copy(update={"model": tied.model_copy(update={"tied_embeddings": False})})
    assert held(untied, Kind.FORWARD, Owner.GATHERED_WEIGHTS) == [UP] * LAYERS


@pytest.mark.parametrize(
    ("reuse", "most"),
    [(1e9, QKV + OUTPUT + UP + DOWN), (2 * (DOWN + SMALL), UP + DOWN), (0, OUTPUT + UP)],
)
def test_backward_of_a_repeated_layer_keeps_what_it_soon_uses_again(reuse, most):
    job = zero_job(recompute="full", reuse_numel=reuse, live_numel=UP)
    assert held(job, Kind.BACKWARD, Owner.GATHERED_WEIGHTS) == [most] * LAYERS
    assert held(job, Kind.FORWARD, Owner.GATHERED_WEIGHTS) == [OUTPUT + UP] * LAYERS


@pytest.mark.parametrize(
    ("bucket_numel", "whole"),
    [(OUTPUT, UP + OUTPUT), (1e9, QKV + OUTPUT + UP + DOWN + SMALL)],
)
def test_gradients_wait_whole_in_a_bucket_and_one_outside_of_it(bucket_numel, whole):
    job = zero_job(bucket=f"{2 * bucket_numel:.0f} B")
    assert held(job, Kind.BACKWARD, Owner.GRADIENTS) == [whole] * LAYERS


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
