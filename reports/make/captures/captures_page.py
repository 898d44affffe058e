"""How far are captured steps from the simulator's own programs, as a page to read?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports.make.captures.comparison import PEAK_LIMIT, PROFILES, STEP_LIMIT, Comparison

TRACKER_LIMIT = 0.005

_HEAD = """# Captured steps against the simulator's own programs

Made by `python -m reports.make.captures > reports/captures.md` from `reports/data/captures.yaml`.
Each job is trained by plain torch code (the model and the parallelism of `clustersim validate
torch`: DDP, FSDP2, DTensor, torch's pipelines), captured on one rank of each stage without a GPU,
and simulated; and it is built and simulated as a job. Differences are of the captured step over the
job's.

- **exchanges**: of the first stage. *Equal*: in the groups of each degree the same collectives of
  the same bytes in the same order through the same ports.
- **peak**: allocated, of the stage that differs most; **owner**: what differs most there, as a
  share of the peak, of weights, optimizer states, gradients, gathered weights, communication, and
  activations with all that is made of them.
- **tracker**: peak over the captured step against torch's `MemTracker` on the same run; it follows
  no pipeline.
- **step**: on {profiles};
  **device**: the same where launches take no time, so that nothing waits for the host.

"""


_DIFFERS = (
    "Each cause was taken away on both sides: launches that take no time, kernels over rows at the",
    "rate of a stream, traffic of the device's memory that takes no time, results that take no",
    "memory, owners counted together, exchanges without their order or their cut into buckets.",
    "What is left stands behind *without*, on the same profiles.",
    "",
)

_NOT_COMPARED = (
    "",
    "Not among the jobs, because the job does not know of it: FSDP2 over more ranks than a layer",
    "has experts pads each stack of experts to one per rank, so that 8 experts on 16 ranks hold",
    "and move twice their weights.",
    "",
)

_PUBLISHED = (
    "## Published runs",
    "",
    "The code that a run is published with, captured, beside what the simulator predicts of the",
    "row as a job. Memory is what the allocator reserves [GiB]. torchtitan's trainer is that of",
    "release 0.2.1 with torch 2.13, for runs of earlier releases, too. Runs of the same code on",
    "other systems share a capture. Memory of compiled code is that of eager code. The arguments",
    "are in `reports/data/captures.yaml`.",
    "",
)


def page(found: Sequence[Comparison], published: Iterable[str]) -> str:
    """The page, in Markdown.

    Args:
        found: Jobs both ways.
        published: Lines about published runs.
    """
    far = [each for each in found if each.is_far]
    return "\n".join(
        [
            _HEAD.format(profiles=", ".join(PROFILES)),
            "| job | exchanges | peak | owner | tracker | step | device |",
            "|---|---|---:|---|---:|---|---|",
            *map(_row, found),
            "",
            *_summary(found),
            "",
            "## What differs",
            "",
            *_DIFFERS,
            *map(_cause, far),
            *_NOT_COMPARED,
            *_PUBLISHED,
            *published,
            "",
        ]
    )


def _cause(one: Comparison) -> str:
    """Why a case is far apart, and how far without that."""
    rest = one.rest
    if rest is None or not one.case.why:
        return f"- **{one.case.name}**: not explained"
    stage = max(rest.stages, key=lambda each: abs(each.owner_difference[1]))
    owner, share = stage.owner_difference
    peak = max((each.peak_difference for each in rest.stages), key=abs)
    equal = all(each.exchanges_are_equal for each in rest.stages)
    left = [
        f"exchanges {'equal' if equal else 'differ'}",
        f"peak {_percent(peak)}",
        f"{owner} {_percent(share)}",
        f"step {', '.join(map(_percent, rest.step_differences))}",
    ]
    verdict = "**still beyond a limit**: " if rest.is_far else ""
    return f"- **{one.case.name}**: {one.case.why}. *Without*: {verdict}{'; '.join(left)}"


def _row(one: Comparison) -> str:
    stage = max(one.stages, key=lambda each: abs(each.peak_difference))
    owner, share = stage.owner_difference
    equal = all(each.exchanges_are_equal for each in one.stages)
    tracked = [each.tracked_difference for each in one.stages]
    cells = [
        one.case.name,
        f"{one.stages[0].exchanges}, {'equal' if equal else 'differ'}",
        _percent(stage.peak_difference),
        f"{owner} {_percent(share)}",
        ", ".join(_percent(each, 3) for each in tracked if each is not None),
        ", ".join(map(_percent, one.step_differences)),
        ", ".join(map(_percent, one.device_differences)),
    ]
    return f"| {' | '.join(cells)} |"


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:+.{digits}f} %"


def _summary(found: Sequence[Comparison]) -> Iterable[str]:
    stages = [stage for each in found for stage in each.stages]
    equal = sum(all(stage.exchanges_are_equal for stage in each.stages) for each in found)
    near = sum(
        max(abs(stage.peak_difference), abs(stage.owner_difference[1])) <= PEAK_LIMIT
        for stage in stages
    )
    steps = [abs(difference) for each in found for difference in each.step_differences]
    alone = [abs(difference) for each in found for difference in each.device_differences]
    tracked = [s.tracked_difference for s in stages if s.tracked_difference is not None]
    equal_tracked = sum(abs(each) <= TRACKER_LIMIT for each in tracked)
    yield f"- Exchanges: {equal} of {len(found)} jobs have equal ones."
    yield f"- Memory: {near} of {len(stages)} stages have peak and owners {_within(PEAK_LIMIT)}."
    for name, differences in (("Step time", steps), ("Device alone", alone)):
        near = sum(each <= STEP_LIMIT for each in differences)
        yield f"- {name}: {near} of {len(differences)} are {_within(STEP_LIMIT)}."
    far = [each for each in found if each.is_far]
    left = [each for each in far if each.rest is None or each.rest.is_far]
    yield f"- All three: {len(found) - len(far)} of {len(found)} jobs; {_near_with(found)}."
    yield f"- Causes: without them {len(far) - len(left)} of the other {len(far)} meet all three."
    yield f"- Tracker: {equal_tracked} of {len(tracked)} peaks are {_within(TRACKER_LIMIT)}."


def _near_with(found: Sequence[Comparison]) -> str:
    """How many jobs with experts, tensor parallelism and pipelines meet all limits."""
    counts = {"experts": 0, "tensor parallelism": 0, "a pipeline": 0}
    for job in (each.case.job() for each in found if not each.is_far):
        counts["experts"] += job.model.experts is not None
        counts["tensor parallelism"] += job.plan.tp > 1
        counts["a pipeline"] += job.plan.pp > 1
    return ", ".join(f"{count} with {name}" for name, count in counts.items())


def _within(limit: float) -> str:
    return f"within {100 * limit:g} %"
