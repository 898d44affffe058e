"""What an optimizer holds for a moment, against sums by hand and against torch."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simulator.cost.kernel_time import memory_bound_s
from simulator.described.model import Experts
from simulator.engine.replay import replay
from simulator.program.build import build_program
from simulator.program.grid.stage_layers import stage_slices
from simulator.program.ir import Kind, Owner, total_bytes
from simulator.program.states.resident import slice_parameters, state_bytes
from simulator.program.states.update_memory import first_states, starting_memory, update_memory
from simulator.results.memory import class_memory
from tests.jobs import gpt_model, small_job, small_model

FLAT = {"base": "internevo"}
FUSED = {"base": "internevo", "update_copies": 0, "norm_copies": False}


def job_of(stack, **plan):
    return small_job(gpus=4, precision="bf16", stack=stack, global_batch=16, **plan)


def held(job):
    runs = stage_slices(job, 1)
    numel = sum(slice_parameters(job, run).total for run in runs)
    return update_memory(job, runs), numel


def test_a_flat_update_holds_a_copy_of_the_gradients_and_two_fp32_tensors():
    """fp32 gradients, the root of the second moment, and what it is added to: 12 bytes each."""
    memory, numel = held(job_of(FLAT, tp=4))
    assert memory.holds == (
        (Owner.GRADIENTS, 4 * numel),
        (Owner.TEMPORARIES, 4 * numel),
        (Owner.TEMPORARIES, 4 * numel),
    )


def test_the_norm_is_taken_of_copies_and_then_the_gradients_are_made_flat():
    memory, numel = held(job_of(FLAT, tp=4))
    norm, flat = memory.turns
    assert len(norm) > 1
    assert total_bytes(norm) == pytest.approx(4 * numel)
    assert flat == ((Owner.GRADIENTS, 2 * numel),)


CAST = {"base": "torch", "casts_flat_gradients": True, "main_grad_precision": "bf16"}


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_deepspeed_casts_a_flat_copy_of_the_gradients_that_a_rank_updates_with(zero):
    """Two bytes and four beside those that are there; then the first two are free."""
    job = job_of(CAST, zero=zero, sequence_parallel=False)
    memory, numel = held(job)
    assert memory.turns == (((Owner.GRADIENTS, 2 * numel / 4), (Owner.GRADIENTS, numel)),)
    assert total_bytes(memory.holds) == 2 * numel / 4
    assert starting_memory(job, stage_slices(job, 1)) == ((Owner.GRADIENTS, numel),)


def test_zero_three_casts_a_billion_elements_at_a_time():
    job = small_job(
        gpus=4, precision="bf16", zero=3, stack=CAST, global_batch=16,
        model=gpt_model(layers=4, hidden=16384, ffn_hidden=65536),
    )  # fmt: skip
    memory, numel = held(job)
    assert numel / 4 > 1e9
    assert memory.turns == (((Owner.GRADIENTS, 2e9), (Owner.GRADIENTS, 4e9)),)


def test_without_clipping_no_norm_is_taken():
    memory, _ = held(job_of(FLAT, tp=4, clip_gradients=False))
    assert len(memory.turns) == 1


def test_zero_three_keeps_parameters_apart_and_holds_its_share():
    memory, numel = held(job_of(FLAT, zero=3))
    (norm,) = memory.turns
    assert len(memory.holds) == 3 * len(norm)
    assert total_bytes(memory.holds) == pytest.approx(12 * numel / 4)


@pytest.mark.parametrize("zero", [0, 1])
def test_a_fused_update_holds_the_copy_of_16_bit_gradients_only(zero):
    memory, numel = held(job_of(FUSED, zero=zero))
    assert total_bytes(memory.holds) == pytest.approx(4 * numel / (4 if zero else 1))


def test_stacks_with_fp32_gradients_and_fused_updates_hold_nothing():
    memory, _ = held(job_of("megatron-core"))
    assert memory.holds == ()
    assert memory.turns == ()
    assert memory.most_bytes == 0.0


def test_turns_count_at_the_peak_but_not_together():
    """The larger of them is on top of what is resident, once."""
    job = job_of({"base": "internevo", "update_copies": 0}, tp=4)
    program = build_program(job)
    update = next(o for o in program.operations if o.kind is Kind.OPTIMIZER)
    (memory,) = class_memory(replay(program), job.cluster.profile.device)
    resident = total_bytes(program.classes[0].resident)
    most = max(map(total_bytes, (*update.turns, update.holds)))
    assert memory.peak_allocated_bytes >= resident + most * (1 - 1e-12)
    assert memory.peak_allocated_bytes < resident + sum(map(total_bytes, update.turns))
    assert memory.owner_bytes[Owner.GRADIENTS][-1] == pytest.approx(
        dict(program.classes[0].resident)[Owner.GRADIENTS]
    )


def test_freed_copies_of_single_gradients_serve_no_flat_tensor():
    """So what is reserved is the sum of the turns, not the largest of them."""
    job = job_of(FLAT, tp=4)
    program = build_program(job)
    update = next(o for o in program.operations if o.kind is Kind.OPTIMIZER)
    (memory,) = class_memory(replay(program), job.cluster.profile.device)
    everything = total_bytes(program.classes[0].resident) + total_bytes(update.holds)
    assert memory.peak_reserved_bytes >= everything + total_bytes(update.turns[1])


class _Alive(TorchDispatchMode):
    """Bytes of the tensors that operations made and that are still there, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (list, tuple)) else [made]:
            if isinstance(tensor, torch.Tensor) and not any(tensor is arg for arg in args):
                size = tensor.untyped_storage().nbytes()
                self.now += size
                self.most = max(self.most, self.now)
                weakref.finalize(tensor, self._forget, size)
        return made

    def _forget(self, size: int) -> None:
        self.now -= size


