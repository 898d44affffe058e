"""ZeRO-3 as DeepSpeed did it in 2021: every parameter has collectives of its own."""

from __future__ import annotations

import pytest

from simulator.described.job import Job
from simulator.program.build import build_program
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Kind, Operation, Owner, Program, Stream
from simulator.program.states.gather_units import Units
from simulator.program.states.gathered_memory import whole_in_attention
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


def zero_job(*, recompute: str = "none", schedule: str | None = None, **facts: object) -> Job:
    known = {"whole_below_numel": 1000, "keeps_tied_embedding": False, "reuse_numel": None}
    stack = {"base": "deepspeed-2021", **known, **facts}
    return small_job(
        MODEL, gpus=RANKS, global_batch=RANKS, zero=3, recompute=recompute, stack=stack,
        profile=free_latency_profile(), schedule=schedule,
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


def gathers_of(job: Job, layer: int) -> list[list[float]]:
    """Elements that come before forward and before backward of a layer, one by one."""
    gathers = issued(build_program(job), Kind.ALL_GATHER)
    return [elements([op]) for op in gathers if op.layers == (layer, layer + 1)]


@pytest.mark.parametrize(
    ("reuse", "again"),
    [
        (None, []),
        (2 * (DOWN + SMALL), [OUTPUT, QKV]),
        (2 * DOWN, [UP, OUTPUT, QKV]),
        (0, [DOWN, UP, OUTPUT, QKV]),
    ],
)
def test_backward_gathers_again_what_lies_too_far_from_its_use_in_a_repeated_layer(reuse, again):
    forward, backward = gathers_of(zero_job(recompute="full", reuse_numel=reuse), layer=0)
    assert forward == [QKV, OUTPUT, UP, DOWN]
    assert backward == [*forward, *again]


NORM = 2 * 64
BEHIND_DOWN = 64 + NORM
"""Elements of a layer's last bias and of the last norm."""
LAYER = QKV + OUTPUT + UP + DOWN + SMALL


def kept_over_the_loss(job: Job) -> list[float]:
    """Elements of weights that forward takes for longer than a pass, and backward gives back."""
    program, weights = build_program(job), Owner.GATHERED_WEIGHTS
    taken = [block for op in issued(program, Kind.FORWARD) for block in op.takes]
    given = [block for op in issued(program, Kind.BACKWARD) for block in op.gives]
    return [sum(b / 2 for owner, b in blocks if owner is weights) for blocks in (taken, given)]


@pytest.mark.parametrize(
    ("recompute", "reuse", "kept"),
    [
        # Forward uses what is behind a weight once more, and so does backward.
        ("none", 2 * BEHIND_DOWN + 1, [DOWN]),
        ("none", 2 * BEHIND_DOWN, []),
        # A repeated layer is used from its beginning: everything but the weight itself.
        ("full", LAYER - DOWN + 2 * NORM + 1, [UP, DOWN]),
        ("full", LAYER - DOWN + 2 * NORM, []),
        ("full", LAYER + 2 * NORM, [QKV, OUTPUT, UP, DOWN]),
    ],
)
def test_what_backward_soon_uses_stays_whole_from_forward(recompute, reuse, kept):
    job = zero_job(recompute=recompute, reuse_numel=reuse)
    forward, backward = gathers_of(job, layer=LAYERS - 1)
    first_use = backward[: len(forward) - len(kept)]
    assert sum(first_use) == sum(forward) - sum(kept)
    assert kept_over_the_loss(job) == [sum(kept)] * 2


def test_a_split_backward_gives_back_block_by_block_what_several_forwards_kept():
    job = zero_job(reuse_numel=1e9, schedule="zb-h1")
    operations, weights = build_program(job).operations, Owner.GATHERED_WEIGHTS
    taken = [block for op in operations for block in op.takes if block[0] is weights]
    given = [block for op in operations for block in op.gives if block[0] is weights]
    assert len(taken) > 1
    assert sorted(taken) == sorted(given)


def test_a_small_model_is_gathered_once_per_step():
    *uses, _ = issued(build_program(zero_job(recompute="full", reuse_numel=1e9)), Kind.ALL_GATHER)
    assert sum(elements(uses)) == EMBEDDING + POSITIONS + LAYERS * (QKV + OUTPUT + UP + DOWN)


def test_a_tied_embedding_lies_between_the_two_uses_of_a_weight():
    near = LAYER - DOWN + 2 * NORM + 1
    job = zero_job(recompute="full", reuse_numel=near + EMBEDDING, keeps_tied_embedding=True)
    *_, backward = gathers_of(job, layer=LAYERS - 1)
    assert backward[:2] == [QKV, OUTPUT]
    assert UP not in backward[:2]


@pytest.mark.parametrize(("live", "ahead"), [(1e9, [QKV]), (UP + DOWN, [])])
def test_the_first_weight_that_backward_lacks_is_gathered_while_the_loss_runs(live, ahead):
    near = LAYER - DOWN + 2 * NORM + 1
    job = zero_job(recompute="full", reuse_numel=near, live_numel=live)
    passes = [op for op in build_program(job).operations if op.layers == (LAYERS, LAYERS)]
    loss = next(op for op in reversed(passes) if op.kind is Kind.FORWARD)
    assert [b / 2 for owner, b in loss.holds if owner is Owner.GATHERED_WEIGHTS] == ahead


def held(job: Job, kind: Kind, owner: Owner) -> list[float]:
    """Elements of 16 bits that each pass over a layer holds or takes for an owner."""
    passes = [op for op in issued(build_program(job), kind) if op.layers[1] - op.layers[0] == 1]
    return [sum(size / 2 for o, size in (*op.holds, *op.takes) if o is owner) for op in passes]


@pytest.mark.parametrize(
    ("live", "most"),
    [(None, UP + DOWN), (UP, OUTPUT + UP), (QKV, OUTPUT + UP), (OUTPUT, UP)],
)
def test_one_weight_is_whole_and_the_next_unless_too_much_is(live, most):
    job = zero_job(live_numel=live, lists_of_shards=False)
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        assert held(job, kind, Owner.GATHERED_WEIGHTS) == [most] * LAYERS


def test_a_list_of_shards_holds_what_is_gathered_ahead_twice():
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        assert held(zero_job(), kind, Owner.GATHERED_WEIGHTS) == [UP + 2 * DOWN] * LAYERS


def test_an_embedding_that_is_the_output_matrix_too_stays_whole():
    job = zero_job(live_numel=OUTPUT, keeps_tied_embedding=True, lists_of_shards=False)
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        assert held(job, kind, Owner.GATHERED_WEIGHTS) == [UP + EMBEDDING] * LAYERS
    tied = zero_job().model
    untied = job.model_copy(update={"model": tied.model_copy(update={"tied_embeddings": False})})
    assert held(untied, Kind.FORWARD, Owner.GATHERED_WEIGHTS) == [UP] * LAYERS


@pytest.mark.parametrize(
    ("reuse", "most"),
    [(None, QKV + OUTPUT + UP + DOWN), (2 * (DOWN + SMALL), UP + DOWN), (0, OUTPUT + UP)],
)
def test_backward_of_a_repeated_layer_keeps_what_it_soon_uses_again(reuse, most):
    job = zero_job(recompute="full", reuse_numel=reuse, live_numel=UP, lists_of_shards=False)
    # The last layers also keep what backward soon uses.
    assert held(job, Kind.BACKWARD, Owner.GATHERED_WEIGHTS)[2:] == [most] * 2
    assert held(job, Kind.FORWARD, Owner.GATHERED_WEIGHTS)[:2] == [OUTPUT + UP] * 2


def test_what_gradients_need_next_is_gathered_while_a_layer_keeps_the_rest():
    job = zero_job(recompute="full", reuse_numel=2 * (DOWN + SMALL), lists_of_shards=False)
    *_, last = held(job, Kind.BACKWARD, Owner.GATHERED_WEIGHTS)
    assert last == UP + DOWN + OUTPUT


@pytest.mark.parametrize(
    ("recompute", "facts", "whole"),
    [
        # A layer that was computed again keeps what its gradients need,
        ("full", {"reuse_numel": None}, [QKV]),
        # or gives it up and gathers the next one ahead, unless too much is whole.
        ("full", {"reuse_numel": 0}, [QKV]),
        ("none", {}, [QKV]),
        ("none", {"lists_of_shards": True}, [QKV, QKV]),
        ("none", {"live_numel": 0}, []),
    ],
)
def test_while_attention_runs_backward_only_weights_before_it_are_whole(recompute, facts, whole):
    job = zero_job(recompute=recompute, **{"lists_of_shards": False, **facts})
    (piece,) = Units(job).pieces(Slice(1, 2))
    (unit,) = piece.needs
    assert unit.separate is not None
    assert whole_in_attention(unit.separate, job) == whole


@pytest.mark.parametrize(
    ("bucket_numel", "whole"),
    [(OUTPUT, UP + OUTPUT), (1e9, QKV + OUTPUT + UP + DOWN + SMALL)],
)
def test_gradients_wait_whole_in_a_bucket_and_one_outside_of_it(bucket_numel, whole):
    job = zero_job(bucket=f"{2 * bucket_numel:.0f} B", frees_gradients=False)
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
