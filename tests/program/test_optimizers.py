"""Do optimizers keep, move and compute what their papers say?"""

from __future__ import annotations

import pytest

from simulator.described.job import Job
from simulator.described.model import Experts
from simulator.errors import InputError
from simulator.program.build import build_program
from simulator.program.grid.stage_layers import stage_slices
from simulator.program.ir import Category, Kind, Owner, Program
from simulator.program.price.matrix_optimizers import (
    gathers,
    newton_schulz_flop,
    orthogonalisation,
    projections,
    rotations,
)
from simulator.program.price.update_time import optimizer_work
from simulator.program.states.optimizer_states import rotated_sides
from simulator.program.states.resident import (
    optimizer_traffic_bytes,
    paged_bytes,
    resident_memory,
    slice_parameters,
    slice_tensors,
    state_bytes,
)
from simulator.results.simulation import run_step
from tests.jobs import small_job, small_model

PLAIN = small_model(gated_mlp=False, kv_heads=8, tied_embeddings=True, layers=1)
"""One layer: four 64 x 64 matrices of attention, 128 x 64 up and down, two norms."""
HIDDEN_NUMEL = 4 * 64 * 64 + 2 * 128 * 64


def held_states(job: Job) -> float:
    """Optimizer states of one rank of a job without a pipeline [B]."""
    (run,) = stage_slices(job, 1)
    return dict(resident_memory(job, slice_parameters(job, run)))[Owner.OPTIMIZER_STATES]


def total_numel(job: Job) -> float:
    (run,) = stage_slices(job, 1)
    return slice_parameters(job, run).total


def updates(program: Program) -> list:
    return [op for op in program.operations if op.kind is Kind.OPTIMIZER]


def test_lamb_keeps_what_adam_keeps_and_passes_over_weights_and_updates_more_often():
    """24 for states and weights, 8 and 2 as Adam; two more reads of weights, three of updates."""
    job = small_job(optimizer="lamb")
    numel = total_numel(job)
    (run,) = stage_slices(job, 1)
    assert held_states(job) == 8 * numel
    assert optimizer_traffic_bytes(job, slice_parameters(job, run)) == (34 + 2 * 4 + 3 * 4) * numel


def test_an_adam_of_a_kernel_for_each_operator_moves_what_torch_counts():
    """One kernel moves 28 bytes of fp32 weights, states and gradients; the others come on top."""
    torch = pytest.importorskip("torch")
    weights = torch.randn(4096, requires_grad=True)
    weights.grad = torch.randn_like(weights)
    adam = torch.optim.AdamW([weights], foreach=True)
    adam.step()
    moved = bytes_of_in_place_kernels(adam.step) / weights.numel()
    jobs = [
        small_job(precision="fp32", zero=0, stack="torch", optimizer_kernels=kernels,
                  clip_gradients=False)
        for kernels in ("fused", "foreach")
    ]  # fmt: skip
    fused, eager = (
        optimizer_traffic_bytes(job, slice_parameters(job, stage_slices(job, 1)[0])) for job in jobs
    )
    assert fused == 28 * total_numel(jobs[0])
    assert eager == pytest.approx(moved * total_numel(jobs[1]), rel=1e-3)