def test_torchs_unfused_update_of_one_tensor_makes_two_more():
    weights = torch.nn.Parameter(torch.zeros(1000))
    weights.grad = torch.ones(1000)
    optimizer = torch.optim.AdamW([weights], foreach=False, fused=False)
    optimizer.step()
    with _Alive() as alive:
        optimizer.step()
    copies = job_of(FLAT).plan.stack.update_copies
    assert alive.most == pytest.approx(copies * 4 * 1000, abs=100)


def test_an_update_of_one_weight_after_another_makes_two_as_large_as_one_weight():
    memory, numel = held(job_of({"base": "torch"}, optimizer_kernels="for-loop", zero=0))
    made = memory.holds
    assert len(made) == 2
    assert made[0] == made[1]
    largest = small_model().vocab * small_model().hidden
    assert total_bytes(made) == 2 * 4 * largest
    assert largest < numel


OLD = {"base": "megatron-lm-2021", "keeps_gradient_copies": True, "flattens_gradients": True}


def test_megatron_of_early_2021_keeps_fp32_gradients_from_step_to_step():
    """So its states take 20 bytes per parameter, as the logs of BigScience show."""
    job = small_job(precision="bf16", stack=OLD, zero=0)
    (run,) = stage_slices(job, 1)
    numel = slice_parameters(job, run).total
    assert total_bytes(build_program(job).classes[0].resident) == pytest.approx(20 * numel)
    memory = update_memory(job, [run])
    assert not memory.holds
    assert memory.turns == (((Owner.COMMUNICATION, 2 * numel),),)


@pytest.mark.parametrize("stage", [1, 2])
def test_what_bigsciences_log_shows_between_steps_is_what_a_rank_keeps(stage):
    """21,633 MiB on the stages without an embedding (``bsv100-001``)."""
    model = {"layers": 40, "hidden": 6144, "heads": 32, "kv_heads": 32, "ffn_hidden": 24576}
    job = small_job(
        gpt_model(**model, vocab=50688, max_positions=1024), gpus=16, tp=4, pp=4, zero=0,
        precision="bf16", stack=OLD, recompute="full", global_batch=4, seq_len=1024,
    )  # fmt: skip
    held = total_bytes(build_program(job).classes[stage].resident)
    assert held / 2**20 == pytest.approx(21633, rel=2e-3)


def test_a_flat_copy_of_the_gradients_is_written_divided_and_copied_back():
    old, without = (
        small_job(precision="bf16", zero=0, stack=OLD | facts)
        for facts in ({}, {"flattens_gradients": False})
    )
    times = [
        sum(op.work.seconds for op in build_program(job).operations if op.kind is Kind.OPTIMIZER)
        for job in (old, without)
    ]
    (run,) = stage_slices(old, 1)
    numel = slice_parameters(old, run).total
    flat_s = memory_bound_s(old.cluster.profile, 6 * 2 * numel)
    assert times[0] - times[1] == pytest.approx(flat_s)


def test_moments_of_16_bits_are_widened_for_all_dense_or_for_all_expert_parameters_at_a_time():
    """Two fp32 copies; those of the dense parameters are free before the experts are updated."""
    model = small_model(experts=Experts(count=8, top_k=2, ffn_hidden=512))
    narrow = {"precision": "bf16", "moment_precision": "bf16", "zero": 1}
    job = small_job(model, **narrow, libraries={"transformer_engine": "2.12"})
    memory, numel = held(job)
    routed = 8 * 3 * 512 * model.hidden * model.layers
    assert numel < 2 * routed
    assert total_bytes(memory.holds) == 8 * routed
    assert (state_bytes(job).master, state_bytes(job).moments) == (2, 4)
    assert not held(small_job(model, precision="bf16", zero=1))[0].holds
    later = small_job(model, **narrow)
    assert not held(later)[0].holds
    assert (state_bytes(later).master, state_bytes(later).moments) == (2, 4)


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize(("optimizer", "moments"), [("adam", 2), ("lion", 1)])
def test_the_first_update_makes_the_optimizer_states_tensor_by_tensor(zero, optimizer, moments):
    job = small_job(gpus=4, precision="bf16", stack="torch", zero=zero, optimizer=optimizer)
    rank = build_program(job).classes[0]
    states = dict(rank.resident)[Owner.OPTIMIZER_STATES]
    assert total_bytes(rank.first_states) == pytest.approx(states)
    layers, ends = job.model.layers, 3
    assert len(rank.first_states) == moments * (layers * 9 + ends)


def test_deepspeed_makes_its_states_before_the_first_step():
    job = job_of(CAST, zero=1)
    assert not first_states(job, stage_slices(job, 1))
