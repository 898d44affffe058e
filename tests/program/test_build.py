"""From a job to a program: what is there, how often, and of what size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from simulator.engine.replay import replay
from simulator.errors import InputError
from simulator.program.build import build_program
from simulator.program.ir import Category, Kind, Operation, Owner, Program, Scope, Stream
from simulator.program.price.executed_flop import hardware_flop_per_token
from simulator.program.states.resident import padded_vocab
from simulator.results.simulation import run_step
from simulator.schedule import schedule_order
from tests.jobs import (
    free_latency_profile,
    gpt_model,
    jobs,
    network_profile,
    small_job,
    small_model,
)

few = settings(max_examples=40, deadline=None)


def of_kind(program: Program, *kinds: Kind) -> list[Operation]:
    return [op for op in program.operations if op.kind in kinds]


@given(jobs())
@few
def test_rank_classes_stand_for_all_gpus_once(job):
    classes = build_program(job).classes
    assert sum(rank_class.count for rank_class in classes) == job.cluster.gpus
    firsts = [rank_class.first_rank for rank_class in classes]
    assert firsts == [sum(c.count for c in classes[:i]) for i in range(len(classes))]


@given(jobs())
@few
def test_every_microbatch_passes_every_layer_forward_and_backward_once(job):
    program = build_program(job)
    passed: dict[Kind, list[tuple[int, int]]] = {}
    for operation in program.operations:
        first, end = operation.layers
        if operation.microbatch >= 0 and operation.kind is not Kind.SEND_RECV:
            passed.setdefault(operation.kind, []).extend(
                (operation.microbatch, layer) for layer in range(first, end)
            )
    everything = [(m, n) for m in range(job.microbatches) for n in range(job.model.layers)]
    assert all(sorted(visits) == everything for visits in passed.values())
    assert Kind.FORWARD in passed


@given(jobs())
@few
def test_times_bytes_and_parts_are_never_negative(job):
    for operation in build_program(job).operations:
        work = operation.work
        assert work.seconds >= 0
        assert all(part.seconds >= 0 for part in work.parts)
        assert sum(part.seconds for part in work.parts) == pytest.approx(work.seconds)
        booked = operation.takes + operation.gives + operation.holds
        for _, num_bytes in booked + operation.frees + operation.leaves:
            assert num_bytes >= 0


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("tp", "pp", "cp"), [(1, 1, 1), (2, 2, 1), (4, 1, 1)])
def test_executed_products_are_those_that_hfu_counts(recompute, tp, pp, cp):
    """With every score computed, as the PaLM convention counts them."""
    model = gpt_model(vocab=1024)
    job = small_job(
        model, gpus=8, tp=tp, pp=pp, cp=cp, recompute=recompute, attention="unfused",
        stack="torch",
    )  # fmt: skip
    assert padded_vocab(job) == model.vocab
    per_stage = dict.fromkeys(range(pp), 0.0)
    program = build_program(job)
    for operation in program.operations:
        per_stage[operation.lanes[0][0]] += operation.work.flop
    executed = sum(
        flop * rank_class.count
        for flop, rank_class in zip(per_stage.values(), program.classes, strict=True)
    )
    counted = hardware_flop_per_token(job) * job.batch.tokens
    assert executed == pytest.approx(counted, rel=1e-9)


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_every_virtual_stage_computes_so_many_of_its_first_layers_again(layers, pp, vpp):
    """A layer's second forward lasts as long as its first; eight layers in all."""

    def recomputed_s(**plan) -> float:
        job = small_job(small_model(layers=8), gpus=pp, pp=pp, vpp=vpp, global_batch=4, **plan)
        return sum(
            part.seconds
            for op in build_program(job).operations
            for part in op.work.parts
            if part.category is Category.RECOMPUTE
        )

    every_layer_s = recomputed_s(recompute="full")
    share = pp * vpp * layers / 8
    some_s = recomputed_s(recompute="full", recompute_layers=layers)
    assert some_s == pytest.approx(share * every_layer_s)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"recompute": "selective"}, "counts whole layers"),
        ({"recompute": "full", "pp": 2, "schedule": "zb-h1"}, "block method"),
    ],
)
def test_layers_are_counted_only_where_megatron_counts_them(plan, words):
    with pytest.raises(InputError, match=words):
        small_job(gpus=2, recompute_layers=1, **plan)


