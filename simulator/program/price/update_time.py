"""How long does the update of one rank's weights take on its GPU?

It passes over weights, gradients and states, or waits for the host that launches it. What some
optimizers multiply comes on top (:mod:`simulator.program.price.matrix_optimizers`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.cost.kernel_time import many_tensors_efficiency, memory_bound_s
from simulator.cost.rates import HALF_BYTES
from simulator.described.job import Job
from simulator.described.plan.optimizers import UPDATE_RULES
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Category, Part, Work
from simulator.program.price.host_pace import launched, waiting_s
from simulator.program.price.matrix_optimizers import PRODUCTS, owners, shape_on_rank
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
    if job.plan.optimizer in PRODUCTS:
        name, products = PRODUCTS[job.plan.optimizer]
        seconds, flop = products(job, runs)
        parts.append(Part(name, Category.OPTIMIZER, seconds))
    return Work(math.fsum(part.seconds for part in parts), tuple(parts), flop=flop)


def update_s(job: Job, num_bytes: float) -> float:
    """Time in which an update passes over so much memory of its GPU [s].

    Ignores: numbers of two widths in one update, which is taken as one of the wider.
    """
    profile, per = job.cluster.profile, state_bytes(job)
    if not job.plan.updates_many_tensors:
        return memory_bound_s(profile, num_bytes)
    is_half = not per.master and max(per.weights, per.gradients) <= HALF_BYTES
    efficiency = many_tensors_efficiency(profile, is_half=is_half)
    return memory_bound_s(profile, num_bytes, efficiency=efficiency)


def _updated_tensors(job: Job, runs: Sequence[Slice]) -> float:
    """Tensors that a rank updates a part of, each expert's by itself, gate and up as one."""
    has_rows = job.choices.shards_matrices
    return math.fsum(
        layers * shape_on_rank(job, tensor)[0] / (1 if has_rows else owners(job, tensor))
        for run in runs
        for tensor, layers in slice_tensors(job, run)
        if not tensor.is_frozen and not tensor.name.endswith(".gate")
    )
