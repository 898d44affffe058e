"""How many layers does each virtual pipeline stage hold?

Layers, multi-token-prediction modules, and the embedding and loss where the plan counts
them, are dealt out in equal contiguous runs. What does not divide leaves the ends of the
pipeline one layer short, because they also hold the embedding and the loss (as Llama 3 405B
was laid out, arXiv 2407.21783, section 3.3.2); some frameworks leave its first stages short. A
plan may also name every stage's layers itself.
"""

from __future__ import annotations

from simulator.described.job import Job
from simulator.described.plan.layout_text import layers_per_stage
from simulator.errors import InputError


def layer_counts(job: Job, stages: int) -> list[int]:
    """Layers of each of ``stages`` virtual stages, in order of the model.

    Raises:
        InputError: They cannot be dealt out as the plan says.
    """
    plan, layers = job.plan, job.model.layers
    if plan.layout is not None:
        return list(layers_per_stage(plan.layout))
    if plan.first_stage_layers or plan.last_stage_layers:
        return _counts_with_given_ends(job, stages)
    last_units = plan.account_for_loss + job.model.multi_token_layers
    units = layers + plan.account_for_embedding + last_units
    counts = [-(-units // stages)] * stages
    short = sum(counts) - units
    if short:
        order = _shorter_first(stages, from_first=job.choices.short_stages_come_first)
        for index in order[:short]:
            counts[index] -= 1
    counts[0] -= plan.account_for_embedding
    counts[-1] -= last_units
    if counts[-1] < 0:
        raise InputError.single(
            "plan.pp",
            f"leaves the last of {stages} stages fewer than the {last_units} units it must hold: "
            "multi-token-prediction modules, and the loss where it counts",
            plan.pp,
            "lower plan.pp or plan.vpp",
        )
    return counts


def _shorter_first(stages: int, *, from_first: bool) -> list[int]:
    """Stages in the order in which they go without a layer."""
    if from_first:
        return list(range(stages))
    return sorted(range(stages), key=lambda i: (min(i, stages - 1 - i), -i))


def _counts_with_given_ends(job: Job, stages: int) -> list[int]:
    plan, layers = job.plan, job.model.layers
    ends = [(0, plan.first_stage_layers), (stages - 1, plan.last_stage_layers)]
    given = {index: count for index, count in ends if count}
    left, open_stages = layers - sum(count for _, count in ends), stages - len(given)
    fits = left >= open_stages and left % open_stages == 0 if open_stages else left == 0
    if not fits:
        raise InputError.single(
            "plan.first_stage_layers" if plan.first_stage_layers else "plan.last_stage_layers",
            f"leaves {left} layers for {open_stages} other stages, which do not divide evenly",
            plan.first_stage_layers or plan.last_stage_layers,
        )
    return [given.get(index) or left // open_stages for index in range(stages)]
