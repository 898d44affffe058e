"""How far are captured steps from the simulator's own programs, as a page to read?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports.make.captures.comparison import PROFILES, Comparison, StageComparison
from reports.make.captures.published_rows import published_table

STEP_LIMIT, PEAK_LIMIT, TRACKER_LIMIT = 0.03, 0.01, 0.005
"""Beyond which a difference needs a sentence."""

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


_PUBLISHED = (
    "## Published runs of torchtitan",
    "",
    "Its own trainer, captured, eager, beside what the simulator predicts of the row. Memory is",
    "what the allocator reserves [GiB].",
    "",
)


def page(found: Sequence[Comparison]) -> str:
    """The page, in Markdown."""
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
            *(f"- **{each.case.name}**: {each.case.why}" for each in found if is_far(each)),
            "",
            *_PUBLISHED,
            *published_table(),
            "",
        ]
    )


def is_far(one: Comparison) -> bool:
    """Whether a case is beyond a limit."""
    steps = any(abs(each) > STEP_LIMIT for each in one.step_differences)
    return steps or any(map(_stage_is_far, one.stages))


def _stage_is_far(stage: StageComparison) -> bool:
    apart = max(abs(stage.peak_difference), abs(stage.owner_difference[1]))
    return apart > PEAK_LIMIT or not stage.exchanges_are_equal


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
    yield f"- Tracker: {equal_tracked} of {len(tracked)} peaks are {_within(TRACKER_LIMIT)}."


def _within(limit: float) -> str:
    return f"within {100 * limit:g} %"