@pytest.mark.parametrize(("schedule", "pp", "vpp"), [("1f1b", 4, 1), ("interleaved-1f1b", 4, 2)])
@pytest.mark.parametrize("tp", [1, 2])
def test_pipeline_transfers_carry_one_boundary_activation_each(schedule, pp, vpp, tp):
    """B s h numbers of 16 bit, cut along the sequence where norms are."""
    m, micro_batch = 8, 2
    job = small_job(
        small_model(layers=8), gpus=pp * tp, pp=pp, vpp=vpp, tp=tp, schedule=schedule,
        global_batch=m * micro_batch, micro_batch=micro_batch,
    )  # fmt: skip
    transfers = of_kind(build_program(job), Kind.SEND_RECV)
    assert len(transfers) == 2 * m * (pp * vpp - 1)
    assert {op.work.num_bytes for op in transfers} == {micro_batch * 64 * 64 * 2 / tp}


def test_without_sequence_parallelism_every_tensor_rank_sends_the_whole_boundary():
    job = small_job(gpus=4, pp=2, tp=2, sequence_parallel=False)
    transfers = of_kind(build_program(job), Kind.SEND_RECV)
    assert {op.work.num_bytes for op in transfers} == {64 * 64 * 2}


def test_scatter_and_gather_sends_a_share_over_the_fabric_and_gathers_it_in_the_node():
    """Megatron-LM (arXiv 2104.04473), section 4.1."""
    plan = {"pp": 2, "tp": 4, "sequence_parallel": False}
    profile = free_latency_profile()
    whole, scattered = (
        of_kind(
            build_program(small_job(gpus=8, stack=stack, profile=profile, **plan)), Kind.SEND_RECV
        )[0].work
        for stack in ({"base": "megatron-lm-2021", "scatter_p2p": False}, "megatron-lm-2021")
    )
    boundary = 64 * 64 * 2
    assert whole.traffic.port_bytes["fabric"] == boundary
    assert scattered.traffic.port_bytes["fabric"] == boundary / 4
    assert scattered.traffic.port_bytes["scale_up"] == pytest.approx(boundary * 3 / 4)
    assert scattered.seconds == pytest.approx(boundary / 1e9)


def test_transfers_inside_a_node_do_not_touch_the_fabric():
    program = build_program(small_job(gpus=8, pp=4))
    ports = {
        op.lanes[0][0]: op.work.traffic.port_bytes
        for op in of_kind(program, Kind.SEND_RECV)
        if op.lanes[0][0] < op.lanes[1][0]
    }
    assert [ports[stage]["fabric"] > 0 for stage in range(3)] == [False, True, False]
    assert [ports[stage]["scale_up"] > 0 for stage in range(3)] == [True, False, True]


@pytest.mark.parametrize("overlaps", [True, False])
def test_sends_hold_the_compute_stream_unless_they_overlap(overlaps):
    program = build_program(small_job(gpus=2, pp=2, overlap_p2p=overlaps))
    streams = {op.lanes[0][1] for op in of_kind(program, Kind.SEND_RECV)}
    assert (Stream.COMPUTE in streams) == (not overlaps)


def test_microbatches_of_a_second_step_are_counted_on_from_those_of_the_first():
    job = small_job(gpus=2, pp=2, global_batch=4)
    forward = [op.microbatch for op in of_kind(build_program(job, steps=2), Kind.FORWARD)]
    once = sorted(op.microbatch for op in of_kind(build_program(job), Kind.FORWARD))
    assert set(once) == {0, 1, 2, 3}
    assert sorted(forward) == once + [microbatch + 4 for microbatch in once]


def test_every_stage_updates_once_after_a_norm_that_all_stages_share():
    program = build_program(small_job(gpus=4, pp=4))
    (norm,) = [op for op in of_kind(program, Kind.ALL_REDUCE) if op.category is Category.OPTIMIZER]
    assert set(norm.lanes) == {(stage, Stream.COMPUTE) for stage in range(4)}
    updates = of_kind(program, Kind.OPTIMIZER)
    assert [op.lanes for op in updates] == [((stage, Stream.COMPUTE),) for stage in range(4)]
    index = program.operations.index(norm)
    assert all(op.after == (index,) for op in updates)


