"""What does a captured step cost on a cluster?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.capture.captured_program import CapturedProgram, RankCosts, captured_program
from simulator.capture.dearest_operators import DearOperator, dearest_operators
from simulator.capture.held_memory import captured_memory
from simulator.capture.rescale import scaled
from simulator.capture.table import Capture, Phase
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.load import load_profile
from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.engine.timeline import Timeline
from simulator.errors import InputError
from simulator.program.ir import COMMUNICATION, Category
from simulator.results.fit_probability import memory_spread
from simulator.results.step import StepResult
from simulator.results.step_error import EAGER, computed_share, exposure, shipped_errors
from simulator.results.waits import class_breakdowns, compute_waits, mean_over_ranks

if TYPE_CHECKING:
    from simulator.exporters.html.answer_tables import AnswerPage

MOST_NAMED = 10
"""Operators that a page or an answer lists."""


@dataclass(frozen=True)
class UnknownOperator:
    """An operator that no model stands for.

    Attributes:
        name: As torch names it.
        calls: How often a mean rank's step has it.
        num_bytes: What it reads and writes in all of them [B].
        share: Of the step, with its bytes at the memory's rate.
    """

    name: str
    calls: float
    num_bytes: float
    share: float


@dataclass(frozen=True)
class CaptureResult(StepResult):
    """A captured step's numbers.

    Attributes:
        capture: The step.
        profile: The system that it was simulated on.
        gpus: How many GPUs.
        unknown: Operators that no model stands for, the longest first.
        dearest: All operators, the longest first.
    """

    capture: Capture
    profile: HardwareProfile
    gpus: int
    unknown: tuple[UnknownOperator, ...]
    dearest: tuple[DearOperator, ...]

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data; fields are named as those of a job's result."""
        from simulator.results.views.plain_data import fit_to_dict, memory_to_dict, step_to_dict

        kinds = Counter(source.kind for source in self.profile.provenance.values())
        return {
            **step_to_dict(self),
            "memory": [memory_to_dict(memory) for memory in self.memory],
            "capacity_bytes": self.capacity_bytes,
            **fit_to_dict(self),
            "unknown_operators": [vars(each) for each in self.unknown],
            "dearest_operators": [vars(each) for each in self.dearest[:MOST_NAMED]],
            "sources": dict(kinds.most_common()),
            "capture": self._capture_to_dict(),
        }

    def _capture_to_dict(self) -> dict[str, Any]:
        capture = self.capture
        return {
            "script": capture.script,
            "captured_ranks": capture.world,
            "ranks": self.gpus,
            "operators": [len(table.call) for table in capture.tables],
            "tokens_per_rank": capture.tokens_per_rank,
            "versions": dict(capture.versions),
            "notes": list(capture.notes),
        }

    def to_json(self, indent: int | None = 2) -> str:
        """The result as one JSON object."""
        return json.dumps(self.to_dict(), indent=indent)

    def page(self) -> AnswerPage:
        """The step as a page to write, or to show."""
        from simulator.capture.captured_page import captured_page

        return captured_page(self)

    def write_html(self, path: str | Path) -> Path:
        """Write the page; returns where."""
        from simulator.exporters.html.answer_page import write_answer_page

        write_answer_page(self.page(), path)
        return Path(path)

    def plot_all(self, folder: str | Path) -> list[Path]:
        """Draw pipeline, memory, breakdown and links into a folder, made if it is not there."""
        from simulator.plots.comparison import build_breakdown_figure
        from simulator.plots.links import build_links_figure
        from simulator.plots.memory import (
            build_memory_by_owner_figure,
            build_memory_over_time_figure,
        )
        from simulator.plots.pipeline import build_pipeline_figure
        from simulator.plots.style import save

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        figures = {
            "pipeline": build_pipeline_figure,
            "memory": build_memory_by_owner_figure,
            "memory_over_time": build_memory_over_time_figure,
            "breakdown": build_breakdown_figure,
            "links": build_links_figure,
        }
        for name, build in figures.items():
            save(build(self), folder / f"{name}.png")
        return [folder / f"{name}.png" for name in figures]

    def write_trace(
        self, path: str | Path, *, max_events: int = 2_000_000, kernels: bool = False
    ) -> Path:
        """Write a Chrome/Perfetto trace, compressed if the path ends in .gz."""
        from simulator.exporters.chrome_trace import write_trace

        write_trace(self, Path(path), max_events=max_events, kernels=kernels)
        return Path(path)


