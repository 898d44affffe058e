"""Do activations leave, come back and free what their frameworks and papers say?"""

from __future__ import annotations

import pytest

from simulator.program.build import build_program
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Kind, Owner
from simulator.program.price.stage_cost import StageCosts
from simulator.program.run.host_copies import offload_windows
from simulator.results.simulation import run_step
from tests.jobs import host_profile, small_model
from tests.program.offloading import CHECKPOINTS, moved_bytes, offload_job


def test_activations_of_all_but_the_last_layer_leave_and_come_back():
    base = offload_job(global_batch=1, zero=1)
    job = offload_job(global_batch=1, zero=1, offload={"activations": "cpu"})
    program = build_program(job)
    kept = sum(size for owner, size in program.classes[0].host if owner is Owner.ACTIVATIONS)
    assert moved_bytes(program, Kind.COPY_TO_HOST) == pytest.approx(kept)
    assert moved_bytes(program, Kind.COPY_TO_DEVICE) == pytest.approx(kept)
    before, after = (run_step(each).memory[0] for each in (base, job))
    saved = before.by_owner[Owner.ACTIVATIONS]
    assert kept == pytest.approx(saved * 3 / 4, rel=0.01)
    assert after.peak_allocated_bytes < before.peak_allocated_bytes


@pytest.mark.parametrize(("schedule", "together"), [("1f1b", 1), ("gpipe", 4), ("looped-bfs", 4)])
def test_activations_of_every_microbatch_come_back_however_many_are_away(schedule, together):
    job = offload_job(
        global_batch=4, zero=1, offload={"activations": "cpu"}, schedule=schedule, stack="torch"
    )
    program = build_program(job)
    away, back = (moved_bytes(program, kind) for kind in (Kind.COPY_TO_HOST, Kind.COPY_TO_DEVICE))
    assert away == pytest.approx(back)
    on_host = sum(size for owner, size in program.classes[0].host if owner is Owner.ACTIVATIONS)
    assert on_host == pytest.approx(away * together / job.microbatches)
    assert run_step(job).memory[0].peak_reserved_bytes > 0


@pytest.mark.parametrize(
    ("layers", "count", "ends"),
    [(4, 3, [1, 2, 3]), (8, 2, [3, 7]), (8, 3, [2, 5, 7]), (80, 20, list(range(3, 80, 4)))],
)
def test_copies_share_out_the_layers_of_the_model(layers, count, ends):
    """``layer_window_map`` of Transformer Engine, worked out by hand."""
    assert offload_windows(layers, count) == ends


def test_some_layers_activations_leave_and_only_theirs():
    jobs = [
        offload_job(small_model(layers=8), global_batch=1, zero=1, offload=offload)
        for offload in ({}, {"activations": "cpu", "activation_layers": 2}, {"activations": "cpu"})
    ]
    none, some, all_but_one = (build_program(job).classes[0].host for job in jobs)
    layer = StageCosts(jobs[0]).saved(Slice(0, 1))
    kept = sum(size for owner, size in layer if owner is Owner.ACTIVATIONS)
    assert not none
    assert dict(some)[Owner.ACTIVATIONS] == pytest.approx(2 * kept)
    assert dict(all_but_one)[Owner.ACTIVATIONS] == pytest.approx(7 * kept)
    copied = [build_program(job) for job in jobs[1:]]
    assert [moved_bytes(p, Kind.COPY_TO_HOST) / kept for p in copied] == pytest.approx([2, 7])
    assert [moved_bytes(p, Kind.COPY_TO_DEVICE) / kept for p in copied] == pytest.approx([2, 7])


def test_layers_that_leave_are_gone_when_backward_begins():
    """On a fast link the peak is that of the layers that stay, and of one that comes back."""
    fast, none = host_profile(pcie="1 PB/s"), {}
    some = {"activations": "cpu", "activation_layers": 6}
    model = small_model(layers=8)
    peaks = [
        run_step(offload_job(model, global_batch=1, zero=1, offload=offload, profile=fast)).memory[
            0
        ]
        for offload in (none, some)
    ]
    saved = [peak.by_owner[Owner.ACTIVATIONS] for peak in peaks]
    assert saved[1] == pytest.approx(saved[0] * (2 + 1) / 8, rel=0.02)


def test_partitioned_checkpoints_keep_their_part_and_are_gathered_once_per_layer():
    plain, parts = (
        offload_job(
            gpus=4, tp=4, sequence_parallel=False, recompute="full", global_batch=1, micro_batch=1,
            stack="deepspeed", partition_activations=partition,
        )
        for partition in (False, True)
    )  # fmt: skip
    layers = plain.model.layers
    again = [
        StageCosts(job).units.of(StageCosts(job).units.layers[0]).times.time.recompute
        for job in (plain, parts)
    ]
    assert again[1].kernels == again[0].kernels
    assert again[1].exchanges == again[0].exchanges + 1
    gathers = [
        c
        for op in build_program(parts).operations
        for c in op.work.collectives
        if c.name == "checkpoint"
    ]
    checkpoint_bytes = 2 * plain.batch.seq_len * plain.model.hidden
    assert [c.num_bytes for c in gathers] == [checkpoint_bytes] * layers
    taken = [
        sum(size for op in build_program(job).operations if op.kind is Kind.FORWARD
            for owner, size in op.takes if owner is Owner.ACTIVATIONS)
        for job in (plain, parts)
    ]  # fmt: skip
    assert taken[0] - taken[1] == pytest.approx(layers * checkpoint_bytes * 3 / 4)
    assert run_step(parts).step_time_s > run_step(plain).step_time_s


def test_partitioned_checkpoints_leave_for_the_cpu_in_parts():
    """P_a+cpu."""
    plan = {**CHECKPOINTS, "tp": 4, "sequence_parallel": False, "gpus": 4, "global_batch": 1}
    whole, parts = (
        moved_bytes(build_program(offload_job(**plan, partition_activations=p)), Kind.COPY_TO_HOST)
        for p in (False, True)
    )
    assert parts == pytest.approx(whole / 4)
