"""What does an optimizer hold for a moment while it updates the weights of one rank?

All gradients may be reduced in one flat copy; 16-bit ones get fp32 copies, unless those of the step
before are still there; some frameworks take the gradient norm of fp32 copies of all gradients
before that, some cast a flat copy of all that they update with, and an update that is not one fused
kernel makes tensors as large as the weights on its way, as does one that widens 16-bit moments.
Where a framework keeps what a rank updates as one flat tensor, its copies are as large: freed
pieces of another size cannot serve them, so the allocator keeps both.

Ignored: that gradients whose copies are made may be freed before the update, and how long it takes
to widen moments.
Source: InternEvo, solver/optimizer: ``compute_norm`` (copies), ``HybridZeroOptimizer._step``
(``flatten``, then ``to(fp32)``), ``FSDPadaptOptimizer.step``; DeepSpeed,
``runtime/zero``; PyTorch 2.0, torch/optim/adamw.py: the root of the second moment and its sum with
epsilon, or its quotient, are tensors of their own; Transformer Engine, optimizers/fused_adam.py:
``get_unscaled_state``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from simulator.cost.kernel_time import output_bytes
from simulator.described.job import Job
from simulator.described.plan.optimizers import UPDATE_RULES
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Memory, Owner, total_bytes
from simulator.program.layer.tensors import ParameterGroup
from simulator.program.states.resident import (
    ShardWays,
    device_shares,
    shard_ways,
    slice_tensors,
    state_bytes,
    tensor_parameters,
)

_SUB_GROUP_NUMEL = 1e9
"""Elements that ZeRO 3 of DeepSpeed updates at a time (``sub_group_size``)."""
_COPY_BYTES = 4.0
"""Copies of gradients are fp32, and so is what an update makes, but of 16-bit weights alone."""

_LOOP_COPIES = 2
"""Tensors as large as a weight that operators make on the way to update it: the root of the second
moment and its quotient (PyTorch, ``_single_tensor_adam``)."""


class UpdateMemory(NamedTuple):
    """Blocks around one update.

    Attributes:
        turns: Held one group after another before the update.
        holds: Held while it runs.
    """

    turns: tuple[Memory, ...] = ()
    holds: Memory = ()

    @property
    def most_bytes(self) -> float:
        """The most that is held at a time [B]."""
        return max(map(total_bytes, (*self.turns, self.holds)))


def update_memory(job: Job, runs: Sequence[Slice], *, tied_copy: bool = False) -> UpdateMemory:
    """What the update of a rank holds on its GPU.

    Args:
        job: The job.
        runs: Layers of the rank.
        tied_copy: Whether a stage with the head holds its own copy of the token embedding.
    """
    choices, per = job.choices, state_bytes(job)
    copied = 0.0 if choices.keeps_gradient_copies else per.gradient_copy
    if not choices.data_parallelism.keeps_states or not (copied or _holds_more(job)):
        return UpdateMemory()
    share = device_shares(job)[Owner.MASTER_WEIGHTS]
    dense, experts = _updated(job, runs, share, tied_copy=tied_copy)
    pieces = dense + experts
    tensors = [math.fsum(pieces)] if choices.updates_flat else pieces
    if choices.casts_flat_gradients:
        tensors = [_cast_numel(job, pieces)]
    turns = tuple(_turns(job, pieces, tensors, is_copied=copied > 0))
    if choices.casts_flat_gradients:  # those that were copied are free before the update
        copied = _COPY_BYTES - output_bytes(job.plan.precision)
    made = _made(job, tensors)
    if choices.widens_moments:
        made += _blocks(Owner.TEMPORARIES, max(dense, experts, key=math.fsum) * 2, _COPY_BYTES)
    return UpdateMemory(turns, _blocks(Owner.GRADIENTS, tensors, copied) + made)


def _holds_more(job: Job) -> bool:
    """Whether an update holds anything but copies of gradients."""
    choices = job.choices
    return bool(
        choices.copies_for_norm
        or choices.update_copies
        or job.plan.updates_in_a_loop
        or choices.flattens_gradients
        or choices.casts_flat_gradients
        or choices.widens_moments
    )


def _turns(
    job: Job, pieces: Sequence[float], tensors: Sequence[float], *, is_copied: bool
) -> Iterator[Memory]:
    """What is held before the update, one group after another."""
    choices, half = job.choices, output_bytes(job.plan.precision)
    if choices.flattens_gradients:
        reduced = state_bytes(job).reduced
        yield _blocks(Owner.COMMUNICATION, [math.fsum(pieces)], reduced)
    if choices.copies_for_norm:
        yield _blocks(Owner.GRADIENTS, pieces, _COPY_BYTES)
    if is_copied and choices.updates_flat:
        yield _blocks(Owner.GRADIENTS, tensors, half)
    if choices.casts_flat_gradients:
        yield _blocks(Owner.GRADIENTS, tensors, half) + _blocks(
            Owner.GRADIENTS, tensors, _COPY_BYTES
        )


def _made(job: Job, tensors: Sequence[float]) -> Memory:
    """What operators make of the tensors that are updated."""
    choices, per = job.choices, state_bytes(job)
    updated_bytes = _COPY_BYTES if per.master or choices.keeps_master_weights else per.weights
    made = _blocks(Owner.TEMPORARIES, tensors, updated_bytes) * choices.update_copies
    if job.plan.updates_in_a_loop and UPDATE_RULES[job.plan.optimizer].eager_kernels:
        largest = max(tensors, default=0.0)
        made += _blocks(Owner.TEMPORARIES, [largest], updated_bytes) * _LOOP_COPIES
    return made


def starting_memory(job: Job, runs: Sequence[Slice], *, tied_copy: bool = False) -> Memory:
    """What a rank takes to make its optimizer states, and gives back; args as of an update.

    Source: DeepSpeed, ``initialize_optimizer_states``: an update with fp32 gradients of zeros.
    """
    if not (job.choices.casts_flat_gradients and job.choices.data_parallelism.keeps_states):
        return ()
    share = device_shares(job)[Owner.MASTER_WEIGHTS]
    dense, experts = _updated(job, runs, share, tied_copy=tied_copy)
    return _blocks(Owner.GRADIENTS, [_cast_numel(job, dense + experts)], _COPY_BYTES)


def first_states(job: Job, runs: Sequence[Slice], *, tied_copy: bool = False) -> Memory:
    """Optimizer states that a rank makes in its first update; args as of an update.

    Ignores states that belong to some tensors only. DeepSpeed makes them before the first step.
    Source: PyTorch, torch/optim: ``_init_group`` makes them when ``step`` first sees a gradient.
    """
    choices = job.choices
    if choices.casts_flat_gradients or not choices.data_parallelism.keeps_states:
        return ()
    share = device_shares(job)[Owner.OPTIMIZER_STATES]
    dense, experts = _updated(job, runs, share, tied_copy=tied_copy)
    pieces = dense + experts
    numels = [math.fsum(pieces)] if choices.updates_flat else pieces
    moments = max(1, round(UPDATE_RULES[job.plan.optimizer].state_bytes / _COPY_BYTES))
    return _blocks(Owner.OPTIMIZER_STATES, numels, state_bytes(job).moments / moments) * moments


def _cast_numel(job: Job, pieces: Iterable[float]) -> float:
    """Elements of the flat gradients that are cast at a time."""
    return min(math.fsum(pieces), _SUB_GROUP_NUMEL if job.choices.shards_weights else math.inf)


def _updated(
    job: Job, runs: Sequence[Slice], share: float, *, tied_copy: bool
) -> tuple[list[float], list[float]]:
    """A share of each dense parameter, and of each expert's, whose states a rank keeps."""
    ways = shard_ways(job) if job.choices.shards_states else ShardWays(1, 1)
    dense, experts = list[float](), list[float]()
    for run in runs:
        for tensor, layers in slice_tensors(job, run, tied_copy=tied_copy):
            numels = experts if tensor.group is ParameterGroup.EXPERT else dense
            numels += [share * ways.numel(tensor_parameters(job, tensor))] * layers
    return dense, experts


def _blocks(owner: Owner, numels: Iterable[float], per: float) -> Memory:
    return tuple((owner, numel * per) for numel in numels if numel * per)
