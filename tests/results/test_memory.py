"""Who holds how many bytes, when?"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.documents import data_folder
from simulator.described.load import load_job
from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.errors import InputError
from simulator.program.build import build_program
from simulator.program.ir import (
    Category,
    Kind,
    Operation,
    Owner,
    Program,
    RankClass,
    Stream,
    UnitBlocks,
    Work,
)
from simulator.results.memory import _Kinds, class_memory
from simulator.results.simulation import run_step
from tests.jobs import EqualPasses, jobs, pipeline_program, small_job, small_model
from tests.tiny import tiny_profile

DEVICE = tiny_profile().device
few = settings(max_examples=40, deadline=None)


@given(jobs(), st.sampled_from([replay, simulate_program]))
@few
def test_memory_returns_to_what_was_resident(job, engine):
    timeline = engine(build_program(job))
    for rank_class, memory in zip(
        timeline.program.classes, class_memory(timeline, DEVICE), strict=True
    ):
        resident: dict[Owner, float] = defaultdict(float)
        for owner, num_bytes in rank_class.resident:
            resident[owner] += num_bytes
        for owner, curve in memory.owner_bytes.items():
            assert curve[0] == resident.get(owner, 0.0)
            assert curve[-1] == pytest.approx(resident.get(owner, 0.0), abs=1e-9 * curve.max())


@given(jobs(), st.sampled_from([replay, simulate_program]))
@few
def test_no_owner_ever_gives_back_more_than_it_took(job, engine):
    """Counted from the program itself, where nothing is clipped."""
    timeline = engine(build_program(job))
    held: dict[tuple[int, Owner], list[tuple[float, int, float]]] = defaultdict(list)
    for index, operation in enumerate(timeline.program.operations):
        rank = operation.lanes[0][0]
        start, end = timeline.operation_start_s[index], timeline.operation_end_s[index]
        for blocks, sign, time_s in (
            (operation.takes, 1, start), (operation.frees, -1, start),
            (operation.leaves, 1, end), (operation.gives, -1, end),
        ):  # fmt: skip
            for owner, size in blocks:
                held[rank, owner].append((time_s, -sign, sign * size))
    for changes in held.values():
        sizes = np.asarray([size for _, _, size in sorted(changes)])
        assert np.cumsum(sizes).min() >= -1e-9 * sizes.max()


@given(jobs())
@few
def test_the_peak_is_the_largest_sum_over_owners_and_its_owners_add_up_to_it(job):
    timeline = replay(build_program(job))
    for memory in class_memory(timeline, DEVICE):
        total = np.sum(list(memory.owner_bytes.values()), axis=0)
        assert memory.peak_allocated_bytes == total.max()
        assert sum(memory.by_owner.values()) == pytest.approx(memory.peak_allocated_bytes)
        at_peak = np.searchsorted(memory.time_s, memory.peak_time_s, side="right")
        assert memory.peak_allocated_bytes in total[:at_peak]
        assert memory.peak_allocated_bytes <= memory.peak_reserved_bytes
        assert memory.peak_reserved_bytes <= memory.peak_device_bytes


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 4), (4, 8)])
def test_1f1b_holds_p_minus_stage_activations_and_gpipe_all_of_them(p, m):
    for schedule, most in (("1f1b", [p - i for i in range(p)]), ("gpipe", [m] * p)):
        timeline = replay(pipeline_program(schedule, p, 1, m))
        peaks = [memory.peak_allocated_bytes for memory in class_memory(timeline, DEVICE)]
        assert peaks == most


@pytest.mark.parametrize(
    ("schedule", "chunks", "most"),
    [
        ("interleaved-1f1b", 2, [11, 9, 7, 5]),
        ("zb-h1", 1, [4, 4, 4, 4]),
        ("zb-v", 2, [8, 8, 8, 8]),
        ("dualpipev", 2, [9, 9, 9, 9]),
    ],
)
def test_other_schedules_hold_what_their_papers_and_torch_say(schedule, chunks, most):
    """Four ranks, eight microbatches, in activations of one chunk.

    Interleaved: 2 (p - rank - 1) + (v - 1) p + 1 (arXiv 2104.04473, section 2.2); ZB-H1 and ZB-V
    no more than 1F1B on the first rank (arXiv 2401.10241, table 1; 2405.15362); DualPipe p + 1
    whole ones (arXiv 2412.19437, table 2), of which a V has 2 p + 1 halves. Torch's schedules
    hold the same.
    """
    timeline = replay(pipeline_program(schedule, 4, chunks, 8))
    peaks = [memory.peak_allocated_bytes for memory in class_memory(timeline, DEVICE)]
    assert peaks == most


def test_working_memory_counts_only_while_backward_runs():
    costs = EqualPasses(saved_bytes=10.0, working_bytes=3.0)
    (memory,) = class_memory(replay(pipeline_program("1f1b", 1, 1, 1, costs=costs)), DEVICE)
    assert memory.peak_allocated_bytes == 13.0
    assert memory.peak_time_s == 1.0
    assert memory.by_owner == {Owner.ACTIVATIONS: 10.0, Owner.TEMPORARIES: 3.0}
    assert memory.owner_bytes[Owner.TEMPORARIES][-1] == 0.0


def test_buckets_of_gradients_and_buffers_of_transfers_are_there_together():
    """DistributedDataParallel's buckets are as large as the gradients, 2 bytes each."""
    plan = {"stack": {"base": "torch", "keeps_master_weights": False}, "zero": 0, "pp": 2}
    result = run_step(small_job(gpus=4, **plan))
    program = result.timeline.program
    resident = [num for owner, num in program.classes[0].resident if owner is Owner.COMMUNICATION]
    assert len(resident) == 2
    assert min(result.memory[0].owner_bytes[Owner.COMMUNICATION]) >= sum(resident)


