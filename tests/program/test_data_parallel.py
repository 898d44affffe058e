"""Who reduces and gathers how many bytes, when, and on which stream."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.job import Job
from simulator.described.model import Experts
from simulator.engine.replay import replay
from simulator.errors import InputError
from simulator.program.build import build_program
from simulator.program.grid.stage_layers import Slice, stage_slices
from simulator.program.ir import Category, Kind, Operation, Owner, Program, Stream
from simulator.program.price.stage_cost import StageCosts
from simulator.program.states.gather_units import Units
from simulator.program.states.resident import slice_parameters
from simulator.results.memory import class_memory
from simulator.results.traffic import rank_collectives
from simulator.schedule import Phase
from tests.jobs import SIXTEEN_BIT_TORCH, free_latency_profile, small_job, small_model

HEAD = (4, 4)
"""Layers of the head's unit in a model of four layers: none."""

REDUCED, GATHERED = 4.0, 2.0
"""Bytes per parameter of fp32 gradients and 16-bit weights."""


def data_job(ranks: int = 8, *, microbatches: int = 3, **plan) -> Job:
    """Pure data parallelism over links without latency, so that rings always win."""
    return small_job(
        gpus=ranks, global_batch=ranks * microbatches, profile=free_latency_profile(), **plan
    )


def parameters(job: Job) -> float:
    return sum(slice_parameters(job, run).total for run in stage_slices(job, 1))


def exchanges(program: Program, *kinds: Kind) -> list[Operation]:
    return [
        op
        for op in program.operations
        if op.category is Category.DATA_PARALLEL and (not kinds or op.kind in kinds)
    ]


def port_bytes(program: Program) -> float:
    """Through both ports of one rank in a step."""
    return sum(
        sum(op.work.traffic.port_bytes.values())
        for op in exchanges(program)
        if op.work.traffic is not None
    )


OVERLAPS = [(True, True), (False, False), (True, False), (False, True)]


@pytest.mark.parametrize(("reduce", "gather"), OVERLAPS)
@pytest.mark.parametrize("n", [2, 4, 8, 16])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_step_moves_what_theory_says(zero, n, reduce, gather):
    """ZeRO (arXiv 1910.02054), section 7, with m microbatches.

    Whole gradients travel round a ring twice; shards once there and weights once back;
    stage 2 reduces after every microbatch, and stage 3 gathers for every pass, too.
    """
    m = 3
    job = data_job(
        n, microbatches=m, zero=zero, overlap_grad_reduce=reduce, overlap_param_gather=gather
    )
    per_parameter = {
        0: 2 * REDUCED,
        1: REDUCED + GATHERED,
        2: m * REDUCED + GATHERED,
        3: m * (REDUCED + 2 * GATHERED),
    }[zero]
    moved = port_bytes(build_program(job))
    assert moved == pytest.approx(parameters(job) * per_parameter * (n - 1) / n, rel=1e-9)


@pytest.mark.parametrize("narrow", ["all", "dense"])
def test_experts_that_are_cast_in_their_shards_travel_in_the_format_of_their_products(narrow):
    model = small_model(experts=Experts(count=4, top_k=2, ffn_hidden=128))
    moved = []
    for casts in (False, True):
        stack = {"base": "jax", "narrow_products": narrow, "whole_below_numel": 0}
        stack["gathers_cast_experts"] = casts
        job = small_job(
            model, gpus=2, global_batch=2, profile=free_latency_profile(), stack=stack,
            precision="fp8",
        )  # fmt: skip
        moved.append(port_bytes(build_program(job)))
    numel = sum(slice_parameters(job, run).expert for run in stage_slices(job, 1))
    saved = 2 * numel * (2 - 1) / 2 if narrow == "all" else 0.0
    assert moved[0] - moved[1] == pytest.approx(saved)


