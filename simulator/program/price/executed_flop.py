"""How many operations does a token of training execute?

What MFU counts, and what recomputation repeats; without gradients that nobody computes: of frozen
weights, and of all that lies before the first weight that is trained. Products of adapters with
low rank are added. Norms, activations and dequantisation do not count, as they do not in MFU.
"""

from __future__ import annotations

import math
from collections import Counter

from simulator.described.job import Job
from simulator.program.layer.adapters import frozen, held_tensors
from simulator.program.layer.layer_kinds import layer_tensors
from simulator.program.layer.model_ends import embedding_tensors, head_tensors
from simulator.program.layer.model_totals import layer_flop, matrix_flop, model_flop_per_token
from simulator.program.price.layer_cost import UnitCosts
from simulator.program.price.unit_cost import LayerUnit

_WEIGHTS_OF_LOGITS = ("head.tokens", "embedding.tokens")
_EACH_WAY = 3
"""Products of a matrix: forward, and both gradients."""


def hardware_flop_per_token(job: Job) -> float:
    """FLOP that one token of training executes.

    As of MFU, attention counts over the whole sequence, and only products and attention count.
    """
    costs = UnitCosts(job)
    units = Counter(costs.layers)
    repeated = math.fsum(count * costs.repeated_flop(unit) for unit, count in units.items())
    needed = model_flop_per_token(job.model, job.batch.seq_len)
    if not job.plan.frozen_patterns:
        return needed + repeated
    changed = math.fsum(
        count * _changed_flop(job, costs.layers.index(unit), unit) for unit, count in units.items()
    )
    return needed + repeated + changed - _frozen_head_flop(job)


def _changed_flop(job: Job, layer_index: int, unit: LayerUnit) -> float:
    """What adapters add to a layer, and what frozen weights save of it [FLOP per token]."""
    model = job.model
    own = layer_tensors(model, layer_index)
    names = {tensor.name for tensor in own}
    held = held_tensors(model, job.plan, layer_index)
    added = _EACH_WAY * matrix_flop(model, [each for each in held if each.name not in names])
    if not unit.has_backward:
        return added - (_EACH_WAY - 1) * layer_flop(model, unit.kind, own, job.batch.seq_len)
    return added - matrix_flop(model, [each for each in own if each.name in unit.frozen])


def _frozen_head_flop(job: Job) -> float:
    """The gradient of an output matrix, if nobody trains it [FLOP per token]."""
    model = job.model
    tensors = (*embedding_tensors(model), *head_tensors(model))
    ends = {each.name: each for each in frozen(tensors, job.plan)}
    matrix = next(ends[name] for name in _WEIGHTS_OF_LOGITS if name in ends)
    return 2.0 * matrix.numel if matrix.is_frozen and not model.classes else 0.0