def simulate_capture(
    capture: Capture,
    profile: str | HardwareProfile | None = None,
    gpus: int | None = None,
    *,
    engine: str = "des",
) -> CaptureResult:
    """A captured step on a cluster; the code is not run again.

    Args:
        capture: The step.
        profile: The system, or its name; by default the one that the code was told of.
        gpus: Ranks, a multiple of those that hold one copy of the model; by default as many
            as were captured.
        engine: ``des``, or ``replay`` for the lower bound without contention.

    Raises:
        InputError: There is no such profile or engine, or the ranks make no whole copies.
    """
    if engine not in ("des", "replay"):
        raise InputError.single("engine", "must be 'des' or 'replay'", engine)
    if not isinstance(profile, HardwareProfile):
        profile = load_profile(profile or capture.device)
    scale = scaled(capture, gpus)
    made = captured_program(capture, profile, scale)
    timeline = simulate_program(made.program) if engine == "des" else replay(made.program)
    memory = captured_memory(capture, made.ranks, timeline, profile, scale)
    return _summarised(capture, profile, made, timeline, memory, scale.gpus)


def _summarised(
    capture: Capture,
    profile: HardwareProfile,
    made: CapturedProgram,
    timeline: Timeline,
    memory: Any,
    gpus: int,
) -> CaptureResult:
    step_s = timeline.step_time_s
    waits = compute_waits(timeline)
    breakdowns = class_breakdowns(timeline, waits)
    breakdown = mean_over_ranks(timeline, breakdowns)
    tokens = capture.tokens_per_rank / len(capture.tables)
    model_flop, flop, peak = _work(capture, made.ranks, profile)
    return CaptureResult(
        timeline=timeline,
        step_time_s=step_s,
        step_time_band_s=_band_s(profile, step_s, breakdown),
        tokens_per_s_per_gpu=tokens / step_s,
        model_tflops_per_gpu=model_flop / step_s / 1e12,
        mfu=model_flop / step_s / peak,
        mfu_causal=None,
        hfu=flop / step_s / peak,
        bubble_fraction=breakdown.get(Category.BUBBLE, 0.0) / step_s,
        breakdown_s=breakdown,
        exposed_comm_s={c: s for c, s in breakdown.items() if c in COMMUNICATION},
        class_breakdown_s=breakdowns,
        waits=waits,
        memory=memory,
        capacity_bytes=profile.device.memory_bytes,
        memory_spread=memory_spread("capture", [profile.name]),
        title=f"{capture.script} on {gpus} x {profile.name}",
        asynchrony=None,
        host=None,
        capture=capture,
        profile=profile,
        gpus=gpus,
        unknown=_unknown(capture, made.ranks, step_s),
        dearest=dearest_operators(capture, made.ranks, step_s),
    )


def _work(
    capture: Capture, ranks: tuple[RankCosts, ...], profile: HardwareProfile
) -> tuple[float, float, float]:
    """FLOP that the model needs, FLOP executed, and the peak that they are held against.

    Of a mean rank; the peak is that of the format in which most is computed [FLOP, FLOP, FLOP/s].
    """
    model = executed = 0.0
    formats: Counter[str] = Counter()
    for table, rank in zip(capture.tables, ranks, strict=True):
        for number, phase in zip(table.call.tolist(), table.phase.tolist(), strict=True):
            cost = rank.costs[number]
            if not cost.flop:
                continue
            executed += cost.flop
            formats[cost.precision] += round(cost.flop)
            if phase != Phase.RECOMPUTE:
                model += cost.flop
    most = formats.most_common(1)
    peak = profile.device.peak.of(most[0][0]) if most else None  # type: ignore[arg-type]
    count = len(ranks)
    return model / count, executed / count, peak or profile.device.peak.fp32_flop_per_s


def _unknown(
    capture: Capture, ranks: tuple[RankCosts, ...], step_s: float
) -> tuple[UnknownOperator, ...]:
    totals: dict[str, tuple[int, float, float]] = {}
    for table, rank in zip(capture.tables, ranks, strict=True):
        for number in table.call[table.exchange < 0].tolist():
            cost, call = rank.costs[number], table.calls[number]
            if not cost.is_known:
                calls, num_bytes, seconds = totals.get(call.name, (0, 0.0, 0.0))
                moved = call.read_bytes + call.written_bytes
                totals[call.name] = calls + 1, num_bytes + moved, seconds + cost.seconds
    count = len(ranks)
    found = [
        UnknownOperator(name, calls / count, num_bytes / count, seconds / count / step_s)
        for name, (calls, num_bytes, seconds) in totals.items()
    ]
    return tuple(sorted(found, key=lambda each: -each.share))


def _band_s(
    profile: HardwareProfile, step_s: float, breakdown_s: Mapping[Category, float]
) -> tuple[float, float]:
    """Between which times eight of ten such runs would lie [s]; products are taken as bf16.

    What the host does is captured, so launches weigh what the device waits for it.
    """
    error = shipped_errors().step_error(profile, "bf16", EAGER)
    exposed = exposure(step_s, breakdown_s, layer_passes=0)
    fastest, slowest = error.band(exposed, computed_share(step_s, breakdown_s))
    return fastest * step_s, slowest * step_s
