"""How long does the update of one rank's weights take on its GPU?

Muon replaces the momentum of every matrix inside a layer by the nearest orthogonal one, found
by five Newton-Schulz steps in 16-bit: for an (m, n) matrix with m <= n, products of (m, n) by
(n, m), (m, m) by (m, m), and (m, m) by (m, n).

It needs whole matrices. Tensor-parallel ranks orthogonalise their parts each for itself
(Megatron-Core's ``blockwise`` mode). Where ZeRO 1 keeps whole parameters on one rank, that
rank does its own. Where it cuts a flat buffer, ranks gather the matrices that their shard
touches and work on those (Distributed Muon): every matrix is counted as gathered, in 16-bit,
and each rank orthogonalises its share of them. Without ZeRO every rank does all.

Source: https://kellerjordan.github.io/posts/muon for the steps; Distributed Muon, arXiv
2502.16982, algorithm 1 and section 2.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from simulator.cost.collectives import CollectiveKind
from simulator.cost.kernel_time import gemm_s, many_tensors_efficiency, memory_bound_s
from simulator.described.cluster.kernel_parameters import Precision
from simulator.described.job import Job
from simulator.described.plan.optimizers import UPDATE_RULES
from simulator.program.communication import Call
from simulator.program.grid.rank_groups import expert_shard_group, shard_group
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Category, Part, Work
from simulator.program.layer.tensors import ParameterTensor, matrix_shape
from simulator.program.price.host_pace import launched, waiting_s
from simulator.program.states.optimizer_states import is_orthogonalised, rotated_sides
from simulator.program.states.resident import (
    ParameterCount,
    device_update_bytes,
    paged_bytes,
    slice_tensors,
    state_bytes,
)

FLAT_GRADIENTS = "flat_gradients"
"""Name of the part that copies all gradients into one tensor to be reduced, and back."""

_FLAT_PASSES = 6
"""Reads and writes of copying them in, dividing them by the ranks, and copying them back."""

PAGING = "paging"
"""Name of the part that brings pages of optimizer states to the GPU, and takes others away."""

NEWTON_SCHULZ = "newton_schulz"
"""Name of the part that orthogonalises: matrix products."""

_KERNELS = 8
"""Assumption: launches of a fused multi-tensor optimizer step: scale, norm, update, cast."""


_WIDENING_KERNELS = 6
"""Launches for each tensor whose two moments are kept in 16 bits: each is copied to fp32, and the
new one cast and copied back, one after the other (Transformer Engine, ``FusedAdam.step``,
``get_unscaled_state`` and ``_apply_scale``)."""


def optimizer_work(
    job: Job, parameters: ParameterCount, runs: Sequence[Slice], host_s_per_kernel: float
) -> Work:
    """The optimizer step of a rank that holds these parameters: bound by memory or the host.

    With the copies around a reduction of all gradients in one flat tensor, on one rank, too.

    Ignores: Python of a loop over weights, whose operators have no autograd to tell of them.

    Args:
        job: The job.
        parameters: Before they are sharded.
        runs: The layers that they belong to.
        host_s_per_kernel: Host time of a launch [s].
    """
    profile = job.cluster.profile
    on_device_s = update_s(job, device_update_bytes(job, parameters))
    parts = [Part("optimizer", Category.OPTIMIZER, on_device_s)]
    kernels = _KERNELS
    if job.choices.widens_moments:
        kernels += _WIDENING_KERNELS * math.ceil(_updated_tensors(job, runs))
    host_s = kernels * host_s_per_kernel
    if job.plan.updates_in_a_loop:
        eager = UPDATE_RULES[job.plan.optimizer].eager_kernels
        eager *= math.ceil(_updated_tensors(job, runs))
        host_s += eager * profile.kernels.launch_s
        kernels += eager
    if waits_s := waiting_s([launched(profile, 1, on_device_s, host_s, kernels)]):
        parts.append(Part("launch", Category.HOST, waits_s))
    if moved_bytes := paged_bytes(job, parameters):
        paging_s = 2 * moved_bytes / profile.host.pcie_bytes_per_s
        parts.append(Part(PAGING, Category.HOST, paging_s))
    if job.choices.flattens_gradients:
        num_bytes = _FLAT_PASSES * state_bytes(job).reduced * parameters.trained
        flat_s = memory_bound_s(profile, num_bytes)
        parts.append(Part(FLAT_GRADIENTS, Category.DATA_PARALLEL, flat_s))
    flop = 0.0
    if job.plan.optimizer == "muon":
        seconds, flop = orthogonalisation(job, runs)
        parts.append(Part(NEWTON_SCHULZ, Category.OPTIMIZER, seconds))
    if job.plan.optimizer == "soap":
        seconds, flop = rotations(job, runs)
        parts.append(Part("rotations", Category.OPTIMIZER, seconds))
    if job.plan.optimizer == "galore":
        seconds, flop = projections(job, runs)
        parts.append(Part("projections", Category.OPTIMIZER, seconds))
    return Work(math.fsum(part.seconds for part in parts), tuple(parts), flop=flop)


def update_s(job: Job, num_bytes: float) -> float:
    """Time in which an update passes over so much memory of its GPU [s].

    Ignores: numbers of two widths in one update, which is taken as one of the wider.
    """
    profile, per = job.cluster.profile, state_bytes(job)
    if not job.plan.updates_many_tensors:
        return memory_bound_s(profile, num_bytes)
    is_half = not per.master and max(per.weights, per.gradients) <= _HALF_BYTES
    efficiency = many_tensors_efficiency(profile, is_half=is_half)
    return memory_bound_s(profile, num_bytes, efficiency=efficiency)


_NEWTON_SCHULZ_STEPS = 5
_HALF_BYTES = 2.0
_SOAP_FREQUENCY = 10
_QR_PRODUCTS = 4 / 3
"""Operations of a QR decomposition with its orthogonal factor over those of a product."""


def newton_schulz_flop(rows: int, columns: int) -> float:
    """Operations to orthogonalise one matrix [FLOP]."""
    m, n = sorted((rows, columns))
    return _NEWTON_SCHULZ_STEPS * (4.0 * m * m * n + 2.0 * m**3)


def orthogonalisation(job: Job, runs: Sequence[Slice]) -> tuple[float, float]:
    """Time [s] and operations [FLOP] of the Newton-Schulz steps of one rank.

    Args:
        job: A job that trains with Muon.
        runs: All layers of the rank.
    """
    seconds = flop = 0.0
    for tensor, layers, (matrices, rows, columns) in _matrices(job, runs):
        share = layers / _owners(job, tensor)
        seconds += (
            share * _one_step_s(job, matrices, *sorted((rows, columns))) * _NEWTON_SCHULZ_STEPS
        )
        flop += share * matrices * newton_schulz_flop(rows, columns)
    return seconds, flop


def projections(job: Job, runs: Sequence[Slice]) -> tuple[float, float]:
    """Time [s] and operations [FLOP] of GaLore's products: every gradient down, its update up.

    Args:
        job: A job that trains with GaLore.
        runs: All layers of the rank.
    """
    profile, precision = job.cluster.profile, job.plan.precision
    seconds = flop = 0.0
    for _, layers, (matrices, rows, columns) in _matrices(job, runs):
        m, n = sorted((rows, columns))
        r = min(job.plan.optimizer_rank, m)
        seconds += layers * math.fsum(
            gemm_s(profile, *sides, batch=matrices, precision=precision)
            for sides in ((r, n, m), (m, n, r))
        )
        flop += layers * matrices * 4.0 * r * m * n
    return seconds, flop


def rotations(job: Job, runs: Sequence[Slice]) -> tuple[float, float]:
    """Time [s] and operations [FLOP] of SOAP's fp32 products on one rank.

    Gradient and momentum go to the eigenvectors of both sides and the update comes back, and the
    gradient's products with itself are added up: four products per side. Every ten steps a power
    step of each side, (side, side) by itself, and a QR decomposition of 8/3 side^3 follow; they
    are spread over the steps.

    Args:
        job: A job that trains with SOAP.
        runs: All layers of the rank.

    Source:
        arXiv 2409.11321, algorithms 3 and 4, and section 5: a preconditioning frequency of 10.
        QR: Golub and Van Loan, Matrix Computations, section 5.2. Ignores that QR is slower than
        products of as many operations.
    """
    seconds = flop = 0.0
    for _, layers, (matrices, rows, columns) in _matrices(job, runs):
        for side in rotated_sides(rows, columns):
            other = rows * columns // side
            power_s = _fp32_product_s(job, matrices, side, side, side)
            powers = (1 + _QR_PRODUCTS) / _SOAP_FREQUENCY
            rotate_s = 3 * _fp32_product_s(job, matrices, side, other, side)
            gram_s = _fp32_product_s(job, matrices, side, side, other)
            seconds += layers * (rotate_s + gram_s + powers * power_s)
            flop += layers * matrices * 2.0 * side**2 * (4 * other + powers * side)
    return seconds, flop


def _fp32_product_s(job: Job, matrices: int, m: int, n: int, k: int) -> float:
    return gemm_s(job.cluster.profile, m, n, k, batch=matrices, precision="fp32")


def gathers(job: Job, runs: Sequence[Slice]) -> list[Call]:
    """What ranks gather because their shards cut matrices; nothing where they do not."""
    if not job.choices.reduces_to_shards:
        return []
    dense = expert = 0.0
    for tensor, layers, (matrices, rows, columns) in _matrices(job, runs):
        num_bytes = layers * matrices * rows * columns * _HALF_BYTES
        if tensor.is_routed:
            expert += num_bytes
        else:
            dense += num_bytes
    kind = CollectiveKind.ALL_GATHER
    calls = [
        Call("momentum", kind, "dp", shard_group(job), dense),
        Call("momentum", kind, "edp", expert_shard_group(job), expert),
    ]
    return [call for call in calls if call.num_bytes and call.group.ranks > 1]


def _matrices(
    job: Job, runs: Sequence[Slice]
) -> Iterator[tuple[ParameterTensor, int, tuple[int, int, int]]]:
    """Matrices inside layers, with how many layers have them, and their shape on a rank."""
    for run in runs:
        for tensor, layers in slice_tensors(job, run):
            if is_orthogonalised(tensor) and not tensor.is_frozen:
                yield tensor, layers, _shape(job, tensor)


def _updated_tensors(job: Job, runs: Sequence[Slice]) -> float:
    """Tensors that a rank updates a part of, each expert's by itself, gate and up as one."""
    has_rows = job.choices.shards_matrices
    return math.fsum(
        layers * _shape(job, tensor)[0] / (1 if has_rows else _owners(job, tensor))
        for run in runs
        for tensor, layers in slice_tensors(job, run)
        if not tensor.is_frozen and not tensor.name.endswith(".gate")
    )


def _shape(job: Job, tensor: ParameterTensor) -> tuple[int, int, int]:
    plan = job.plan
    return matrix_shape(
        tensor, *((plan.expert_tp, plan.ep) if tensor.is_routed else (job.choices.tensor_ranks,))
    )


def _owners(job: Job, tensor: ParameterTensor) -> int:
    """Ranks that divide the work on a matrix among them."""
    if not job.choices.shards_states:
        return 1
    return (expert_shard_group(job) if tensor.is_routed else shard_group(job)).ranks


def _one_step_s(job: Job, matrices: int, m: int, n: int) -> float:
    profile = job.cluster.profile
    precision: Precision = "fp16" if job.plan.precision == "fp16" else "bf16"
    return math.fsum(
        gemm_s(profile, rows, columns, inner, batch=matrices, precision=precision)
        for rows, columns, inner in ((m, m, n), (m, m, m), (m, n, m))
    )