def test_bytes_do_not_depend_on_the_size_of_buckets():
    sizes = ["1 B", "100 kB", "1 GB"]
    moved, counts = [], []
    for size in sizes:
        stack = {"base": "megatron-core", "bucket": size, "bucket_per_rank": "0 B"}
        program = build_program(data_job(stack=stack))
        moved.append(port_bytes(program))
        counts.append(len(exchanges(program, Kind.REDUCE_SCATTER)))
    assert moved == pytest.approx([moved[0]] * 3)
    assert counts[0] == 6, "embedding, four layers, head"
    assert counts[-1] == 1


@pytest.mark.parametrize("shards", [1, 2, 4, 8])
def test_shards_of_part_of_the_ranks_are_all_reduced_over_the_others(shards):
    """8 ranks: a reduce-scatter inside the group, an all_reduce of 1/shards outside."""
    job = data_job(8, zero=1, zero_group=shards)
    inside, outside = (shards - 1) / shards, 2 * (8 / shards - 1) / (8 / shards) / shards
    expected = parameters(job) * (REDUCED * (inside + outside) + GATHERED * inside)
    assert port_bytes(build_program(job)) == pytest.approx(expected)


def test_a_single_rank_exchanges_nothing():
    for zero in range(4):
        assert exchanges(build_program(small_job(zero=zero))) == []


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_context_parallel_ranks_reduce_gradients_like_data_parallel_ones(zero):
    plain = build_program(data_job(8, zero=zero, microbatches=2))
    shared = build_program(data_job(8, zero=zero, microbatches=1, cp=2))
    assert port_bytes(shared) == pytest.approx(port_bytes(plain))


def test_gradients_may_be_reduced_in_16_bit():
    full, half = (
        build_program(data_job(zero=0, grad_reduce_precision=precision))
        for precision in ("fp32", "bf16")
    )
    assert port_bytes(half) == pytest.approx(port_bytes(full) / 2)


def test_reduction_without_overlap_blocks_the_compute_stream_after_the_last_backward():
    program = build_program(data_job(zero=0, overlap_grad_reduce=False))
    (reduction,) = exchanges(program)
    assert reduction.lanes == ((0, Stream.COMPUTE),)
    lane = [program.operations[i] for i in program.lanes[0, Stream.COMPUTE]]
    kinds = [operation.kind for operation in lane]
    assert kinds[-3:] == [Kind.BACKWARD, Kind.ALL_REDUCE, Kind.OPTIMIZER]


def test_overlapped_buckets_start_as_soon_as_their_backward_is_done_last_layer_first():
    stack = {"base": "megatron-core", "bucket": "1 B", "bucket_per_rank": "0 B"}
    program = build_program(data_job(zero=0, stack=stack, overlap_grad_reduce=True))
    timeline = replay(program)
    reductions = [
        i for i, op in enumerate(program.operations) if op.category is Category.DATA_PARALLEL
    ]
    assert [program.operations[i].layers for i in reductions] == [
        (4, 4), (3, 4), (2, 3), (1, 2), (0, 1), (0, 0),
    ]  # fmt: skip
    first = program.operations[reductions[0]]
    assert first.lanes == ((0, Stream.DATA_PARALLEL),)
    (backward,) = first.after
    assert program.operations[backward].layers == (4, 4)
    assert timeline.operation_start_s[reductions[0]] == timeline.operation_end_s[backward]


def test_the_optimizer_waits_for_every_reduction():
    program = build_program(data_job(zero=1, overlap_grad_reduce=True))
    (optimizer,) = [op for op in program.operations if op.kind is Kind.OPTIMIZER]
    reductions = [i for i, op in enumerate(program.operations) if op.kind is Kind.REDUCE_SCATTER]
    (norm,) = optimizer.after
    assert [each.name for each in program.operations[norm].work.collectives] == ["gradient_norm"]
    assert set(reductions) <= set(program.operations[norm].after)


def test_only_the_last_microbatch_is_reduced_unless_gradients_are_sharded():
    for zero, microbatches in ((1, {2}), (2, {0, 1, 2})):
        program = build_program(data_job(zero=zero, overlap_grad_reduce=True))
        reduced = {
            program.operations[before].microbatch
            for op in exchanges(program, Kind.REDUCE_SCATTER)
            for before in op.after
        }
        assert reduced == microbatches


