"""What stands on the page of a captured step?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from simulator.exporters.html.answer_tables import (
    AnswerPage,
    Cell,
    Column,
    Table,
    cells,
    columns,
    legend_of,
    stacked_bytes,
    stacked_seconds,
)
from simulator.results.fit_probability import fit_text
from simulator.results.views.rank_classes import fullest_of_each_stage
from simulator.units import format_bytes, format_seconds, format_seconds_range, percent

if TYPE_CHECKING:
    from simulator.capture.result import CaptureResult

INTERVAL = "80 % prediction interval of eager jobs"
"""Errors of jobs that run eagerly; published captured steps are held against it in
``reports/pictures.md``."""
_MOST_ROWS = 30


def captured_headline(result: CaptureResult) -> list[tuple[str, str]]:
    """Names and values of the numbers that come first."""
    tokens_per_s = result.tokens_per_s_per_gpu  # 0 where no embedding says what a token is
    band = result.step_time_band_s
    return [
        ("step time", format_seconds(result.step_time_s)),
        *([(INTERVAL, format_seconds_range(*band))] if band else []),
        *([("tokens/s per GPU", f"{tokens_per_s:,.1f}")] if tokens_per_s else []),
        ("model TFLOP/s per GPU", f"{result.model_tflops_per_gpu:.1f}"),
        ("MFU", percent(result.mfu)),
        ("HFU", percent(result.hfu)),
        ("pipeline bubble", percent(result.bubble_fraction)),
        ("memory", fit_text(result.fits_probability)),
    ]


def captured_page(result: CaptureResult) -> AnswerPage:
    """The step as a page: where its time goes, its longest operators, who holds memory."""
    step, odds = format_seconds(result.step_time_s), fit_text(result.fits_probability)
    return AnswerPage(
        title=result.title,
        sentences=[f"A step takes {step}.", f"Memory: {odds}.", *_left_out(result)],
        tables=[_breakdown(result), _operators(result), _memory(result)],
        headline=captured_headline(result),
        command=f"clustersim run step.capture --profile {result.profile.name} --gpus {result.gpus}",
        is_whole_command=True,
    )


def _left_out(result: CaptureResult) -> Iterable[str]:
    for each in result.unknown[:_MOST_ROWS]:
        share = percent(each.share)
        yield f"{each.name} ({each.calls:g} calls) is timed by its bytes alone: {share} of the step"
    yield from result.capture.notes


def _bars(name: str) -> list[Column]:
    return [Column(name, "bars")]


def _breakdown(result: CaptureResult) -> Table:
    spent = {each: seconds for each, seconds in result.breakdown_s.items() if seconds}
    longest_s = max(spent.values(), default=0.0)
    rows = [
        [
            *cells((each.value, format_seconds(seconds), percent(seconds / result.step_time_s))),
            stacked_seconds({each: seconds}, longest_s),
        ]
        for each, seconds in spent.items()
    ]
    heads = [*columns(["where"], ["time", "share"]), *_bars("part of the step")]
    return Table("Where the time goes", "Of a mean rank.", heads, rows)


def _operators(result: CaptureResult) -> Table:
    rows = [
        cells(
            (
                each.name.removesuffix(".default"), each.module or "-", each.phase,
                f"{each.calls:,.0f}", format_seconds(each.seconds), percent(each.share),
            )
        )
        for each in result.dearest[:_MOST_ROWS]
    ]  # fmt: skip
    caption = "Times of their kernels, whatever runs beside them."
    heads = columns(["operator", "module", "phase"], ["calls", "time", "share"])
    return Table("Longest operators on the GPU", caption, heads, rows)


def _memory(result: CaptureResult) -> Table:
    stages = fullest_of_each_stage(result.memory)
    most = max(max(each.peak_device_bytes, each.capacity_bytes) for each in stages)
    rows = [
        [
            Cell(str(stage)),
            *cells(
                map(
                    format_bytes,
                    (each.peak_allocated_bytes, each.peak_reserved_bytes, each.peak_device_bytes),
                )
            ),
            stacked_bytes(each.by_owner, most, each.capacity_bytes),
        ]
        for stage, each in enumerate(stages)
    ]
    heads = [*columns(["stage"], ["allocated", "reserved", "device"]), *_bars("who holds it")]
    caption = "At the peak of each stage's fullest rank; the dashed line is the capacity."
    return Table("Peak memory per GPU", caption, heads, rows, legend_of(rows))
