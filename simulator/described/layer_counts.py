"""How many layers does each virtual pipeline stage hold?

Layers, multi-token-prediction modules, and the embedding and loss where the plan counts
them, are dealt out in equal contiguous runs. What does not divide leaves the ends of the
pipeline one layer short, because they also hold the embedding and the loss (as Llama 3 405B
was laid out, arXiv 2407.21783, section 3.3.2); some frameworks leave its first stages short, and
nanotron deals out by cost. A plan may also name every stage's layers itself.

Source: nanotron, ``build_model`` of ``models/base.py`` and ``get_block_compute_costs`` of
``models/llama.py``.
"""

from __future__ import annotations

from simulator.described.job import Job
from simulator.described.model import Model
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
    if job.choices.uneven_layers == "by-cost" and stages > 1:
        return _counts_by_cost(job.model, stages)
    last_units = plan.account_for_loss + job.model.multi_token_layers
    units = layers + plan.account_for_embedding + last_units
    counts = [-(-units // stages)] * stages
    short = sum(counts) - units
    if short:
        order = _shorter_first(stages, from_first=job.choices.uneven_layers == "last")
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


def _counts_by_cost(model: Model, stages: int) -> list[int]:
    """Each stage takes layers until it has passed its share of all products, the head's too."""
    attention = 4 * model.heads * model.head_dim * model.hidden
    layer = attention + 3 * model.ffn_hidden * model.hidden
    total = model.layers * layer + model.vocab * model.hidden
    counts, stage = [0] * stages, 0
    for index in range(model.layers):
        counts[stage] += 1
        stage += (index + 1) * layer * stages > total * (stage + 1)
    if stage < stages - 1:
        rule = f"leaves the last of {stages} stages nothing, as nanotron deals layers out by cost"
        raise InputError.single("plan.pp", rule, stages, "lower plan.pp, or set plan.layout")
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
