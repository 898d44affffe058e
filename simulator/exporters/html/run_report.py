"""What does the page of one step or of several say, and what its view in a notebook?

Of one: the verdict and the headline; an interactive timeline; memory over time and at its peak;
where the time goes; which changes were simulated; which numbers it all rests on; and how to get the
same again.

Of several: what changed in the jobs, why each step differs from the first (causes that sum to the
difference), the timelines one under the other on one axis, and how to get the same again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job, changed_fields, job_yaml
from simulator.exporters.html.page import packed, render, write_page
from simulator.exporters.html.timeline_data import (
    MOST_ROWS,
    WAITS,
    both,
    profiles,
    shown_classes,
    source_blocks,
    timeline_data,
    used_numbers,
)
from simulator.plots import style
from simulator.plots.comparison import falls
from simulator.plots.memory import fullest, fullest_moments
from simulator.program.ir import Category, Owner
from simulator.results.step import ClassMemory, StepResult
from simulator.results.views.difference import Difference, difference
from simulator.results.views.plain_data import expert_load_sentence, source_counts
from simulator.results.views.rank_classes import class_words, spread
from simulator.results.views.verdict import Advice, verdict
from simulator.units import format_bytes, format_seconds, format_seconds_range, signed_seconds

_MOST_DRAWN_CLASSES = 64
_MOST_MOMENTS = 4000
"""Each slice of time shows its fullest moment, so that no peak is lost."""

_SCRIPTS = ("lanes.js", "axis.js", "details.js", "timeline.js", "memory.js", "tools.js", "run.js")

_MOST_CLASSES = 64
"""Rows of the tables per rank class."""

_OUTSIDE = {"name": "allocator, context and communicators", "color": ("#BFBFBF", "#6E7480")}
"""What the device holds beyond tensors."""

_QUIET_STREAMS = frozenset({"recv_previous", "recv_next"})
"""Hidden until asked for: they mirror the sends of a neighbour."""


def _memory_data(result: StepResult) -> dict[str, Any]:
    """Curves by owner of each rank class, as the script ``memory.js`` reads them."""
    classes = result.timeline.program.classes
    worst = fullest(result)
    shown = sorted({worst, *spread(len(classes), _MOST_DRAWN_CLASSES)})
    return {
        "fullest": shown.index(worst),
        "classes": [
            {"name": class_words(classes[i]), **_curves(result.memory[i], result.step_time_s)}
            for i in shown
        ],
    }


def _curves(memory: ClassMemory, step_s: float) -> dict[str, Any]:
    moments = fullest_moments(memory, step_s, _MOST_MOMENTS)
    return {
        "time_s": packed(memory.time_s[moments]),
        "peak_s": memory.peak_time_s,
        "peak_bytes": memory.peak_allocated_bytes,
        "capacity_bytes": memory.capacity_bytes,
        "owners": [
            {"name": style.words(owner), "color": both(color), "bytes": curve}
            for owner, color in style.OWNER_COLOR.items()
            if (curve := _curve(memory, owner, moments)) is not None
        ],
    }


def _curve(memory: ClassMemory, owner: Owner, moments: NDArray[np.int64]) -> float | str | None:
    """One number where nothing changes, a column where something does, None for nothing."""
    held = memory.owner_bytes.get(owner)
    if held is None or not np.any(held):
        return None
    curve = held[moments]
    return float(curve[0]) if np.all(curve == curve[0]) else packed(curve)


def write_run_report(
    result: StepResult, job: Job, advice: Advice, path: str | Path, *, most_rows: int = MOST_ROWS
) -> None:
    """Write the page of one step.

    Args:
        result: The step.
        job: What was simulated.
        advice: Verdict, what-ifs and influences.
        path: The file.
        most_rows: Operations on lanes that the timeline holds at most; beyond it whole
            classes of ranks are left out, and the page says so.
    """
    context, data = _content(result, job, advice, most_rows)
    write_page(path, "run.html", context, scripts=_SCRIPTS, data=data)


def _content(
    result: StepResult, job: Job, advice: Advice, most_rows: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    blocks = source_blocks(job)
    timeline = timeline_data(result, blocks, most_rows=most_rows)
    classes = result.timeline.program.classes
    shown = shown_classes(result, most_rows)
    context = {
        "title": result.title,
        "advice": advice,
        "headline": list(headline(result)),
        "asynchrony": result.asynchrony,
        "expert_load": expert_load_sentence(result, job),
        "streams": _streams(timeline),
        "timeline_legend": list(timeline_legend(result)),
        "left_out": [c.name for i, c in enumerate(classes) if i not in set(shown)],
        "waterfall": list(waterfall(result)),
        "categories": _categories(result),
        "class_rows": list(_class_rows(result)),
        "more_classes": len(classes) - len(_listed_classes(result)),
        "memory_rows": list(memory_rows(result)),
        "owners": memory_owners(result),
        "capacities": " and ".join(
            f"{format_bytes(profile.device.memory_bytes)} on {profile.name}"
            for profile in profiles(job)
        ),
        "profile": _profile_words(job),
        "sources": source_counts(job),
        "assumed": _assumed(job),
        "job_yaml": job_yaml(job),
    }
    return context, {"timeline": timeline, "memory": _memory_data(result), "sources": blocks}


def headline(result: StepResult) -> Iterator[tuple[str, str]]:
    """Names and values of the numbers that come first."""
    yield "step time", format_seconds(result.step_time_s)
    if result.step_time_band_s is not None:
        yield "80 % prediction interval", format_seconds_range(*result.step_time_band_s)
    yield "tokens/s per GPU", f"{result.tokens_per_s_per_gpu:,.1f}"
    yield "model TFLOP/s per GPU", f"{result.model_tflops_per_gpu:.1f}"
    yield "MFU", f"{100 * result.mfu:.1f} %"
    yield "HFU", f"{100 * result.hfu:.1f} %"
    yield "pipeline bubble", f"{100 * result.bubble_fraction:.1f} %"
    most = result.fullest
    held, capacity = map(format_bytes, (most.peak_device_bytes, most.capacity_bytes))
    yield "fullest GPU", f"{held} of {capacity}"


def _streams(timeline: dict[str, Any]) -> list[dict[str, Any]]:
    names = dict.fromkeys(lane["stream"] for lane in timeline["lanes"])
    order = sorted(names, key=lambda name: name == WAITS)
    return [{"name": name, "shown": name not in _QUIET_STREAMS} for name in order]


def timeline_legend(result: StepResult) -> Iterator[dict[str, Any]]:
    """Colours of the timeline in the order of the palette, waits last."""
    operations = result.timeline.program.operations
    kinds = {operation.kind for operation in operations}
    parts = {
        part.category
        for work in {id(o.work): o.work for o in operations}.values()
        for part in work.parts
        if part.category not in (Category.PIPELINE, Category.DATA_PARALLEL)
    }
    for kind, color in style.KIND_COLOR.items():
        if kind in kinds:
            yield {"name": style.words(kind), "color": both(color), "wait": False}
    for category, color in style.CATEGORY_COLOR.items():
        is_band = category.value not in {kind.value for kind in kinds}
        if category in parts and is_band and category is not Category.HOST:
            yield {"name": style.words(category), "color": both(color), "wait": False}
    for category in style.CATEGORY_COLOR:
        if category in result.waits.category:
            color = style.wait_hatch_color(category)
            yield {
                "name": style.wait_words(category),
                "color": (color, style.mix(color, "#16181C", 0.3)),
                "wait": True,
            }


def _categories(result: StepResult) -> list[dict[str, Any]]:
    rows = (result.breakdown_s, *result.class_breakdown_s)
    return [
        {"name": style.words(category), "color": _category_color(category), "key": category}
        for category in style.CATEGORY_COLOR
        if any(row.get(category, 0.0) > 0 for row in rows)
    ]


def _category_color(category: Category) -> tuple[str, str]:
    if category is Category.BUBBLE:
        return style.wait_hatch_color(category), style.BUBBLE_ON_DARK
    return both(style.CATEGORY_COLOR[category])


def waterfall(result: StepResult) -> Iterator[dict[str, Any]]:
    """Each category of the mean rank, where it starts and how long it is."""
    done_s = 0.0
    for category in _categories(result):
        seconds = result.breakdown_s.get(category["key"], 0.0)
        yield {
            **category,
            "seconds": seconds,
            "share": seconds / result.step_time_s,
            "from": done_s / result.step_time_s,
        }
        done_s += seconds


def _listed_classes(result: StepResult) -> list[int]:
    """Indices of the classes in the tables, the fullest always among them."""
    used = [memory.filled_share for memory in result.memory]
    return sorted({used.index(max(used)), fullest(result), *spread(len(used), _MOST_CLASSES)})


def _class_rows(result: StepResult) -> Iterator[dict[str, Any]]:
    classes = result.timeline.program.classes
    for index in _listed_classes(result):
        seconds = result.class_breakdown_s[index]
        yield {
            "name": class_words(classes[index]),
            "bars": [
                {**each, "share": seconds.get(each["key"], 0.0) / result.step_time_s}
                for each in _categories(result)
            ],
        }


def _owners(result: StepResult) -> list[dict[str, Any]]:
    return [
        {"name": style.words(owner), "color": both(color), "key": owner}
        for owner, color in style.OWNER_COLOR.items()
        if any(memory.by_owner.get(owner, 0.0) for memory in result.memory)
    ]


def memory_owners(result: StepResult) -> list[dict[str, Any]]:
    """Who holds memory, in the order of the bars of :func:`memory_rows`."""
    return [*_owners(result), _OUTSIDE]


def memory_rows(result: StepResult) -> Iterator[dict[str, Any]]:
    """Peaks of each class; bars are shares of the longest, which is the need or the capacity."""
    classes = result.timeline.program.classes
    longest = max(max(m.capacity_bytes, m.peak_device_bytes) for m in result.memory)
    for index in _listed_classes(result):
        memory = result.memory[index]
        yield {
            "name": class_words(classes[index]),
            "memory": memory,
            "fits": memory.peak_device_bytes <= memory.capacity_bytes,
            "capacity_share": memory.capacity_bytes / longest,
            "bars": [
                *(
                    {**owner, "share": _held(memory, owner["key"]) / longest}
                    for owner in _owners(result)
                ),
                {
                    **_OUTSIDE,
                    "share": (memory.peak_device_bytes - memory.peak_allocated_bytes) / longest,
                },
            ],
        }


def _held(memory: ClassMemory, owner: Owner) -> float:
    return memory.by_owner.get(owner, 0.0)


def _profile_words(job: Job) -> str:
    names = [profile.name for profile in profiles(job)]
    return f"the profile{'s' if len(names) > 1 else ''} {' and '.join(names)}"


def _assumed(job: Job) -> list[tuple[str, str]]:
    """Numbers of the profiles that are assumed, in the formats that the plan uses."""
    several = len(profiles(job)) > 1
    return [
        (f"{profile.name}: {path}" if several else path, source.reference)
        for profile, path, source in used_numbers(job)
        if source.kind == "assumed"
    ]


def notebook_view(result: StepResult) -> str:
    """The headline and where the time goes, as HTML without scripts."""
    return render(
        "notebook.html",
        {
            "title": result.title,
            "verdict": verdict(result),
            "headline": list(headline(result)),
            "waterfall": list(waterfall(result)),
        },
    )


_COMPARE_SCRIPTS = ("lanes.js", "axis.js", "details.js", "timeline.js", "tools.js", "compare.js")


class Run(NamedTuple):
    """One of the steps that are compared."""

    name: str
    result: StepResult
    job: Job


def write_compare_report(
    runs: Sequence[Run],
    path: str | Path,
    *,
    prices: Sequence[str] = (),
    odds: Sequence[str] = (),
) -> None:
    """Write the page of several steps; each is compared with the first.

    ``prices`` are what a billion tokens cost in each of them, as text [USD]; ``odds`` follow the
    gain of each of the others in its sentence.
    """
    context, data = _compared(runs)
    for comparison, text in zip(context["comparisons"], odds, strict=False):
        comparison["odds"] = text
    if prices:
        context["headlines"].append(("USD per billion tokens", list(prices)))
    write_page(path, "compare.html", context, scripts=_COMPARE_SCRIPTS, data=data)


def _compared(runs: Sequence[Run]) -> tuple[dict[str, Any], dict[str, Any]]:
    first, *others = runs
    most_rows = MOST_ROWS // len(runs)
    blocks = [source_blocks(run.job) for run in runs]
    legend = {entry["name"]: entry for run in runs for entry in timeline_legend(run.result)}
    context = {
        "title": f"{first.name} against {', '.join(run.name for run in others)}",
        "names": [run.name for run in runs],
        "titles": [run.result.title for run in runs],
        "headlines": _headlines(runs),
        "comparisons": [_comparison(first, other) for other in others],
        "timeline_legend": list(legend.values()),
        "jobs": [(run.name, job_yaml(run.job)) for run in runs],
    }
    data = {
        "runs": [
            {
                "timeline": timeline_data(run.result, sources, most_rows=most_rows),
                "sources": sources,
            }
            for run, sources in zip(runs, blocks, strict=True)
        ]
    }
    return context, data


def _headlines(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    columns = [dict(headline(run.result)) for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)
    return [(name, [column.get(name, "-") for column in columns]) for name in names]


def _comparison(first: Run, other: Run) -> dict[str, Any]:
    found = difference(first.result, other.result)
    fields = changed_fields(first.job, other.job)
    return {
        "name": other.name,
        "difference": found,
        "bars": list(_bars(found)),
        "bars_begin_s": _room(found)[0],
        "fields": [(path, _shown(a), _shown(b)) for path, (a, b) in fields.items()],
        "odds": "",
    }


def _shown(value: object) -> str:
    return "default" if value is None else str(value)


def _bars(found: Difference) -> Iterator[dict[str, Any]]:
    """Bars of the waterfall as shares of its room, which leaves out what is common to all."""
    begin_s, end_s = _room(found)
    done_s, width_s = found.first_s, end_s - begin_s
    for name, seconds in falls(found):
        yield {
            "name": name,
            "amount": signed_seconds(seconds),
            "share_of_step": seconds / found.first_s,
            "is_longer": seconds > 0,
            "from": (min(done_s, done_s + seconds) - begin_s) / width_s,
            "share": abs(seconds) / width_s,
        }
        done_s += seconds


def _room(found: Difference) -> tuple[float, float]:
    """Where the axis of a waterfall begins and ends [s]."""
    edges = list(accumulate((seconds for _, seconds in falls(found)), initial=found.first_s))
    edges.append(found.second_s)
    room_s = max(max(edges) - min(edges), 1e-3 * max(edges))
    return max(0.0, min(edges) - 0.3 * room_s), max(edges)
