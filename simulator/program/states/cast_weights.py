"""What do 8-bit copies of 16-bit weights take?

Products of Transformer Engine multiply weights that are cast to 8 bits once a step: a copy for
forward, and one with rows and columns exchanged for the gradient of the input. Both stay from the
first microbatch on (``get_weight_workspace`` of ``pytorch/module/base.py`` caches them). Where
nothing is cached they stay from forward to backward, so the fullest moment is the same. Weights
that are 8-bit themselves (Megatron-Core's ``--fp8-param-gather``) are those two copies and nothing
else, which is as much as 16-bit ones.

Ignores: scales of blocks, 4-bit copies, and that devices whose products read either layout keep
one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from simulator.cost.kernel_time import ELEMENT_BYTES
from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice
from simulator.program.layer.tensors import ParameterGroup, TensorRole
from simulator.program.states.resident import slice_tensors, tensor_parameters

_LAYOUTS = 2
_GROUPS = {
    "all": (ParameterGroup.DENSE, ParameterGroup.EXPERT),
    "dense": (ParameterGroup.DENSE,),
    "experts": (ParameterGroup.EXPERT,),
}


def cast_weight_bytes(job: Job, runs: Iterable[Slice]) -> float:
    """What stays of 8-bit weights on one rank, for its runs of layers [B]."""
    if not job.plan.keeps_cast_weights:
        return 0.0
    numel = math.fsum(
        layers * tensor_parameters(job, tensor).total
        for run in runs
        for tensor, layers in slice_tensors(job, _narrow_layers(job, run))
        if tensor.role is TensorRole.MATRIX and tensor.group in _GROUPS[job.plan.narrow_products]
    )
    return _LAYOUTS * ELEMENT_BYTES[job.plan.precision] * numel


def _narrow_layers(job: Job, run: Slice) -> Slice:
    """The run without layers whose products stay in bf16, which are at either end."""
    first = max(run.first, job.plan.first_bf16_layers)
    last = min(run.end, job.model.layers - job.plan.last_bf16_layers)
    return run._replace(first=first, end=max(first, last))
