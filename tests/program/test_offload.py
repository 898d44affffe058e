"""Does offloading move, hold and cost what its papers say?"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.documents import data_folder
from simulator.described.job import Job
from simulator.described.load import load_job
from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.planning.search.bound import plan_bounds
from simulator.planning.search.space import plan_space
from simulator.program.build import build_program
from simulator.program.ir import Category, Kind, Owner, Program, Stream
from simulator.program.states.outside_memory import PARAMETER_BUFFERS, offloaded_states
from simulator.program.states.resident import ParameterCount, resident_memory
from simulator.results.fit_probability import Fit
from simulator.results.simulation import run_step
from tests.jobs import host_profile, small_job
from tests.program.offloading import (
    CHECKPOINTS,
    FSDP,
    IN_MEMORY,
    INFINITY,
    MEGATRON,
    ZERO_OFFLOAD,
    moved_bytes,
    offload_job,
)
from tests.unfolded import check_unfolds

GB = 1e9
ON_ONE_V100 = data_folder("workloads") / "gpt3-13b-1xv100-zero-offload.yaml"
COPIES = {Kind.COPY_TO_HOST, Kind.COPY_TO_DEVICE, Kind.NVME_READ, Kind.NVME_WRITE}

PLANS = [
    ZERO_OFFLOAD,
    {**ZERO_OFFLOAD, "offload": {"optimizer": "cpu", "delayed_update": True}},
    {**ZERO_OFFLOAD, "zero": 1},
    INFINITY,
    {**INFINITY, "offload": {"optimizer": "cpu", "parameters": "nvme"}},
    FSDP,
    MEGATRON,
    {"zero": 1, "offload": {"optimizer": "cpu", "share": 0.25}},
    {"zero": 1, "offload": {"activations": "cpu"}},
    {"zero": 1, "offload": {"activations": "cpu", "activation_layers": 2}},
    {"zero": 3, "stack": "torchtitan", "offload": {**IN_MEMORY, "activations": "cpu"}},
    CHECKPOINTS,
]


@pytest.mark.parametrize("gpus", [1, 8])
def test_training_updates_on_the_host_at_a_share_of_the_rate_of_the_optimizer_alone(gpus):
    """A quarter of the rate, and the processors take four times as long, with one rank too."""

    def taken_s(share: float) -> float:
        stack = {"base": "deepspeed", "host_update_share": share}
        job = offload_job(gpus=gpus, **{**ZERO_OFFLOAD, "stack": stack})
        return seconds_of(job, Kind.OPTIMIZER, Stream.HOST)

    assert taken_s(0.25) == pytest.approx(4.0 * taken_s(1.0))


def numel(job: Job) -> float:
    """Parameters of a rank before sharding."""
    plain = {"stack": job.plan.stack, "zero": 0, "precision": job.plan.precision}
    held = small_job(job.model, **plain)
    (rank_class,) = build_program(held).classes
    return dict(rank_class.resident)[Owner.OPTIMIZER_STATES] / 8


def seconds_of(job: Job, kind: Kind, stream: Stream) -> float:
    timeline = simulate_program(build_program(job))
    ids = timeline.program.lanes[0, stream]
    return sum(
        float(timeline.operation_end_s[i] - timeline.operation_start_s[i])
        for i in ids
        if timeline.program.operations[i].kind is kind
    )


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_zero_offload_moves_two_bytes_of_gradients_down_and_of_weights_up(gpus):
    """2 B per parameter each way and model, divided over data-parallel ranks (section 4)."""
    job = offload_job(gpus=gpus, global_batch=gpus, **ZERO_OFFLOAD)
    program = build_program(job)
    assert moved_bytes(program, Kind.COPY_TO_HOST) == pytest.approx(2 * numel(job) / gpus)
    assert moved_bytes(program, Kind.COPY_TO_DEVICE) == pytest.approx(2 * numel(job) / gpus)


def test_deepspeed_fetches_what_later_microbatches_are_added_to():
    """Gradients go down with every microbatch, and come up for all but the first."""
    job = offload_job(global_batch=4, **ZERO_OFFLOAD)
    program, size = build_program(job), 2 * numel(job)
    assert moved_bytes(program, Kind.COPY_TO_HOST) == pytest.approx(4 * size)
    assert moved_bytes(program, Kind.COPY_TO_DEVICE) == pytest.approx(3 * size + size)


def test_fsdp_adds_later_microbatches_up_on_the_cpu():
    """Its fp32 weights come up for every forward and backward, its fp32 gradients go down."""
    job = offload_job(gpus=4, global_batch=8, reshard_after_forward=True, **FSDP)
    program, shard = build_program(job), numel(job) / 4
    assert moved_bytes(program, Kind.COPY_TO_HOST) == pytest.approx(2 * 4 * shard)
    added = [
        op
        for op in program.operations
        if any(part.name == "add_gradients" for part in op.work.parts)
    ]
    assert sum(op.work.num_bytes for op in added) == pytest.approx(3 * 4 * shard)


PASSES = (Kind.FORWARD, Kind.BACKWARD)


def additions(program: Program) -> list[int]:
    """Operations that add gradients up on the CPU."""
    named = enumerate(program.operations)
    return [i for i, op in named if any(part.name == "add_gradients" for part in op.work.parts)]


def test_fsdp_launches_nothing_before_a_piece_of_a_later_microbatch_is_added():
    """``foreach_reduce`` copies without ``non_blocking`` where there is a gradient already."""
    timeline = replay(build_program(offload_job(gpus=4, global_batch=12, **FSDP)))
    operations, start_s = timeline.program.operations, timeline.operation_start_s
    passes = [i for i in timeline.program.lanes[0, Stream.COMPUTE] if operations[i].kind in PASSES]
    added = additions(timeline.program)
    assert added
    for addition in added:
        copied = operations[addition].after[0]
        done_s = timeline.operation_end_s[addition]
        assert all(start_s[i] >= done_s or i < copied for i in passes)


def test_fsdp_waits_for_all_copies_before_the_next_microbatch():
    """``finalize_backward``, which waits for the events of copies that did not block."""
    slow = host_profile(pcie="10 MB/s")
    timeline = replay(build_program(offload_job(gpus=4, global_batch=8, profile=slow, **FSDP)))
    operations = list(enumerate(timeline.program.operations))
    second = [i for i, op in operations if op.kind is Kind.FORWARD and op.microbatch == 1]
    sent = [i for i, op in operations if op.kind is Kind.COPY_TO_HOST and i < second[0]]
    sent_s = max(timeline.operation_end_s[i] for i in sent)
    fetched = [i for i, op in operations if op.kind is Kind.COPY_TO_DEVICE and i > sent[-1]]
    assert min(timeline.operation_start_s[i] for i in fetched) == sent_s
    assert min(timeline.operation_start_s[i] for i in second) > sent_s


def test_deepspeed_goes_on_while_gradients_travel():
    """It adds them up on the GPU, on streams of their own."""
    slow = host_profile(pcie="10 MB/s")
    plan = {**ZERO_OFFLOAD, "zero": 3}
    timeline = replay(build_program(offload_job(gpus=4, global_batch=8, profile=slow, **plan)))
    operations = list(enumerate(timeline.program.operations))
    starts_s = [timeline.operation_start_s[i] for i, op in operations if op.kind in PASSES]
    spans = [
        (timeline.operation_start_s[i], timeline.operation_end_s[i])
        for i, op in operations
        if op.kind is Kind.COPY_TO_HOST
    ]
    assert any(first < start < last for start in starts_s for first, last in spans)


def test_megatron_sends_fp32_gradients_once_and_gets_sixteen_bits_back():
    job = offload_job(global_batch=4, **MEGATRON)
    program = build_program(job)
    assert moved_bytes(program, Kind.COPY_TO_HOST) == pytest.approx(4 * numel(job))
    assert moved_bytes(program, Kind.COPY_TO_DEVICE) == pytest.approx(2 * numel(job))


def test_infinity_reads_states_and_gradients_and_writes_them_back():
    """States of 12 B, gradients of 2, and weights of 2: read for each of two uses, written once."""
    job = offload_job(global_batch=1, reshard_after_forward=True, **INFINITY)
    program, count = build_program(job), numel(job)
    read, written = (moved_bytes(program, k) for k in (Kind.NVME_READ, Kind.NVME_WRITE))
    assert written == pytest.approx((12 + 2 + 2) * count)
    assert read == pytest.approx((12 + 2 + 2 * 2) * count)


def test_zero_offload_leaves_two_of_sixteen_bytes_on_the_gpu():
    """2 M of weights on the GPU, 14 M on the host (arXiv 2101.06840, section 4.1)."""
    job = offload_job(**ZERO_OFFLOAD)
    one = ParameterCount(1e12)
    on_gpu = dict(resident_memory(job, one))
    host, drives = offloaded_states(job, one)
    on_host = {owner: size for owner, size in host if owner is not Owner.COMMUNICATION}
    assert {owner: size for owner, size in on_gpu.items() if size} == {Owner.WEIGHTS: 2e12}
    assert sum(on_host.values()) == 14e12
    assert not drives


@pytest.mark.parametrize(("parameters", "weights_bytes"), [(None, 0), ("cpu", 4)])
def test_fp32_weights_that_the_cpus_update_are_on_the_host_once(parameters, weights_bytes):
    """4 M of weights, whether they are only updated there or fetched from there, too."""
    offload = {"optimizer": "cpu", "parameters": parameters}
    job = offload_job(stack="deepspeed", precision="fp32", zero=3, offload=offload)
    host = dict(offloaded_states(job, ParameterCount(1e12))[0])
    assert host.get(Owner.WEIGHTS, 0) == weights_bytes * 1e12
    assert host.get(Owner.MASTER_WEIGHTS, 0) == (4 - weights_bytes) * 1e12
    assert host[Owner.OPTIMIZER_STATES] == 8e12


@pytest.mark.parametrize(
    ("layers", "hidden", "printed_tib"),
    [
        (80, 10 * 1024, 1.83),
        (100, 20 * 1024, 9.16),
        (128, 25 * 1024, 18.31),
        (195, 64 * 1024, 182.81),
        (315, 160 * 1024, 1845.70),
    ],
)
def test_infinity_puts_the_model_states_of_its_paper_on_drives(layers, hidden, printed_tib):
    """ZeRO-Infinity, arXiv 2104.07857, figure 2a: 20 B of each of 12 l h^2 parameters."""
    plan = {**INFINITY, "stack": {"base": "deepspeed", "copies_gradients": True}}
    host, drives = offloaded_states(offload_job(**plan), ParameterCount(12.0 * layers * hidden**2))
    assert sum(size for _, size in drives) / 2**40 == pytest.approx(printed_tib, abs=0.006)
    assert {owner for owner, _ in host} == {Owner.COMMUNICATION}


def test_pinned_buffers_do_not_grow_with_the_model():
    job = offload_job(**ZERO_OFFLOAD)
    small, large = (
        dict(offloaded_states(job, ParameterCount(count))[0])[Owner.COMMUNICATION]
        for count in (1e9, 1e12)
    )
    assert small == large


def test_an_update_on_the_cpu_takes_its_bytes_at_the_rate_of_its_cores():
    """30 B per parameter and 4 to scale; one GPU has 40 GB/s x 0.5, four their share."""
    for gpus in (1, 4):
        job = offload_job(gpus=gpus, global_batch=gpus, clip_gradients=True, **ZERO_OFFLOAD)
        alone_s = seconds_of(job, Kind.OPTIMIZER, Stream.HOST) * job.plan.stack.host_update_share
        assert alone_s == pytest.approx((30 + 4) * numel(job) / (20 * GB))


def test_cpu_adam_takes_as_long_as_on_a_dgx_2():
    """ZeRO-Offload, table 4: 10 billion parameters in 2.57 s, 1 billion in 0.22 s.

    That is the optimizer alone, without the pass that scales its gradients.
    """
    alone = {"host_update_share": 1.0, "scales_gradients": "in-update"}
    stack = {"base": "deepspeed", **alone, "unscales_separately": False}
    job = load_job(ON_ONE_V100).replace({"plan.stack": stack})
    (count,) = (
        size / 8
        for owner, size in build_program(job).classes[0].host
        if owner is Owner.OPTIMIZER_STATES
    )
    took_s = seconds_of(job, Kind.OPTIMIZER, Stream.HOST)
    assert took_s * 10e9 / count == pytest.approx(2.57, rel=0.02)
    assert took_s * 1e9 / count == pytest.approx(0.22, rel=0.2)


def test_thirteen_billion_parameters_train_on_one_v100_with_offload_only():
    job = load_job(ON_ONE_V100)
    with_offload = run_step(job, "replay").fullest
    assert with_offload.peak_device_bytes < with_offload.capacity_bytes
    without = run_step(job.replace({"plan.offload.optimizer": None}), "replay")
    assert without.fit is Fit.DOES_NOT_FIT


def test_a_delayed_update_hides_behind_the_next_step():
    """A step is the longer of the passes and the update, and the copy of the weights."""
    job = offload_job(global_batch=1, **ZERO_OFFLOAD)
    delayed = offload_job(
        global_batch=1, **{**ZERO_OFFLOAD, "offload": {"optimizer": "cpu", "delayed_update": True}}
    )
    update_s = seconds_of(job, Kind.OPTIMIZER, Stream.HOST)
    whole_s, delayed_s = (run_step(each, "replay").step_time_s for each in (job, delayed))
    assert delayed_s == pytest.approx(whole_s - update_s)


def test_a_delayed_update_is_not_synchronous_training():
    plan = {**ZERO_OFFLOAD, "offload": {"optimizer": "cpu", "delayed_update": True}}
    found = run_step(offload_job(**plan), "replay").asynchrony
    assert found.staleness_updates == found.weight_versions == (1,)
    assert "CPUs update while the next step runs" in found.statement
    assert run_step(offload_job(**ZERO_OFFLOAD), "replay").asynchrony is None


def test_a_delayed_update_waits_where_cpus_are_slower_than_gpus():
    slow = host_profile(memory_bandwidth="40 MB/s")
    plan = {**ZERO_OFFLOAD, "offload": {"optimizer": "cpu", "delayed_update": True}}
    job = offload_job(profile=slow, global_batch=1, **plan)
    step_s = run_step(job, "replay").step_time_s
    update_s = 30 * numel(job) / 20e6 / job.plan.stack.host_update_share
    assert update_s < step_s < 1.2 * update_s


def test_with_overlap_fetching_parameters_costs_less_than_the_formula_without():
    """Efficiency is ait bw / (ait bw + peak) where nothing overlaps (ZeRO-Infinity, eq. 6).

    That is compute / (compute + bytes / bw). Overlapped, passes take no longer than that, and
    no less than computing, or than moving what one direction of the link carries.
    """
    stack = {"base": "deepspeed", "host_work_per_launch": 1}
    base = offload_job(global_batch=1, zero=3, stack=stack, recompute="full")
    passes = {Category.FORWARD, Category.BACKWARD, Category.RECOMPUTE, Category.HOST}
    compute_s = sum(s for c, s in run_step(base).breakdown_s.items() if c in passes)
    for rate in (0.01, 0.1, 1, 10):
        job = offload_job(
            profile=host_profile(pcie=f"{rate} GB/s"), global_batch=1, zero=3, stack=stack,
            recompute="full", offload=IN_MEMORY, reshard_after_forward=True,
        )  # fmt: skip
        step = run_step(job)
        passes_s = step.step_time_s - step.breakdown_s[Category.OPTIMIZER]
        up_s, down_s = (
            moved_bytes(build_program(job), kind) / (rate * GB)
            for kind in (Kind.COPY_TO_DEVICE, Kind.COPY_TO_HOST)
        )
        launches_s = 5e-6 * len(step.timeline.program.operations)
        assert max(compute_s, up_s) <= passes_s * (1 + 1e-9) + launches_s
        assert passes_s <= compute_s + up_s + down_s + launches_s


def test_copies_and_the_update_share_the_memory_of_the_host():
    """Copies that need all of it slow down beside each other, and never speed up."""
    narrow = host_profile(memory_bandwidth="1 GB/s", pcie="1 GB/s")
    plan = {**INFINITY, "stack": {"base": "deepspeed", "host_work_per_launch": 1}}
    job = offload_job(profile=narrow, gpus=1, global_batch=4, **plan)
    program = build_program(job)
    assert simulate_program(program).step_time_s > 1.005 * replay(program).step_time_s


def test_gpus_behind_one_switch_share_its_link():
    alone, shared = (
        offload_job(
            profile=host_profile(gpus_per_pcie_link=n), gpus=4, global_batch=4, **ZERO_OFFLOAD
        )
        for n in (1, 4)
    )
    took = [
        sum(
            op.work.seconds - op.work.traffic.latency_s
            for op in build_program(job).operations
            if op.kind is Kind.COPY_TO_HOST
        )
        for job in (alone, shared)
    ]
    assert took[1] == pytest.approx(4 * took[0])


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_offloading_gives_ranks_the_same_timeline_folded_and_unfolded(plan):
    job = offload_job(gpus=8, global_batch=16, **plan)
    check_unfolds(job)
    assert run_step(job, unfolded=True).host == run_step(job).host


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(PLANS),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(["10 MB/s", "100 MB/s", "1 GB/s"]),
    st.sampled_from([1, 2]),
)
def test_faster_links_to_the_host_never_make_a_step_slower(plan, gpus, pcie, accumulated):
    slow, fast = (
        replay(
            build_program(
                offload_job(
                    profile=host_profile(pcie=rate), gpus=gpus, global_batch=gpus * accumulated,
                    **plan,
                )
            )
        ).step_time_s
        for rate in (pcie, "2 GB/s")
    )  # fmt: skip
    assert fast <= slow * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(PLANS),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(["10 MB/s", "1 GB/s"]),
    st.sampled_from([1, 3]),
)
def test_offloading_never_raises_the_peak_of_a_gpu(plan, gpus, pcie, accumulated):
    fields = {"gpus": gpus, "global_batch": gpus * accumulated, "profile": host_profile(pcie=pcie)}
    away = run_step(offload_job(**fields, **plan))
    stays = run_step(offload_job(**fields, **{k: v for k, v in plan.items() if k != "offload"}))
    assert away.memory[0].peak_allocated_bytes <= stays.memory[0].peak_allocated_bytes * (1 + 1e-9)


def test_switched_off_everything_is_as_without():
    job = offload_job(gpus=4, zero=2, stack="deepspeed")
    off = offload_job(gpus=4, zero=2, stack="deepspeed", offload={"optimizer": None})
    assert run_step(off).step_time_s == run_step(job).step_time_s
    assert not {op.kind for op in build_program(job).operations} & COPIES
    assert run_step(job).host is None


def test_time_that_passes_in_copies_and_on_cpus_is_named():
    step = run_step(offload_job(global_batch=2, **ZERO_OFFLOAD))
    assert sum(step.breakdown_s.values()) == pytest.approx(step.step_time_s)
    assert step.breakdown_s[Category.OPTIMIZER] > 0
    assert step.exposed_comm_s[Category.OFFLOAD] > 0
    assert not step.bubble_fraction


def test_a_node_needs_room_for_what_leaves_all_of_its_gpus():
    job = offload_job(gpus=8, global_batch=8, **ZERO_OFFLOAD)
    host = run_step(job).host
    (rank_class,) = build_program(job).classes
    assert sum(host.held_bytes.values()) == pytest.approx(4 * sum(s for _, s in rank_class.host))
    assert host.fits
    small = offload_job(gpus=8, global_batch=8, profile=host_profile(memory="1 MB"), **ZERO_OFFLOAD)
    assert not run_step(small).fits


def test_weights_are_read_from_drives_no_further_ahead_than_there_are_buffers():
    """DeepSpeed's ``buffer_count`` of them: the next read waits until the first is copied on."""
    operations = build_program(offload_job(global_batch=1, **INFINITY)).operations
    fetches = [i for i, op in enumerate(operations) if op.kind is Kind.COPY_TO_DEVICE]
    assert len(fetches) > PARAMETER_BUFFERS
    for emptied, fetch in zip(fetches, fetches[PARAMETER_BUFFERS:], strict=False):
        (read,) = (i for i in operations[fetch].after if operations[i].kind is Kind.NVME_READ)
        assert operations[read].after == (emptied,)


