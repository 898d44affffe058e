"""Which rules hold between a job and what its layers are made of?

They are more than :mod:`simulator.described.rules` can know: names of parameters, and which
strategies the parts of a layer have rules for.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.described.job import Job
from simulator.errors import Fault, InputError
from simulator.program.layer.adapters import training_faults
from simulator.program.layer.layer_kinds import model_parts


def layer_faults(job: Job) -> Iterator[Fault]:
    """Every such rule that the job breaks."""
    for part in model_parts(job.model):
        yield from part.unruled(job.model, job.plan)
    yield from training_faults(job.model, job.plan)


def check_layers(job: Job) -> None:
    """Refuse a job whose layers cannot run as its plan says.

    Raises:
        InputError: With all reasons.
    """
    faults = list(layer_faults(job))
    if faults:
        raise InputError(faults)