def test_what_is_given_back_at_one_moment_makes_room_for_what_is_taken_then():
    program = Program((RankClass("stage 0", 0, 1, 0, ((Owner.WEIGHTS, 100.0),)),))
    for _ in range(2):
        operation = Operation(
            Kind.FORWARD, ((0, Stream.COMPUTE),), Work(1.0), Category.FORWARD,
            holds=((Owner.TEMPORARIES, 7.0),),
        )  # fmt: skip
        program.add(operation)
    (memory,) = class_memory(replay(program), DEVICE)
    assert memory.peak_allocated_bytes == 107.0


def test_an_operation_that_takes_no_time_holds_its_memory_for_a_moment():
    program = Program((RankClass("stage 0", 0, 1, 0),))
    operation = Operation(
        Kind.FORWARD, ((0, Stream.COMPUTE),), Work(0.0), Category.FORWARD,
        holds=((Owner.TEMPORARIES, 7.0),),
    )  # fmt: skip
    program.add(operation)
    (memory,) = class_memory(replay(program), DEVICE)
    assert memory.peak_allocated_bytes == 7.0
    assert memory.owner_bytes[Owner.TEMPORARIES][-1] == 0.0


def test_a_transfer_books_its_memory_on_the_sender_alone():
    program = Program(tuple(RankClass(f"stage {i}", i, 1, i) for i in range(2)))
    lanes = ((0, Stream.SEND_NEXT), (1, Stream.RECV_PREVIOUS))
    holds = ((Owner.COMMUNICATION, 5.0),)
    program.add(Operation(Kind.SEND_RECV, lanes, Work(1.0), Category.PIPELINE, holds=holds))
    memories = class_memory(replay(program), DEVICE)
    assert [memory.peak_allocated_bytes for memory in memories] == [5.0, 0.0]


def test_checkpoints_in_a_buffer_of_their_own_leave_fewer_holes():
    """The buffer is there all step, and less of what is reserved around it lies unused."""
    job = load_job(
        data_folder("workloads") / "gpt3-175b-1024xa100.yaml", {"plan.recompute": "full"}
    )
    loose, contiguous = (
        run_step(job.replace({"plan.contiguous_checkpoints": asked}), "replay").memory[0]
        for asked in (False, True)
    )
    buffer_bytes = contiguous.owner_bytes[Owner.ACTIVATIONS]
    assert set(buffer_bytes) == {loose.owner_bytes[Owner.ACTIVATIONS].max()}
    assert contiguous.peak_allocated_bytes >= loose.peak_allocated_bytes
    unused = [m.peak_reserved_bytes - m.peak_allocated_bytes for m in (loose, contiguous)]
    assert unused[1] < 0.8 * unused[0]


