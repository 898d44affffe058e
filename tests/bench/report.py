"""What does ``reports/performance.md`` say when it is written now?

``python -m tests.bench.report BENCHMARKS.json`` (or ``make performance``) puts the measured
cases into a table and measures how the cost of a simulation grows.
"""

from __future__ import annotations

import itertools
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from simulator.described.job import Job
from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.plots import style
from simulator.program.build import build_program
from simulator.results.summary import summarise
from simulator.version import __version__
from tests.bench.cases import forget, large_job, used_s

FOLDER = Path(__file__).parents[2] / "reports"
_ROUNDS = 3

GROWTH: Mapping[str, Mapping[int, Mapping[str, object]]] = {
    "GPUs": {
        gpus: {"cluster.gpus": gpus, "batch.global": gpus // 8}
        for gpus in (1024, 16384, 131072, 1048576)
    },
    "pipeline stages": {
        pp: {"plan.pp": pp, "batch.global": 16 * 16384 // 8 // pp} for pp in (4, 8, 16, 32, 64)
    },
    "microbatches": {count: {"batch.global": 128 * count} for count in (8, 16, 32, 64, 128)},
    "layers": {layers: {"model.layers": layers} for layers in (32, 64, 128, 256, 512)},
}
"""What is varied, its values, and how the job changes for each."""


class Cost(NamedTuple):
    """What one simulation takes; the parts are processor times [s]."""

    size: int
    operations: int
    build_s: float
    replay_s: float
    simulate_s: float
    summarise_s: float

    @property
    def total_s(self) -> float:
        """From a job to its numbers, with full contention [s]."""
        return self.build_s + self.simulate_s + self.summarise_s


def cost(size: int, job: Job) -> Cost:
    """The fastest of some rounds, part by part."""
    rounds = []
    for _ in range(_ROUNDS):
        forget()
        clock = [used_s()]
        program = build_program(job)
        clock.append(used_s())
        replay(program)
        clock.append(used_s())
        timeline = simulate_program(program)
        clock.append(used_s())
        summarise(job, timeline)
        clock.append(used_s())
        rounds.append([end - start for start, end in itertools.pairwise(clock)])
    parts = [min(part) for part in zip(*rounds, strict=True)]
    return Cost(size, len(program.operations), *parts)


def draw(growth: Mapping[str, Sequence[Cost]], path: Path) -> None:
    """Processor time against what is varied, one panel each, both axes logarithmic."""
    figure = style.new_figure(6.75)
    left, width, height = 0.85, 3.85, 2.05
    parts = {
        "everything": ("total_s", style.INK, "o"),
        "simulation with contention": ("simulate_s", style.BLUE, "s"),
        "building the program": ("build_s", style.ORANGE, "^"),
        "replay": ("replay_s", style.GREEN, "D"),
    }
    for number, (name, costs) in enumerate(growth.items()):
        row, column = divmod(number, 2)
        axes = style.add_axes_in(
            figure, left=left + column * (width + 0.75), top=0.85 + row * (height + 0.75),
            width=width, height=height,
        )  # fmt: skip
        sizes = [each.size for each in costs]
        for label, (field, color, marker) in parts.items():
            values = [1e3 * getattr(each, field) for each in costs]
            axes.plot(sizes, values, color=color, marker=marker, markersize=4, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_ylim(0.2, 2000)
        axes.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.grid(visible=True, color=style.GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_xlabel(name)
        if column == 0:
            axes.set_ylabel("processor time [ms]")
    handles, _ = figure.axes[0].get_legend_handles_labels()
    style.add_title(
        figure, "What one simulation costs",
        "Llama 3.1 405B, tp 8, pp 16, 16 microbatches, 16,384 GPUs; one of these varied",
        left=left,
    )  # fmt: skip
    style.add_legend(figure, handles, left=left)
    style.save(figure, path)


def text(benchmarks: Mapping[str, object], growth: Mapping[str, Sequence[Cost]]) -> str:
    """The report."""
    return "\n".join([*_head(), *_cases(benchmarks), *_growth(growth)]) + "\n"


def _head() -> list[str]:
    return [
        "# Performance",
        "",
        "Written by `make performance`. Times are processor times of one core, children "
        "included: on an idle machine the clock shows the same, and on a shared one they do "
        "not count what others take. Memory is the peak of the resident set of a process of "
        "its own, Python and its libraries included. Commands run with their modules compiled, "
        "as an installer leaves them.",
        "",
        f"clustersim {__version__}, Python {platform.python_version()}, {platform.machine()}.",
        "",
    ]


def _cases(benchmarks: Mapping[str, object]) -> list[str]:
    lines = ["| what | median | fastest | peak memory | target |", "|---|---:|---:|---:|---:|"]
    for benchmark in benchmarks["benchmarks"]:  # type: ignore[attr-defined]
        info, stats = benchmark["extra_info"], benchmark["stats"]
        lines.append(
            f"| {info['title']} | {_time(stats['median'])} | {_time(stats['min'])} "
            f"| {info['peak_mib']:.0f} MiB | {info['target']} |"
        )
    return [*lines, ""]


def _growth(growth: Mapping[str, Sequence[Cost]]) -> list[str]:
    lines = [
        "## How cost grows",
        "",
        "Llama 3.1 405B, tp 8, pp 16, 16 microbatches on 16,384 H100; one of these is varied. "
        "Ranks that do the same are simulated once, so GPUs cost nothing; stages and "
        "microbatches multiply the operations. Costs are computed once per distinct layer, so "
        "layers add little to building and simulating. *Everything* also replays PyTorch's "
        "allocator, block by block: that grows with layers.",
        "",
        "![processor time against GPUs, stages, microbatches and layers](performance.png)",
        "",
    ]
    for name, costs in growth.items():
        lines += [
            f"| {name} | operations | build | replay | simulate | summarise | everything |",
            "|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for each in costs:
            parts = (
                each.build_s, each.replay_s, each.simulate_s, each.summarise_s, each.total_s,
            )  # fmt: skip
            times = " | ".join(_time(part) for part in parts)
            lines.append(f"| {each.size:,} | {each.operations:,} | {times} |")
        lines.append("")
    return lines


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


if __name__ == "__main__":
    measured = {
        name: [cost(size, large_job(changes=changes)) for size, changes in sizes.items()]
        for name, sizes in GROWTH.items()
    }
    draw(measured, FOLDER / "performance.png")
    benchmarks = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    (FOLDER / "performance.md").write_text(text(benchmarks, measured), encoding="utf-8")