def test_a_device_waits_for_what_its_host_does_after_every_update():
    stack = {"base": "internevo", "step_host": "0 s"}
    without = run_step(small_job(gpus=2, pp=2, stack=stack))
    waiting = run_step(small_job(gpus=2, pp=2, stack={**stack, "step_host": "1 s"}))
    assert waiting.step_time_s == pytest.approx(without.step_time_s + 1.0, rel=1e-9)
    assert waiting.breakdown_s[Category.HOST] == pytest.approx(
        without.breakdown_s.get(Category.HOST, 0.0) + 1.0
    )


def test_first_and_last_stage_add_up_the_gradient_of_a_tied_embedding():
    program = build_program(small_job(small_model(tied_embeddings=True), gpus=4, pp=4))
    (reduction,) = [
        op for op in of_kind(program, Kind.ALL_REDUCE) if op.category is Category.PIPELINE
    ]
    assert [stage for stage, _ in reduction.lanes] == [0, 3]
    assert reduction.work.num_bytes == 1024 * 64 * 4
    alone = build_program(small_job(small_model(tied_embeddings=True)))
    assert of_kind(alone, Kind.ALL_REDUCE) == []


def test_a_slow_host_sets_the_time_of_every_pass():
    """Launches of 1 ms, times what the framework adds, while kernels take microseconds."""
    profile = network_profile()
    kernels = profile.kernels.model_copy(update={"launch_s": 1e-3})
    job = small_job(profile=profile.model_copy(update={"kernels": kernels}), stack="torch")
    forward = of_kind(build_program(job), Kind.FORWARD)[0].work
    (launch,) = [part for part in forward.parts if part.category is Category.HOST]
    per_kernel_s = 1e-3 * job.plan.stack.host_work_per_launch
    assert forward.seconds == pytest.approx(launch.repeats * per_kernel_s)


def test_a_processor_that_launches_its_own_kernels_does_all_else_besides():
    """Bare launches are in its kernels' times; the rest of the framework's work is not."""
    profile = network_profile()
    itself = profile.device.model_copy(update={"launches_itself": True})
    gpu, processor = (
        small_job(profile=profile.model_copy(update={"device": device}), stack="torch")
        for device in (profile.device, itself)
    )
    passes = [of_kind(build_program(job), Kind.FORWARD)[0].work for job in (gpu, processor)]
    kernels_s = [sum(p.seconds for p in w.parts if p.category is not Category.HOST) for w in passes]
    assert kernels_s[0] == kernels_s[1]
    (launch,) = [part for part in passes[1].parts if part.category is Category.HOST]
    besides = processor.plan.stack.host_work_per_launch - 1
    assert launch.seconds == pytest.approx(launch.repeats * profile.kernels.launch_s * besides)
    updates = [of_kind(build_program(job), Kind.OPTIMIZER)[0].work for job in (gpu, processor)]
    assert updates[1].seconds > updates[0].seconds


def test_schedules_follow_from_the_chunks_unless_they_are_named():
    assert small_job(gpus=2, pp=2).choices.schedule.name == "1f1b"
    assert small_job(gpus=2, pp=2, vpp=2).choices.schedule.name == "interleaved-1f1b"
    assert small_job(gpus=2, pp=2, schedule="gpipe").choices.schedule.name == "gpipe"


@pytest.mark.parametrize(
    ("schedule", "vpp"), [("1f1b", 2), ("gpipe", 2), ("zb-v", 1), ("interleaved-1f1b", 1)]
)
def test_a_schedule_is_refused_with_chunks_it_has_no_order_for(schedule, vpp):
    """It would otherwise run part of the model and look fast."""
    with pytest.raises(InputError) as raised:
        small_job(gpus=2, pp=2, vpp=vpp, schedule=schedule)
    assert raised.value.faults[0].path == "plan.schedule"


def test_ranks_of_different_nodes_cannot_talk_without_nics():
    with pytest.raises(InputError) as raised:
        small_job(gpus=8, profile=network_profile(fabric={"nics_per_node": 0}))
    assert raised.value.faults[0].path == "cluster.network.fabric.nics_per_node"
    inside = small_job(gpus=4, profile=network_profile(fabric={"nics_per_node": 0}))
    assert replay(build_program(inside)).step_time_s > 0


