"""Would the search have found the plans that teams published, or better ones?

Model, GPUs, batch, precision and framework of a published run are given to the search, its
plan is withheld. Both plans are simulated the same way, so the comparison asks only how the
predicted plans rank. What the framework of its time did not offer is not searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from simulator.described.job import Job, degrees_text
from simulator.described.load import job_from_document
from simulator.planning.search.search import PlanSearch, search_plans
from simulator.planning.search.space import Axes
from simulator.results.fit_probability import DEFAULT_RISK, allowed_device_bytes
from simulator.results.simulation import run_step
from simulator.results.step import StepResult
from simulator.results.views.difference import difference_s
from simulator.units import format_bytes, format_quantity
from simulator.validate.published.published_rows import job_document
from simulator.validate.published.published_runs import read_rows

CLOSE = 1.05
"""A published plan within 5 % of the best one is called as good."""

_CAUSES = 3
"""Causes of a difference that are named."""


@dataclass(frozen=True)
class Recipe:
    """A published plan beside the best one.

    Attributes:
        name: Row of the table.
        job: As published, on devices that hold it.
        published: Its step.
        measured_s: What the team measured [s].
        search: The search that did not know it.
        best: Step of the best plan.
        best_job: The job with it.
    """

    name: str
    job: Job
    published: StepResult
    measured_s: float
    search: PlanSearch
    best: StepResult
    best_job: Job

    @property
    def ratio(self) -> float:
        """Published over best step time, both predicted."""
        return self.published.step_time_s / self.best.step_time_s


def published_recipes(
    table: Path,
    names: Iterable[str],
    *,
    executor: Executor | None = None,
    at_a_time: int = 1,
    on_recipe: Callable[[str], None] | None = None,
) -> list[Recipe]:
    """The rows of a table of published runs, each with the best plan that a search finds.

    Args:
        table: As ``clustersim validate published`` reads it.
        names: Its rows.
        executor: Where plans are simulated; in this process if None.
        at_a_time: Plans that are handed to the executor together.
        on_recipe: Called with the name of each row when it is done.
    """
    rows = {row["id"]: row for row in read_rows(table)}
    found = []
    for name in names:
        job = _with_room(job_from_document(job_document(rows[name])))
        search = search_plans(job, options_of_its_time(job), executor=executor, at_a_time=at_a_time)
        best_job = job.replace(search.choices[0].changes)
        best, published = run_step(best_job), run_step(job)
        measured_s = float(rows[name]["measured_step_s"])
        found.append(Recipe(name, job, published, measured_s, search, best, best_job))
        if on_recipe:
            on_recipe(name)
    return found


def _with_room(job: Job) -> Job:
    """The job itself if a search may choose it, else on devices with the memory that it asks for.

    A plan that ran did fit; a search chooses what is sure enough to.
    """
    step, allowed = run_step(job), allowed_device_bytes(job, DEFAULT_RISK)
    if step.peak_device_bytes <= allowed:
        return job
    # A byte more, because what is allowed is a quotient and rounds.
    needed = step.peak_device_bytes * step.capacity_bytes / allowed + 1
    return job.replace({"cluster.device.memory": format_quantity(math.ceil(needed), "bytes")})


def options_of_its_time(job: Job) -> Axes:
    """What the framework of a published run could vary.

    The Megatron-LM of 2021 had neither a distributed optimizer nor selective recomputation.
    """
    if job.stack_name == "megatron-lm-2021":
        return {"plan.zero": [0], "plan.recompute": ["none", "full"]}
    return {"plan.zero": sorted({0, 1, job.plan.zero})}


def recipes_section(recipes: Sequence[Recipe]) -> str:
    """The comparison as a section of a Markdown report."""
    close = sum(recipe.ratio <= CLOSE for recipe in recipes)
    head = (
        f"{close} of {len(recipes)} published plans are within 5 % of the best.\n\n"
        "| run | model | cluster | published plan | predicted | measured | best plan | predicted "
        "| published / best | plans | simulated |\n"
        "|---|---|---|---|---:|---:|---|---:|---:|---:|---:|\n"
    )
    rows = "\n".join(map(_row, recipes))
    left = "\n".join(_left_on_the_table(each) for each in recipes if each.ratio > CLOSE)
    return f"{head}{rows}\n" + (f"\nWhat was left on the table:\n\n{left}\n" if left else "")


def _row(recipe: Recipe) -> str:
    cluster, search = recipe.job.cluster, recipe.search
    cells = (
        recipe.name,
        recipe.job.model.name,
        f"{cluster.gpus} x {cluster.profile.name}",
        plan_text(recipe.job) + _memory_text(recipe),
        f"{recipe.published.step_time_s:.3g} s",
        f"{recipe.measured_s:.3g} s",
        "the same"
        if plan_text(recipe.best_job) == plan_text(recipe.job)
        else plan_text(recipe.best_job),
        f"{recipe.best.step_time_s:.3g} s",
        f"{recipe.ratio:.3f}",
        f"{search.plans}",
        f"{search.simulated}",
    )
    return "| " + " | ".join(cells) + " |"


def _memory_text(recipe: Recipe) -> str:
    device = recipe.job.document["cluster"].get("device", {})
    given = recipe.job.cluster.profile.device.memory_bytes
    return f" (given {format_bytes(given)})" if "memory" in device else ""


def _left_on_the_table(recipe: Recipe) -> str:
    causes = difference_s(recipe.published.breakdown_s, recipe.best.breakdown_s)
    largest = sorted(causes.items(), key=lambda item: -abs(item[1]))[:_CAUSES]
    step_s = recipe.published.step_time_s
    parts = ", ".join(f"{cause.value} {100 * -s / step_s:+.1f} %" for cause, s in largest)
    peak = recipe.best.peak_device_bytes
    saved = 100 * (1 - 1 / recipe.ratio)
    return (
        f"- **{recipe.name}**, {recipe.job.model.name}: {saved:.1f} % of the step. "
        f"Of it {parts} with {plan_text(recipe.best_job)}, whose fullest GPU holds "
        f"{peak / recipe.best.capacity_bytes:.0%} of its memory."
    )


def plan_text(job: Job) -> str:
    """The degrees and options of a plan that a search varies, those that do nothing left out."""
    plan = job.plan
    degrees = {"tp": plan.tp, "pp": plan.pp, "vpp": plan.vpp, "cp": plan.cp, "ep": plan.ep}
    words = [degrees_text(degrees, job.dp), f"micro {job.batch.micro_batch}", f"ZeRO {plan.zero}"]
    return " ".join(
        [*words, *([f"{plan.recompute} recompute"] if plan.recompute != "none" else [])]
    )