def bytes_of_in_place_kernels(run) -> float:
    """What torch's kernels read and write, each tensor once; those named so write their first."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    moved = 0

    class Counter(TorchDispatchMode):
        def __torch_dispatch__(self, kernel, types, args=(), kwargs=None):
            nonlocal moved
            result = kernel(*args, **(kwargs or {}))
            in_place = kernel.__name__.split(".")[0].endswith("_")
            read = {id(each): each for each in tree_leaves((args, kwargs))}
            for tensor in (*read.values(), *tree_leaves(args[0] if in_place else result)):
                moved += getattr(tensor, "nbytes", 0)
            return result

    with Counter():
        run()
    return moved


def test_eight_bit_adam_keeps_two_bytes_and_a_constant_per_block():
    job = small_job(optimizer="adam-8bit")
    assert held_states(job) == total_numel(job) * (2 + 2 * 4 / 256)


@pytest.mark.parametrize(("optimizer", "share"), [("adam-8bit", 1.0), ("sgd-momentum", 0.5)])
def test_eight_bit_states_stay_so_where_all_else_is_sixteen_bits(optimizer, share):
    stack = {"base": "torch", "keeps_master_weights": False}
    whole, half = (held_states(small_job(optimizer=optimizer, stack=s)) for s in ("torch", stack))
    assert half == share * whole


def test_adafactor_keeps_rows_and_columns_of_matrices_and_all_of_vectors():
    job = small_job(PLAIN, optimizer="adafactor", zero=0, stack="torch")
    matrices = 4 * (64 + 64) + 2 * (128 + 64)
    embedding, norms = 1000 + 64, 3 * 64
    assert held_states(job) == 4 * (matrices + embedding + norms)


def test_adafactor_of_experts_factors_every_expert_alone():
    model = small_model(experts={"count": 4, "top_k": 2, "ffn_hidden": 128}, layers=1)
    job = small_job(model, optimizer="adafactor", zero=0, stack="torch")
    (run,) = stage_slices(job, 1)
    experts = slice_parameters(job, run).expert_state_bytes
    assert experts == 4 * (3 * 4 * (128 + 64))


def test_muon_keeps_one_momentum_of_hidden_matrices_and_two_of_the_rest():
    job = small_job(PLAIN, optimizer="muon", zero=0)
    assert held_states(job) == 8 * total_numel(job) - 4 * HIDDEN_NUMEL


def test_moments_may_be_half_as_large():
    job = small_job(moment_precision="bf16")
    assert held_states(job) == 2 * 2 * total_numel(job)
    with pytest.raises(InputError, match=r"plan\.moment_precision"):
        small_job(optimizer="adam-8bit", moment_precision="bf16")


def test_only_adams_operators_are_counted_in_a_loop_over_weights():
    assert small_job(optimizer_kernels="for-loop", stack="torch", zero=0)
    with pytest.raises(InputError, match=r"plan\.optimizer_kernels.*adam alone"):
        small_job(optimizer="sgd", optimizer_kernels="for-loop", stack="torch", zero=0)


def test_only_projected_gradients_have_a_rank():
    with pytest.raises(InputError, match=r"plan\.optimizer_rank.*projected gradients"):
        small_job(optimizer="adam", optimizer_rank=8, zero=0)


def test_galore_keeps_a_projection_and_two_moments_of_what_it_leaves():
    """Table 1 of arXiv 2403.03507: m r + 2 n r of m x n; Adam where nothing is projected."""
    job = small_job(PLAIN, optimizer="galore", optimizer_rank=8, zero=0)
    projected = 4 * (64 + 2 * 64) * 8 + 2 * (64 + 2 * 128) * 8
    rest = total_numel(job) - HIDDEN_NUMEL
    assert held_states(job) == 4 * projected + 8 * rest
    whole = small_job(PLAIN, optimizer="galore", optimizer_rank=1024, zero=0)
    assert held_states(whole) == 4 * (4 * 3 * 64 + 2 * (64 + 2 * 128)) * 64 + 8 * rest


def test_galore_projects_every_gradient_and_its_update():
    job = small_job(PLAIN, optimizer="galore", optimizer_rank=8, zero=0)
    seconds, flop = projections(job, stage_slices(job, 1))
    assert flop == 4 * 8 * HIDDEN_NUMEL
    assert seconds > 0


def test_soap_keeps_two_square_matrices_for_each_side_beside_adams_moments():
    """2 (m^2 + n^2) of m x n inside layers (arXiv 2409.11321, section 7.2)."""
    job = small_job(PLAIN, optimizer="soap", zero=0)
    squares = 4 * 2 * (64**2 + 64**2) + 2 * 2 * (64**2 + 128**2)
    assert held_states(job) == 8 * total_numel(job) + 4 * squares


def test_soap_keeps_and_rotates_no_side_longer_than_ten_thousand():
    assert rotated_sides(64, 16384) == (64,)


def test_soap_rotates_four_times_a_step_and_finds_eigenvectors_every_ten():
    job = small_job(PLAIN, optimizer="soap", zero=0)
    seconds, flop = rotations(job, stage_slices(job, 1))
    square, wide = (8 * m * n * (m + n) for m, n in ((64, 64), (64, 128)))
    steps = (2 + 8 / 3) / 10 * (4 * 2 * 64**3 + 2 * (64**3 + 128**3))
    assert flop == pytest.approx(4 * square + 2 * wide + steps)
    assert seconds > flop / job.cluster.profile.device.peak.fp32_flop_per_s


def test_newton_schulz_takes_five_steps_of_three_products():
    """(m, n) = (2, 3): 2 x 4 x 3 + 2 x 8 + 2 x 4 x 3 = 64 each."""
    assert newton_schulz_flop(2, 3) == newton_schulz_flop(3, 2) == 5 * 64


def test_muon_costs_its_products_on_every_rank_without_zero():
    one, four = (small_job(PLAIN, gpus=n, optimizer="muon", zero=0) for n in (1, 4))
    flop = 4 * newton_schulz_flop(64, 64) + 2 * newton_schulz_flop(64, 128)
    for job in (one, four):
        _, counted = orthogonalisation(job, stage_slices(job, 1))
        assert counted == flop
        (update,) = updates(build_program(job))
        assert update.work.flop == flop


def test_sharded_muon_shares_the_products_and_gathers_matrices_in_sixteen_bits():
    job = small_job(PLAIN, gpus=4, optimizer="muon", zero=1)
    flop = 4 * newton_schulz_flop(64, 64) + 2 * newton_schulz_flop(64, 128)
    assert orthogonalisation(job, stage_slices(job, 1))[1] == flop / 4
    (call,) = gathers(job, stage_slices(job, 1))
    assert call.num_bytes == 2 * HIDDEN_NUMEL
    program = build_program(job)
    (update,) = updates(program)
    (gather,) = (program.operations[index] for index in update.after)
    assert gather.kind is Kind.ALL_GATHER
    assert gather.category is Category.DATA_PARALLEL
    assert [c.name for c in gather.work.collectives] == ["momentum"]


def test_ranks_share_the_products_of_experts_however_these_are_spread():
    """A quarter of the products of every expert, or all products of a quarter of the experts."""
    model = small_model(experts=Experts(count=4, top_k=2, ffn_hidden=128))
    shared, spread = (small_job(model, gpus=4, ep=ep, optimizer="muon", zero=1) for ep in (1, 4))
    _, flop = orthogonalisation(shared, stage_slices(shared, 1))
    assert orthogonalisation(spread, stage_slices(spread, 1))[1] == pytest.approx(flop)


def test_owners_of_whole_parameters_gather_nothing_for_muon():
    stack = {"base": "torch", "shards_whole_parameters": True}
    job = small_job(PLAIN, gpus=4, optimizer="muon", zero=1, stack=stack)
    assert not gathers(job, stage_slices(job, 1))


def test_tensor_parallel_muon_works_on_the_parts_of_matrices():
    job = small_job(PLAIN, gpus=2, tp=2, optimizer="muon", zero=0)
    _, flop = orthogonalisation(job, stage_slices(job, 1))
    assert flop == 4 * newton_schulz_flop(32, 64) + 2 * newton_schulz_flop(64, 64)


@pytest.mark.parametrize(
    ("optimizer", "plan"),
    [
        ("lamb", {"zero": 1}),
        ("adafactor", {"zero": 2, "stack": "deepspeed"}),
        ("adafactor", {"zero": 3, "stack": "torch-fsdp"}),
        ("muon", {"zero": 2}),
        ("galore", {"zero": 1}),
        ("soap", {"zero": 1}),
        ("muon", {"zero": 3, "stack": "torchtitan"}),
    ],
)
def test_optimizers_of_whole_tensors_are_refused_where_shards_are_cut_from_a_buffer(
    optimizer, plan
):
    with pytest.raises(InputError, match=r"plan\.optimizer"):
        small_job(gpus=4, optimizer=optimizer, **plan)


@pytest.mark.parametrize(
    ("optimizer", "plan"),
    [
        ("lamb", {"zero": 0, "gpus": 4}),
        ("lamb", {"zero": 1}),
        ("adafactor", {"zero": 3, "stack": "torchtitan", "gpus": 4}),
        ("adam-8bit", {"zero": 3, "stack": "torchtitan", "gpus": 4}),
    ],
)
def test_they_run_where_tensors_are_whole_or_shards_know_their_matrix(optimizer, plan):
    assert build_program(small_job(optimizer=optimizer, **plan)).operations


def test_without_clipping_nobody_agrees_on_a_norm():
    clipped, free = (small_job(gpus=8, pp=2, zero=1, clip_gradients=c) for c in (True, False))
    norms = [
        [op for op in build_program(job).operations if op.category is Category.OPTIMIZER
         and op.kind is Kind.ALL_REDUCE]
        for job in (clipped, free)
    ]  # fmt: skip
    assert [len(found) for found in norms] == [1, 0]
    (run, _) = stage_slices(free, 2)
    held = slice_parameters(free, run)
    saved = optimizer_traffic_bytes(clipped, held) - optimizer_traffic_bytes(free, held)
    assert saved == 4 * held.total / 4


@pytest.mark.parametrize(
    ("plan", "takes"),
    [
        ({"stack": "deepspeed", "zero": 1}, True),
        ({"stack": "deepspeed", "zero": 2}, True),
        ({"stack": "deepspeed", "zero": 3, "precision": "fp32"}, True),
        ({"stack": "megatron-deepspeed", "zero": 0}, True),
        ({"stack": "deepspeed", "zero": 0, "precision": "fp32"}, False),
        ({"stack": "megatron-core", "zero": 1}, False),
    ],
)
def test_deepspeed_takes_the_norm_without_clipping_too(plan, takes):
    clipped, free = (small_job(gpus=4, clip_gradients=c, **plan) for c in (True, False))
    (run,) = stage_slices(free, 1)
    held = slice_parameters(free, run)
    read = [optimizer_traffic_bytes(job, held) for job in (clipped, free)]
    assert (read[0] == read[1]) is takes
    met = {part.name for op in build_program(free).operations for part in op.work.parts}
    agrees = takes and plan["zero"] > 0
    assert ("gradient_norm" in met) is agrees


@pytest.mark.parametrize(
    ("plan", "without", "clipped"),
    [
        ({"stack": "megatron-core", "zero": 1}, 0, 0),
        ({"stack": "megatron-core", "zero": 1, "precision": "fp16"}, 1, 1),
        ({"stack": "torch", "zero": 0}, 0, 1),
        ({"stack": "torchtitan", "zero": 3}, 0, 1),
        ({"stack": "torch-fsdp", "zero": 3, "precision": "fp16"}, 1, 2),
        ({"stack": "internevo", "zero": 1}, 0, 1),
        ({"stack": "deepspeed", "zero": 2}, 1, 1),
        ({"stack": "deepspeed", "zero": 1, "precision": "fp16"}, 1, 1),
        ({"stack": "megatron-deepspeed", "zero": 0, "precision": "fp16"}, 1, 1),
        ({"stack": "megatron-deepspeed", "zero": 0}, 0, 0),
        ({"stack": "deepspeed", "zero": 0, "precision": "fp32"}, 0, 1),
        ({"stack": "jax", "zero": 3}, 0, 0),
    ],
)
def test_gradients_are_read_and_written_once_more_where_the_framework_scales_them(
    plan, without, clipped
):
    unscaled = {
        "base": plan["stack"],
        "scales_gradients": "in-update",
        "unscales_separately": False,
    }
    for clips, passes in ((False, without), (True, clipped)):
        jobs = [
            small_job(gpus=4, clip_gradients=clips, **{**plan, "stack": stack})
            for stack in (plan["stack"], unscaled)
        ]
        (run,) = stage_slices(jobs[0], 1)
        held = slice_parameters(jobs[0], run)
        more, less = (optimizer_traffic_bytes(job, held) for job in jobs)
        each, updated = state_bytes(jobs[0]), held.total / (4 if plan["zero"] else 1)
        width = each.gradient_copy or each.gradients
        assert more - less == pytest.approx(passes * 2 * width * updated)


def test_torch_multiplies_gradients_below_the_limit_too():
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    called = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.full((4,), 1e-3)
    with Calls():
        torch.nn.utils.clip_grad_norm_([weight], max_norm=1.0)
    assert "_foreach_mul_" in called
    assert weight.grad.tolist() == pytest.approx([1e-3] * 4)


def test_a_slice_lists_the_tensors_that_it_counts():
    job = small_job(small_model(layers=3))
    (run,) = stage_slices(job, 1)
    counts = {tensor.name: layers for tensor, layers in slice_tensors(job, run)}
    assert counts["embedding.tokens"] == counts["head.tokens"] == 1
    assert counts["attention.query"] == counts["mlp.down"] == 3


def test_lion_keeps_one_momentum():
    assert held_states(small_job(optimizer="lion")) == 4 * total_numel(small_job())
    eight_bit = held_states(small_job(optimizer="lion-8bit"))
    assert eight_bit == total_numel(small_job()) * (1 + 4 / 256)


def test_paged_states_are_not_in_the_memory_of_the_allocator():
    plain, paged = (small_job(optimizer=name) for name in ("adam-8bit", "adam-8bit-paged"))
    (run,) = stage_slices(paged, 1)
    parameters = slice_parameters(paged, run)
    assert held_states(paged) == 0
    assert optimizer_traffic_bytes(paged, parameters) == optimizer_traffic_bytes(plain, parameters)


def test_only_pages_that_find_no_room_are_moved():
    roomy = small_job(optimizer="adam-paged")
    (run,) = stage_slices(roomy, 1)
    parameters = slice_parameters(roomy, run)
    assert paged_bytes(roomy, parameters) == 0
    many = parameters * 10**6
    held = sum(size for _, size in resident_memory(roomy, many))
    device = roomy.cluster.profile.device
    missing = held + 8 * many.total + device.context_bytes - device.memory_bytes
    assert paged_bytes(roomy, many) == min(8 * many.total, missing)


def test_pure_sixteen_bit_training_with_foreach_peaks_at_five_copies_of_the_parameters():
    """Weights, gradients, two moments, and what the update makes on the way."""
    plan = {"optimizer_kernels": "foreach", "master_weights": False, "stack": "torch", "zero": 0}
    job = small_job(micro_batch=1, global_batch=1, seq_len=1, recompute="full", **plan)
    (memory,) = run_step(job, "replay").memory
    assert memory.peak_allocated_bytes == pytest.approx(5 * 2 * total_numel(job), rel=0.001)


def test_an_update_in_backward_leaves_one_gradient_at_a_time():
    plan = {"optimizer_in_backward": True, "clip_gradients": False, "stack": "torch", "zero": 0}
    job = small_job(global_batch=1, **plan)
    (run,) = stage_slices(job, 1)
    held = dict(resident_memory(job, slice_parameters(job, run)))
    largest = 1000 * 64
    assert held[Owner.GRADIENTS] == largest * state_bytes(job).gradients


def test_an_update_in_backward_of_shards_leaves_one_shard_of_a_gradient_at_a_time():
    plan = {"optimizer_in_backward": True, "clip_gradients": False, "stack": "torch", "zero": 3}
    job = small_job(gpus=4, global_batch=4, **plan)
    (run,) = stage_slices(job, 1)
    held = dict(resident_memory(job, slice_parameters(job, run)))
    assert held[Owner.GRADIENTS] == 1000 * 64 / 4 * state_bytes(job).gradients


@pytest.mark.parametrize(
    "plan", [{"clip_gradients": True}, {"zero": 1}, {"offload": {"optimizer": "cpu"}}]
)
def test_an_update_in_backward_waits_for_nothing(plan):
    given = {"optimizer_in_backward": True, "clip_gradients": False, "stack": "torch", "zero": 0}
    with pytest.raises(InputError):
        small_job(global_batch=1, **{**given, **plan})


def test_moments_of_sixteen_bits_are_widened_tensor_by_tensor():
    """Six launches for each tensor beside the eight of the update."""
    of_2025 = {"transformer_engine": "2.12"}
    short, whole = (
        small_job(PLAIN, moment_precision=p, zero=0, libraries=of_2025) for p in ("bf16", "fp32")
    )
    (run,) = stage_slices(short, 1)
    waits_s = [
        part.seconds
        for job in (short, whole)
        for part in optimizer_work(job, slice_parameters(job, run), [run], 1.0).parts
        if part.category is Category.HOST
    ]
    tensors = sum(layers for _, layers in slice_tensors(short, run))
    assert waits_s[0] - waits_s[1] == pytest.approx(6 * tensors, abs=0.01)


def test_sharded_muon_gathers_matrices_of_experts_among_the_ranks_that_share_them():
    """Two ranks hold each half of the experts; all four hold the rest, and the router."""
    experts = Experts(count=4, top_k=2, ffn_hidden=128)
    job = small_job(small_model(experts=experts), gpus=4, ep=2, optimizer="muon", zero=1)
    dense, expert = gathers(job, stage_slices(job, 1))
    assert (dense.group.ranks, expert.group.ranks) == (4, 2)
    assert (dense.axis, expert.axis) == ("dp", "edp")
    layers, hidden = job.model.layers, job.model.hidden
    attention = (2 * 64 + 2 * 32) * hidden
    assert dense.num_bytes == 2 * layers * (attention + experts.count * hidden)
    assert expert.num_bytes == 2 * layers * (experts.count / 2) * 3 * 128 * hidden


def test_only_what_is_on_other_ranks_is_gathered():
    """With every expert on a rank of its own, nobody shares one."""
    model = small_model(experts=Experts(count=4, top_k=2, ffn_hidden=128))
    job = small_job(model, gpus=4, ep=4, optimizer="muon", zero=1)
    (dense,) = gathers(job, stage_slices(job, 1))
    assert dense.axis == "dp"