@pytest.mark.parametrize(
    ("schedule", "last"),
    [("interleaved-1f1b", [1, 1, 3, 3]), ("looped-bfs", [0, 0])],
)
def test_sharded_gradients_of_a_virtual_stage_are_reduced_once_per_turn(schedule, last):
    """Two stages of two chunks; breadth first, as torch runs it, ends with microbatch 0."""
    job = small_job(
        gpus=4, pp=2, vpp=2, zero=2, global_batch=8, schedule=schedule, overlap_grad_reduce=True
    )
    program = build_program(job)
    reduced = [
        (program.operations[before].chunk, program.operations[before].microbatch)
        for op in exchanges(program, Kind.REDUCE_SCATTER)
        for before in op.after[:1]
        if op.lanes[0][0] == 0
    ]
    turns = list(dict.fromkeys(reduced))
    assert [microbatch for _, microbatch in turns] == last
    assert [chunk for chunk, _ in turns] == [1, 0] * (len(last) // 2)


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "looped-bfs", "zb-v"])
@pytest.mark.parametrize("stack", ["megatron-core", "torch-fsdp"])
def test_whole_gradients_of_a_turn_are_taken_once_and_given_back(schedule, stack):
    """Also where the first backward goes layer by layer, though buckets span layers."""
    model = small_model(layers=8, experts=Experts(count=4, top_k=2, ffn_hidden=128))
    sizes = {"gpus": 4, "global_batch": 8, "pp": 2, "vpp": 2}
    job = small_job(model, **sizes, zero=2, schedule=schedule, stack=stack)
    program = build_program(job)
    for rank in (0, 1):
        own = [op for op in program.operations if op.lanes[0][0] == rank]
        taken, given = (
            Counter(block for blocks in booked for block in blocks if block[0] is Owner.GRADIENTS)
            for booked in ((op.takes + op.leaves for op in own), (op.gives for op in own))
        )
        assert taken == given
        assert taken


def test_gathered_weights_precede_the_first_forward_and_hide_behind_it():
    stack = {"base": "megatron-core", "bucket": "1 B", "bucket_per_rank": "0 B"}
    program = build_program(data_job(zero=1, stack=stack, overlap_param_gather=True))
    gathers = [i for i, op in enumerate(program.operations) if op.kind is Kind.ALL_GATHER]
    units = [(0, 0), *((n, n + 1) for n in range(4)), (4, 4)]
    assert [program.operations[i].layers for i in gathers] == units
    waiting = {
        op.layers: op.microbatch for op in program.operations if set(op.after) & set(gathers)
    }
    assert waiting == dict.fromkeys(units, 0)


def test_without_overlap_weights_are_gathered_after_the_optimizer():
    program = build_program(data_job(zero=1, overlap_param_gather=False))
    lane = [program.operations[i].kind for i in program.lanes[0, Stream.COMPUTE]]
    assert lane[-2:] == [Kind.OPTIMIZER, Kind.ALL_GATHER]


@given(st.integers(1, 4), st.sampled_from([2, 4]), st.sampled_from(["none", "full"]))
@settings(deadline=None, max_examples=20)
def test_zero_3_never_holds_more_than_two_gathered_layers(microbatches, ranks, recompute):
    job = data_job(ranks, microbatches=microbatches, zero=3, recompute=recompute)
    program = build_program(job)
    timeline = replay(program)
    changes = []
    for index, operation in enumerate(program.operations):
        for owner, size in operation.takes:
            if owner is Owner.GATHERED_WEIGHTS:
                changes.append((timeline.operation_start_s[index], 1, 1, size))
        for owner, size in operation.gives:
            if owner is Owner.GATHERED_WEIGHTS:
                changes.append((timeline.operation_end_s[index], 0, -1, -size))
    held, most = 0, 0
    for _, _, count, _ in sorted(changes):
        held += count
        most = max(most, held)
    assert held == 0
    assert most == 2
    assert sum(size for *_, size in changes) == pytest.approx(0)