def test_the_norm_of_a_pipeline_inside_a_node_stays_inside():
    job = small_job(gpus=4, tp=2, pp=2, profile=network_profile(fabric={"nics_per_node": 0}))
    norms = [op for op in build_program(job).operations if op.scope is Scope.WORLD]
    (issued,) = (norm.work.collectives[0] for norm in norms)
    assert issued.ranks == 4
    assert issued.port_bytes["fabric"] == 0.0


def test_operations_grow_with_microbatches_not_with_ranks():
    few_ranks, many_ranks = (
        len(build_program(small_job(gpus=n, global_batch=8 * n)).operations) for n in (8, 4096)
    )
    assert few_ranks == many_ranks
    order = schedule_order("1f1b", 1, 1, 8)
    assert few_ranks >= sum(len(slots) for slots in order)


def test_a_pipeline_that_comes_back_needs_no_copy_of_a_tied_embedding():
    """With V placement embedding and head lie on rank 0; with loops on the two ends."""
    tied = small_model(layers=8, tied_embeddings=True)
    v, loop = (
        build_program(small_job(tied, gpus=2, pp=2, vpp=2, global_batch=4, schedule=schedule))
        for schedule in ("zb-v", "interleaved-1f1b")
    )
    reductions = [
        [op for op in program.operations if op.kind is Kind.ALL_REDUCE and op.work.num_bytes > 4]
        for program in (v, loop)
    ]
    assert [len(found) for found in reductions] == [0, 1]


@pytest.mark.parametrize("schedule", ["dualpipe", "chimera"])
def test_a_pipeline_in_both_directions_holds_two_models_and_adds_their_gradients_up(schedule):
    fields = {"gpus": 4, "pp": 4, "global_batch": 8, "zero": 0}
    model = small_model(layers=8)
    two = build_program(small_job(model, schedule=schedule, **fields))
    one = build_program(small_job(model, schedule="1f1b", **fields))
    weights = [
        sum(dict(rank_class.resident)[Owner.WEIGHTS] for rank_class in program.classes)
        for program in (two, one)
    ]
    assert weights[0] == 2 * weights[1]
    sums = [op for op in two.operations if op.kind is Kind.ALL_REDUCE and op.work.num_bytes > 4]
    assert [{rank for rank, _ in op.lanes} for op in sums] == [{0, 3}, {1, 2}]
    passes = [op for op in two.operations if op.kind is Kind.FORWARD]
    assert len(passes) == 4 * 8
    assert replay(two).step_time_s > 0


def test_post_validation_lets_stages_update_without_a_norm_over_all_of_them():
    """Each waits for the one before it to have ended its backwards, and no more."""
    job = small_job(gpus=4, pp=4, schedule="zb-h1", post_validation=True)
    program = build_program(job)
    assert not of_kind(program, Kind.ALL_REDUCE)
    updates = of_kind(program, Kind.OPTIMIZER)
    waited = [{program.operations[i].lanes[0][0] for i in op.after} for op in updates]
    assert waited == [set(), {0}, {1}, {2}]


def test_post_validation_saves_what_ranks_wait_for_each_other():
    job = {"gpus": 4, "pp": 4, "global_batch": 16, "schedule": "zb-h2"}
    apart = run_step(small_job(**job, post_validation=True), "replay")
    together = run_step(small_job(**job), "replay")
    assert apart.step_time_s < together.step_time_s
    assert apart.asynchrony is None
    assert sum(apart.breakdown_s.values()) == pytest.approx(apart.step_time_s)


def test_post_validation_without_a_pipeline_is_refused():
    with pytest.raises(InputError, match="post_validation"):
        small_job(post_validation=True)


def test_blocking_interleaved_pairs_exchange_once():
    """The forward's result leaves beside the computation, the backward's holds it."""
    job = small_job(gpus=2, pp=2, vpp=2, global_batch=4, overlap_p2p=False)
    sends = of_kind(build_program(job), Kind.SEND_RECV)
    blocking = [op for op in sends if op.lanes[0][1] is Stream.COMPUTE]
    assert 0 < len(blocking) < len(sends)
    assert all(
        op.lanes[0][1] is not Stream.COMPUTE
        for op in of_kind(
            build_program(small_job(gpus=2, pp=2, vpp=2, global_batch=4)), Kind.SEND_RECV
        )
    )
