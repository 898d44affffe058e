"""Which rows does a person want to read about one step?

Plain text cells, numbers formatted for people; whoever prints them draws the lines.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.program.ir import Category, Owner
from simulator.results.step import ClassMemory, StepResult
from simulator.units import format_bytes, format_count, format_seconds

Row = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A heading, the names of the columns, and one tuple of cells per row."""

    title: str
    columns: Row
    rows: list[Row]


def summary_table(result: StepResult) -> Table:
    """The figures of the step, one per row."""
    device = max(memory.peak_device_bytes for memory in result.memory)
    return Table(
        result.title,
        ("quantity", "value"),
        [
            ("step time", format_seconds(result.step_time_s)),
            ("tokens/s/GPU", format_count(round(result.tokens_per_s_per_gpu))),
            ("model TFLOP/s/GPU", f"{result.model_tflops_per_gpu:.0f}"),
            ("MFU", _percent(result.mfu)),
            ("HFU", _percent(result.hfu)),
            ("bubble", _percent(result.bubble_fraction)),
            (
                "exposed communication",
                _percent(sum(result.exposed_comm_s.values()) / result.step_time_s),
            ),
            ("peak memory", f"{format_bytes(device)} of {format_bytes(result.capacity_bytes)}"),
        ],
    )


def breakdown_table(result: StepResult) -> Table:
    """Where the step goes: the mean rank, its share, and the extremes over the stages."""
    rows: list[Row] = []
    for category in Category:
        per_class = [row.get(category, 0.0) for row in result.class_breakdown_s]
        mean_s = result.breakdown_s.get(category, 0.0)
        if mean_s == 0 and not any(per_class):
            continue
        rows.append(
            (
                category.value.replace("_", " "),
                format_seconds(mean_s),
                _percent(mean_s / result.step_time_s),
                format_seconds(min(per_class, default=mean_s)),
                format_seconds(max(per_class, default=mean_s)),
            )
        )
    total_s = sum(result.breakdown_s.values())
    rows.append(("step", format_seconds(total_s), _percent(total_s / result.step_time_s), "", ""))
    return Table("Where the step goes", ("category", "mean", "share", "least", "most"), rows)


def memory_table(result: StepResult) -> Table:
    """Peak memory of each rank class: in total, and by owner at that moment."""
    owners = [o for o in Owner if any(m.by_owner.get(o, 0.0) > 0 for m in result.memory)]
    columns = (
        "stage",
        "ranks",
        "allocated",
        "reserved",
        "device",
        "fits",
        *(owner.value.replace("_", " ") for owner in owners),
    )
    classes = result.timeline.program.classes
    rows = [
        (
            rank_class.name,
            str(rank_class.count),
            format_bytes(memory.peak_allocated_bytes),
            format_bytes(memory.peak_reserved_bytes),
            format_bytes(memory.peak_device_bytes),
            _fits(memory, result.capacity_bytes),
            *(format_bytes(memory.by_owner.get(owner, 0.0)) for owner in owners),
        )
        for rank_class, memory in zip(classes, result.memory, strict=True)
    ]
    return Table(f"Peak memory (capacity {format_bytes(result.capacity_bytes)})", columns, rows)


def _fits(memory: ClassMemory, capacity_bytes: float) -> str:
    missing = memory.peak_device_bytes - capacity_bytes
    return "yes" if missing <= 0 else f"no, {format_bytes(missing)} over"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