def test_zero_3_gathers_each_layer_once_per_forward_and_once_per_backward():
    m = 3
    program = build_program(data_job(zero=3, microbatches=m))
    units = [(0, 1), (1, 2), (2, 3), (3, 4)]
    gathered = Counter(op.layers for op in exchanges(program, Kind.ALL_GATHER))
    assert gathered == dict.fromkeys(units, 2 * m)
    reduced = Counter(op.layers for op in exchanges(program, Kind.REDUCE_SCATTER))
    assert reduced == dict.fromkeys(units, m)


def test_every_pass_of_zero_3_waits_for_the_gather_of_its_own_layer():
    program = build_program(data_job(zero=3, stack="torch-fsdp"))
    for operation in program.operations:
        is_layer = operation.layers[0] < operation.layers[1]
        if operation.kind in (Kind.FORWARD, Kind.BACKWARD) and is_layer:
            waited = [program.operations[i] for i in operation.after]
            gathers = [op.layers for op in waited if op.kind is Kind.ALL_GATHER]
            is_loss = operation.layers == HEAD and not gathers
            assert is_loss or gathers == [operation.layers]


def test_no_weights_are_gathered_while_the_loss_of_zero_3_is_computed():
    job = data_job(zero=3, stack="torch-fsdp")
    loss = Slice(4, 4, has_loss=True)
    work = [StageCosts(job).work(loss, phase) for phase in (Phase.FORWARD, Phase.BACKWARD)]
    memory = class_memory(replay(build_program(job)), job.cluster.profile.device)[0]
    timeline = replay(build_program(job))
    spans = [
        (timeline.operation_start_s[i], timeline.operation_end_s[i])
        for i, operation in enumerate(timeline.program.operations)
        if operation.work in work
    ]
    assert len(spans) == 2 * job.microbatches
    for start, end in spans:
        inside = (memory.time_s > start) & (memory.time_s < end)
        assert not memory.owner_bytes[Owner.GATHERED_WEIGHTS][inside].any()


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("zero", [0, 1])
def test_a_pipeline_reduces_every_parameter_once(pp, zero):
    """All stages together move what one stage would."""
    job = small_job(
        small_model(layers=4), gpus=2 * pp, pp=pp, zero=zero, profile=free_latency_profile()
    )
    held = sum(slice_parameters(job, run).total for run in stage_slices(job, pp))
    per_parameter = 2 * REDUCED if zero == 0 else REDUCED + GATHERED
    assert port_bytes(build_program(job)) == pytest.approx(held * per_parameter / 2)


@pytest.mark.parametrize("zero", [2, 3])
def test_sharded_gradients_exist_whole_until_they_are_reduced_and_never_pile_up(zero):
    """Two runs at most: one under way and one that is being computed."""
    job = small_job(small_model(layers=8), gpus=4, zero=zero, global_batch=8)
    program = build_program(job)
    whole = [op for op in program.operations if Owner.GRADIENTS in dict(op.leaves)]
    given = [op for op in program.operations if Owner.GRADIENTS in dict(op.gives)]
    assert {op.kind for op in whole} == {Kind.BACKWARD}
    assert {op.kind for op in given} == {Kind.REDUCE_SCATTER}
    assert sum(dict(op.leaves)[Owner.GRADIENTS] for op in whole) == pytest.approx(
        sum(dict(op.gives)[Owner.GRADIENTS] for op in given)
    )
    largest = max(dict(op.leaves)[Owner.GRADIENTS] for op in whole)
    resident = dict(program.classes[0].resident)[Owner.GRADIENTS]
    memory = class_memory(replay(program), job.cluster.profile.device)[0]
    assert memory.owner_bytes[Owner.GRADIENTS].max() <= resident + 2 * largest