def test_a_buffer_for_checkpoints_needs_checkpoints():
    with pytest.raises(InputError, match=r"plan\.contiguous_checkpoints.*plan\.recompute: full"):
        small_job(contiguous_checkpoints=True)


@pytest.mark.parametrize("expandable", [False, True])
def test_whatever_segments_are_some_of_what_is_reserved_is_never_used(expandable):
    stack = {"base": "torch", "expandable_segments": expandable}
    memory = run_step(small_job(zero=0, stack=stack)).fullest
    assert memory.peak_reserved_bytes >= 1.04 * memory.peak_allocated_bytes


def test_shards_of_gradients_lie_apart_where_they_are_asked_for_on_the_reductions_stream(
    monkeypatch,
):
    """They are gone when the step is fullest, but their memory serves nothing else.

    Nor does that of the table of tokens, which is copied while the first layer is gathered.
    Expandable segments leave no other gaps; each pool ends on a page of 20 MiB.
    """
    monkeypatch.setattr("simulator.results.memory.least_unused_share", lambda settings: 0.0)
    page = 20 * 2**20
    model = small_model(hidden=1024, ffn_hidden=4096, vocab=32000)
    batch = {"gpus": 4, "global_batch": 32, "micro_batch": 8, "seq_len": 1024}
    stack = {"base": "torchtitan", "expandable_segments": True}
    apart, mixed = (
        run_step(small_job(model, **batch, zero=3, stack=stack | own)).fullest
        for own in ({}, {"reduces_on_own_stream": False})
    )
    shards = mixed.by_owner[Owner.MASTER_WEIGHTS]  # fp32, too
    assert apart.peak_allocated_bytes == mixed.peak_allocated_bytes
    assert apart.by_owner == mixed.by_owner
    buffer_bytes = 2 * model.vocab * model.hidden
    more_bytes = apart.peak_reserved_bytes - mixed.peak_reserved_bytes
    assert 0 <= more_bytes - shards - buffer_bytes < 3 * page


@pytest.mark.parametrize(("head", "reserved"), [(40, 100), (80, 180)])
def test_what_a_layer_gave_back_stays_reserved_and_serves_a_head_that_fits_in_it(head, reserved):
    """The layer keeps 40 MiB and gives back 60, which never lie beside the head's."""
    mib = 2**20
    program = Program((RankClass("stage 0", 0, 1, 0),))
    kept = ((Owner.ACTIVATIONS, 40 * mib),)
    units = (UnitBlocks(kept, (((Owner.TEMPORARIES, 60 * mib),),)), UnitBlocks((), ()))
    program.add(
        Operation(
            Kind.FORWARD, ((0, Stream.COMPUTE),), Work(1.0), Category.FORWARD,
            takes=kept, gives=kept, holds=((Owner.LOGITS, head * mib),), by_unit=units,
        )
    )  # fmt: skip
    (memory,) = class_memory(replay(program), DEVICE)
    assert memory.peak_allocated_bytes == (40 + head) * mib
    assert memory.peak_reserved_bytes == reserved * mib


def test_a_compiler_that_places_all_tensors_leaves_nothing_unused():
    """As XLA's buffer assignment; its reports print 0.2 to 0.4 % of fragmentation."""
    for stack in ("jax", {"base": "torch", "plans_memory": True}):
        job = small_job(gpus=2, zero=3, global_batch=4, stack=stack)
        memory = run_step(job).fullest
        assert memory.peak_reserved_bytes == memory.peak_allocated_bytes


def test_operations_that_do_the_same_with_memory_are_counted_as_one_kind():
    """Microbatches and layers of ZeRO 3 make thousands of operations of few kinds."""
    job = small_job(small_model(layers=8), gpus=4, zero=3, global_batch=64)
    program = build_program(job)
    kinds = _Kinds(program)
    numbers = [kinds.of(operation) for operation in program.operations]
    assert len(kinds.operations) < len(numbers) / 10
    for number, operation in zip(numbers, program.operations, strict=True):
        alike = kinds.operations[number]
        for field in ("turns", "frees", "holds", "takes", "gives", "leaves", "by_unit"):
            assert getattr(alike, field) == getattr(operation, field)
