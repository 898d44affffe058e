"""How many bytes of parameters, gradients and optimizer states does one rank hold?

One table of parameter tensors (:mod:`simulator.cost.parameters`) drives all of it.

Source: ZeRO (arXiv 1910.02054, section 3) for what is sharded at which stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.cost.kernels import output_bytes
from simulator.cost.parameters import (
    ParameterTensor,
    embedding_tensors,
    head_tensors,
    layer_kinds,
    layer_tensors,
    tensor_shard_numel,
)
from simulator.program.ir import Memory, Owner
from simulator.program.layout import Slice
from simulator.program.ranks import shard_group
from simulator.spec.job import Job

_PRECISION_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
_MASTER_BYTES = 4.0

_OPTIMIZER_STATE_BYTES = {"adam": 8.0, "sgd": 0.0, "sgd-momentum": 4.0}
"""fp32 states per parameter: two moments, none, or one momentum."""

_VOCAB_MULTIPLE = 128
"""Megatron pads the vocabulary to a multiple of this times tp
(``--make-vocab-size-divisible-by``, default 128)."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter of what a rank keeps, before sharding.

    Attributes:
        weights: Parameters as the layers read them; 0 where they are cast anew.
        gathered: Parameters on the wire and while they are used.
        gradients: Gradients as backward accumulates them.
        gradient_copy: A second copy in fp32 that some stacks make for the optimizer.
        master: fp32 weights beside 16-bit ones.
        moments: Optimizer states.
        reduced: Format that gradients are reduced in.
    """

    weights: float
    gathered: float
    gradients: float
    gradient_copy: float
    master: float
    moments: float
    reduced: float


def state_bytes(job: Job) -> StateBytes:
    """Bytes per parameter under the job's plan and stack."""
    stack = job.plan.stack
    moments = _OPTIMIZER_STATE_BYTES[job.plan.optimizer]
    element = output_bytes(job.plan.precision)
    if element == _MASTER_BYTES:
        return StateBytes(element, element, element, 0.0, 0.0, moments, element)
    gradients = _PRECISION_BYTES[stack.main_grad_precision]
    reduced = _PRECISION_BYTES[job.plan.grad_reduce_precision or stack.grad_reduce_precision]
    copied = _MASTER_BYTES if gradients < _MASTER_BYTES and stack.copies_gradients else 0.0
    weights = element if stack.keeps_half_weights else 0.0
    return StateBytes(weights, element, gradients, copied, _MASTER_BYTES, moments, reduced)


def padded_vocab(job: Job) -> int:
    """Rows of the embedding and head after padding for tensor parallelism."""
    multiple = job.plan.tp * (_VOCAB_MULTIPLE if job.plan.stack.pads_vocab else 1)
    return -(-job.model.vocab // multiple) * multiple


def slice_parameters(job: Job, run: Slice, *, tied_copy: bool = False) -> float:
    """Parameters of a run of layers on one rank, after tensor parallelism.

    Args:
        job: The job.
        run: Layers, embedding and head.
        tied_copy: Whether the last stage holds its own copy of tied embeddings, as it
            must when the first stage is on other ranks.
    """
    kinds = layer_kinds(job.model)
    representatives = {
        kind: kinds.index(kind) for kind in dict.fromkeys(kinds[run.first : run.end])
    }
    total = sum(
        kinds[run.first : run.end].count(kind) * _numel(job, layer_tensors(job.model, index))
        for kind, index in representatives.items()
    )
    vocab = padded_vocab(job)
    if run.has_embedding:
        total += _numel(job, embedding_tensors(job.model, vocab))
    if run.has_head:
        total += _numel(job, head_tensors(job.model, vocab))
        if tied_copy:
            total += vocab * job.model.hidden // job.plan.tp
    return float(total)


def resident_memory(job: Job, parameters: float) -> Memory:
    """What a rank holds from step to step for its ``parameters``, by owner."""
    per, zero, shards = state_bytes(job), job.plan.zero, shard_group(job).ranks
    share = [1.0 / shards if zero >= level else 1.0 for level in range(4)]
    gradients = per.gradients * share[2] + per.gradient_copy * share[1]
    return (
        (Owner.WEIGHTS, parameters * per.weights * share[3]),
        (Owner.GRADIENTS, parameters * gradients),
        (Owner.MASTER_WEIGHTS, parameters * per.master * share[1]),
        (Owner.OPTIMIZER_STATES, parameters * per.moments * share[1]),
    )


def optimizer_traffic_bytes(job: Job, parameters: float) -> float:
    """Bytes that the optimizer step reads and writes on one rank.

    Every state is read and written, gradients are read (once more for their norm), and
    16-bit weights are written.
    """
    per = state_bytes(job)
    shards = shard_group(job).ranks if job.plan.zero else 1
    states = 2 * (per.moments + (per.master or per.weights))
    gradients = 2 * per.gradients + 2 * per.gradient_copy
    weights = per.weights if per.master else 0.0
    return parameters / shards * (states + gradients + weights)


def _numel(job: Job, tensors: Iterable[ParameterTensor]) -> int:
    return sum(tensor_shard_numel(tensor, job.plan.tp, job.plan.ep) for tensor in tensors)