def test_the_gradient_of_a_roots_head_waits_for_that_of_its_embedding():
    job = small_job(gpus=4, zero=3, global_batch=4, stack="torch")
    whole = Slice(0, 4, has_embedding=True, has_head=True)
    head, *_, embedding = Units(job).pieces(whole)[::-1]
    (root,) = embedding.closes
    assert head.closes == ()
    made = [unit.parameters.total for piece in (head, embedding) for unit in piece.makes]
    assert sum(made) == root.parameters.total
    backwards = [op for op in build_program(job).operations if op.kind is Kind.BACKWARD]
    taken = [dict(op.leaves).get(Owner.GRADIENTS, 0.0) for op in backwards]
    assert taken[1] >= made[0] * GATHERED


def test_fsdp2_frees_gradients_once_they_are_copied_and_fsdp1_once_they_are_reduced():
    freed = {}
    for stack in ("torch", "torch-fsdp"):
        program = build_program(small_job(gpus=4, zero=3, global_batch=4, stack=stack))
        ops = program.operations
        gradients = {Owner.GRADIENTS, Owner.GRADIENT_SHARDS}
        freed[stack] = {op.kind for op in ops if gradients & dict(op.gives).keys()}
        reductions = [op for op in ops if op.kind is Kind.REDUCE_SCATTER]
        assert all((op.turns != ()) is (stack == "torch") for op in reductions)
    assert freed["torch"] == {Kind.BACKWARD, Kind.OPTIMIZER}
    assert freed["torch-fsdp"] == {Kind.REDUCE_SCATTER, Kind.OPTIMIZER}