@pytest.mark.parametrize("clips", [True, False])
def test_a_gpu_without_peers_updates_on_the_cpu_after_its_last_backward(clips):
    timeline = replay(build_program(offload_job(gpus=1, clip_gradients=clips, **MEGATRON)))
    rows = timeline.to_frame()
    backward_end_s = rows[rows.kind == Kind.BACKWARD].end_s.max()
    sent = rows[rows.kind == Kind.COPY_TO_HOST]
    assert len(sent)
    assert sent.start_s.min() >= backward_end_s


def test_a_pipeline_updates_on_the_cpu_after_its_last_backward():
    job = offload_job(gpus=4, pp=2, global_batch=8, **MEGATRON)
    step = run_step(job)
    program = step.timeline.program
    assert {lane for lane in program.lanes if lane[1] is Stream.HOST} == {
        (0, Stream.HOST),
        (1, Stream.HOST),
    }
    assert step.host.fits


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_what_plans_must_take_at_least_stays_below_what_they_take(plan):
    job = offload_job(gpus=8, global_batch=16, **plan)
    given = ("tp", "pp", "vpp", "cp", "ep", "zero", "recompute")
    only = {f"plan.{name}": [getattr(job.plan, name)] for name in given}
    bounds = plan_bounds(plan_space(job, {**only, "batch.micro": [1]}))
    step = run_step(job)
    if not step.asynchrony:
        assert bounds.step_time_s[0] <= step.step_time_s
    assert bounds.peak_device_bytes[0] <= step.memory[0].peak_device_bytes
