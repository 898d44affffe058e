"""What do optimizers multiply that take whole matrices: Muon, GaLore and SOAP?

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from simulator.cost.collectives import CollectiveKind
from simulator.cost.kernel_time import gemm_s
from simulator.cost.rates import HALF_BYTES
from simulator.described.cluster.kernel_parameters import Precision
from simulator.described.job import Job
from simulator.program.communication import Call
from simulator.program.grid.rank_groups import expert_shard_group, shard_group
from simulator.program.grid.stage_layers import Slice
from simulator.program.layer.tensors import ParameterTensor, matrix_shape
from simulator.program.states.optimizer_states import is_orthogonalised, rotated_sides
from simulator.program.states.resident import slice_tensors

NEWTON_SCHULZ = "newton_schulz"
"""Name of the part that orthogonalises: matrix products."""

_NEWTON_SCHULZ_STEPS = 5
_SOAP_FREQUENCY = 10
"""Steps from one power step of the eigenvectors to the next."""
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
        share = layers / owners(job, tensor)
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
        num_bytes = layers * matrices * rows * columns * HALF_BYTES
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
                yield tensor, layers, shape_on_rank(job, tensor)


def shape_on_rank(job: Job, tensor: ParameterTensor) -> tuple[int, int, int]:
    """How many matrices a rank has of a tensor, and their rows and columns."""
    plan = job.plan
    return matrix_shape(
        tensor, *((plan.expert_tp, plan.ep) if tensor.is_routed else (job.choices.tensor_ranks,))
    )


def owners(job: Job, tensor: ParameterTensor) -> int:
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


Products = Callable[[Job, Sequence[Slice]], tuple[float, float]]
"""Time [s] and operations [FLOP] of a rank's products, of a job and all layers of the rank."""
PRODUCTS: Mapping[str, tuple[str, Products]] = MappingProxyType(
    {
        "muon": (NEWTON_SCHULZ, orthogonalisation),
        "soap": ("rotations", rotations),
        "galore": ("projections", projections),
    }
)
"""Of each such optimizer, what its products are called, and what they cost."""
