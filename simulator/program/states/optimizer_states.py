"""What does each optimizer keep of a tensor?

============  =================================================================
adam          two moments
lamb          as Adam, and a norm of every tensor and of its update
adam-8bit     two moments of one byte, and a constant for each block of 256
adam-paged, adam-8bit-paged    the same, in memory that host and GPU share
lion          a momentum; lion-8bit one of one byte, and the constants
adafactor     sums over the rows and over the columns of every matrix; vectors
              keep a second moment of each element; there is no first moment
muon          a momentum of the matrices inside layers; Adam for the rest
galore        of a matrix (m, n) inside a layer, m <= n, the projection (m, r) and two moments of
              what it leaves of the gradient, (r, n); Adam for the rest
soap          two moments; of a matrix (m, n) inside a layer also sums of its gradient's products
              with itself and their eigenvectors, (m, m) and (n, n) each, but of no side that is
              longer than 10,000
sgd           nothing; sgd-momentum one momentum
============  =================================================================

All states are fp32 unless said otherwise.

Source: LAMB, arXiv 1904.00962, algorithm 2; 8-bit optimizers, arXiv 2110.02861, section 2.2,
and bitsandbytes, whose blocks have 256 elements (2048 before version 0.44); Adafactor, arXiv
1804.04235, algorithms 4 and 5; Muon, https://kellerjordan.github.io/posts/muon, and arXiv
2502.16982; GaLore, arXiv 2403.03507, table 1; SOAP, arXiv 2409.11321, section 7.2, and its
authors' soap.py (``max_precond_dim``).
"""

from __future__ import annotations

from simulator.cost.kernel_time import output_bytes
from simulator.cost.rates import FULL_BYTES
from simulator.described.job import Job
from simulator.described.plan.plan_fields import Optimizer
from simulator.program.layer.adapters import computes_in_fp32
from simulator.program.layer.tensors import ParameterGroup, ParameterTensor, matrix_shape

_LONGEST_ROTATED_SIDE = 10_000


def further_state_bytes(
    optimizer: Optimizer, tensor: ParameterTensor, tp: int = 1, ep: int = 1, rank: int = 0
) -> float:
    """States of a rank's part of a tensor beyond ``state_bytes`` of each element [B].

    Args:
        optimizer: Its name.
        tensor: The whole tensor.
        tp: Tensor-parallel degree; for routed experts the degree inside an expert.
        ep: Expert-parallel degree.
        rank: Of what is left of a gradient that is projected.
    """
    if optimizer not in ("adafactor", "muon", "galore", "soap"):
        return 0.0
    matrices, rows, columns = matrix_shape(tensor, tp, ep)
    if optimizer == "soap":
        sides = rotated_sides(rows, columns) if is_orthogonalised(tensor) else ()
        return 2 * FULL_BYTES * matrices * sum(side * side for side in sides)
    if optimizer == "galore":
        if not is_orthogonalised(tensor):
            return 2 * FULL_BYTES * matrices * rows * columns
        short, long = sorted((rows, columns))
        kept = min(rank, short)
        return FULL_BYTES * matrices * (short * kept + 2 * kept * long)
    is_matrix = min(rows, columns) > 1
    if optimizer == "muon":
        return 0.0 if is_orthogonalised(tensor) else FULL_BYTES * matrices * rows * columns
    return FULL_BYTES * matrices * (rows + columns if is_matrix else rows * columns)


def rotated_sides(rows: int, columns: int) -> tuple[int, ...]:
    """Sides of a matrix that SOAP rotates to their eigenvectors."""
    return tuple(side for side in (rows, columns) if side <= _LONGEST_ROTATED_SIDE)


def is_orthogonalised(tensor: ParameterTensor) -> bool:
    """Whether Muon, GaLore or SOAP takes a tensor: a matrix of a layer, none of its ends."""
    in_layer = tensor.group in (ParameterGroup.DENSE, ParameterGroup.EXPERT)
    return in_layer and min(matrix_shape(tensor)[1:]) > 1


def trained_bytes(job: Job) -> float:
    """Bytes of a trained parameter where none has an fp32 copy; those of peft's adapters are fp32.

    Ignores: what is trained beside adapters, which is taken to be as wide as they are.
    """
    is_wide = job.plan.lora is not None and computes_in_fp32(job)
    return FULL_BYTES if is_wide else output_bytes(job.plan.precision)