@pytest.mark.parametrize("stack", ["torch", "torch-fsdp"])
def test_shards_of_gradients_come_with_their_reduction(stack):
    program = build_program(small_job(gpus=4, zero=3, global_batch=8, stack=stack))
    reductions = [op for op in program.operations if op.kind is Kind.REDUCE_SCATTER]
    update = next(op for op in program.operations if op.kind is Kind.OPTIMIZER)
    first, second = reductions[: len(reductions) // 2], reductions[len(reductions) // 2 :]
    made = [block for op in first for block in op.takes]
    assert sorted(made) == sorted(update.gives)
    assert not any(op.takes for op in second)


def test_a_reduction_in_another_format_holds_a_copy_only_while_it_runs():
    plan = {"zero": 3, "grad_reduce_precision": "fp32"}
    job = small_job(small_model(layers=8), gpus=4, global_batch=8, stack="torch-fsdp", **plan)
    program = build_program(job)
    holders = [op for op in program.operations if Owner.COMMUNICATION in dict(op.holds)]
    assert {op.kind for op in holders} == {Kind.REDUCE_SCATTER}
    for operation in holders:
        given = sum(size for owner, size in operation.gives if owner is Owner.GRADIENTS)
        assert dict(operation.holds)[Owner.COMMUNICATION] / given == REDUCED / GATHERED


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_pytorch_makes_gradients_in_the_first_backward_and_frees_them_after_the_step(zero):
    job = small_job(small_model(layers=8), gpus=4, zero=zero, global_batch=8, stack="torchtitan")
    program = build_program(job)
    held = slice_parameters(job, Slice(0, 8, has_embedding=True, has_head=True)).total
    kept = held / 4 if zero >= 2 else held
    memory = class_memory(replay(program), job.cluster.profile.device)[0]
    curve = memory.owner_bytes[Owner.GRADIENTS]
    assert curve[0] == curve[-1] == 0
    freed = [op for op in program.operations if op.kind is Kind.OPTIMIZER]
    assert sum(size for _, size in freed[0].gives) == pytest.approx(kept * 4)


@pytest.mark.parametrize("overlap", [True, False])
def test_without_no_sync_every_backward_reduces_all_gradients_and_waits_for_them(overlap):
    once, always = (
        build_program(data_job(4, zero=0, no_sync=no_sync, overlap_grad_reduce=overlap))
        for no_sync in (True, False)
    )
    assert port_bytes(always) == pytest.approx(3 * port_bytes(once))
    timeline = replay(always)
    reduced = {
        microbatch: max(
            timeline.operation_end_s[i]
            for i, op in enumerate(always.operations)
            if op.kind is Kind.ALL_REDUCE
            for before in op.after
            if always.operations[before].microbatch == microbatch
        )
        for microbatch in range(3)
    }
    for i, operation in enumerate(always.operations):
        if operation.kind is Kind.FORWARD and operation.microbatch > 0:
            assert timeline.operation_start_s[i] >= reduced[operation.microbatch - 1]


def test_a_single_microbatch_is_reduced_once_with_or_without_no_sync():
    programs = [
        build_program(data_job(4, microbatches=1, zero=0, no_sync=no_sync))
        for no_sync in (True, False)
    ]
    assert replay(programs[0]).step_time_s == replay(programs[1]).step_time_s


@pytest.mark.parametrize("plan", [{"zero": 1}, {"zero": 3}])
def test_ranks_that_shard_say_themselves_when_they_reduce(plan):
    with pytest.raises(InputError, match=r"plan\.no_sync"):
        data_job(4, no_sync=False, **plan)


@pytest.mark.parametrize("overlap", [True, False])
def test_gradients_that_are_views_of_their_buckets_save_a_copy_in_memory_and_four_passes_in_time(
    overlap,
):
    """Each of fp32: into the bucket and back, every byte read and written, at 1 GB/s."""
    apart, views = (
        data_job(
            4, zero=0, overlap_grad_reduce=overlap,
            stack={**SIXTEEN_BIT_TORCH, "buckets_gradients": apart},
        )
        for apart in (True, False)
    )  # fmt: skip
    timelines = [replay(build_program(job)) for job in (apart, views)]
    held = parameters(apart) * REDUCED
    copied_s = [
        sum(
            part.seconds
            for op in timeline.program.operations
            for part in op.work.parts
            if part.name == "bucket_copy"
        )
        for timeline in timelines
    ]
    assert copied_s == pytest.approx([4 * held / 1e9, 0.0], rel=1e-3)
    resident = [dict(timeline.program.classes[0].resident) for timeline in timelines]
    # Buckets have the format of the parameters.
    assert resident[0][Owner.COMMUNICATION] == pytest.approx(parameters(apart) * GATHERED)
    assert Owner.COMMUNICATION not in resident[1]


def test_a_bucket_that_is_never_full_is_reduced_when_backward_ends():
    stack = {"base": "megatron-core", "bucket": "1 GB", "bucket_per_rank": "0 B"}
    program = build_program(data_job(4, zero=0, stack=stack))
    (reduction,) = exchanges(program, Kind.ALL_REDUCE)
    (backward,) = reduction.after
    last = max(i for i, op in enumerate(program.operations) if op.kind is Kind.BACKWARD)
    assert backward == last


@pytest.mark.parametrize(("reshards", "gathers"), [(False, 5), (None, 5 + 4 * 4)])
def test_a_stage_of_torchs_pipeline_adds_up_gradients_and_reduces_them_once(reshards, gathers):
    """Four layers and what is left to the root, of each stage, over four microbatches.

    On the last stage every backward follows its forward. Layers that are given back after each
    forward are gathered again for its backward, which keeps them for the forward behind.
    """
    plan = {"stack": "torch", "zero": 3, "pp": 2, "reshard_after_forward": reshards}
    job = small_job(small_model(layers=8), gpus=8, global_batch=16, micro_batch=1, **plan)
    program = build_program(job)
    kinds = Counter(each.kind for each in rank_collectives(program, 1) if each.axis == "dp")
    assert kinds[Kind.REDUCE_SCATTER] == 5
    assert kinds[Kind.ALL_GATHER] == gathers
    memory = class_memory(replay(program), job.cluster.profile.device)[1]
    numel = slice_parameters(job, stage_slices(job, 2)[1]).total
    whole = memory.owner_bytes[Owner.GRADIENTS]
    assert whole.max() >= REDUCED * numel
    for owner in (Owner.GRADIENTS, Owner.GATHERED_WEIGHTS):
        assert min(memory.owner_bytes[owner]) >= 0
        assert memory.owner_bytes[owner][-1] == pytest.approx(0.0, abs=1.0)
