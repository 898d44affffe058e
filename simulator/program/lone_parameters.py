"""Which weights does ZeRO 3 gather where every parameter has collectives of its own?

Those smaller than a threshold are whole while the model runs, and come together after the update.
The others come before every use. Backward of a layer that is computed again uses each weight
twice, and what lies between the two uses decides whether it is kept.

Source: DeepSpeed 0.3.13, deepspeed/runtime/zero/stage3.py, ``persistent_parameters``,
``release_sub_module`` and ``get_reuse_distance_in_numel``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.program.layout import recomputed_layers
from simulator.program.states import ParameterCount
from simulator.program.units import Unit
from simulator.spec.job import Job


def gathered(unit: Unit, job: Job) -> Sequence[ParameterCount]:
    """What is gathered before a use of a unit, by collective."""
    if not unit.apart:
        return (unit.parameters,)
    return [count for count in unit.apart if not stays_whole(count, job)]


def gathered_twice(unit: Unit, job: Job) -> Iterator[ParameterCount]:
    """What backward of a repeated layer gathers to compute it, and again for the gradients.

    A weight is used again after those that follow it in the layer have been used twice.
    """
    reuse_numel = job.plan.stack.reuse_numel
    layers = range(unit.run.first, unit.run.end)
    if reuse_numel is None or not layers or not recomputed_layers(job).issuperset(layers):
        return
    later = 0.0
    for count in reversed(unit.apart):
        if 2 * later >= reuse_numel and not stays_whole(count, job):
            yield count
        later += count.total


def stays_whole(count: ParameterCount, job: Job) -> bool:
    """Whether a parameter is too small to be gathered before every use."""
    return count.total < job.plan.stack.whole_below_numel
