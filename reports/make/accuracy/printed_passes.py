"""What do the pass times and bubble rates that a paper prints say about a prediction?

A table of printed times tells a fault of the costs from one of the orders: bubble rates at the
printed times need the orders alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from reports.make.tables import markdown_table
from simulator.cells import Row, read_table
from simulator.described.documents import merged
from simulator.described.load import job_from_document
from simulator.program.price.schedule_costs import pass_costs
from simulator.results.simulation import run_step
from simulator.schedule import Phase
from simulator.validate.published.published_rows import job_document

_PHASES = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD_INPUT: "input_gradient",
    Phase.BACKWARD_WEIGHT: "weight_gradient",
}
BASELINE = "1f1b"


@dataclass(frozen=True)
class PrintedPasses:
    """What a paper prints of the runs of one model with so many microbatches.

    Attributes:
        columns: The row of the table.
    """

    columns: Mapping[str, str]

    @property
    def key(self) -> tuple[str, int]:
        """Model and microbatches."""
        return self.columns["model"], int(self.columns["microbatches"])

    @property
    def ms(self) -> list[float]:
        """Forward, input gradient, weight gradient and transfer [ms]."""
        return [float(self.columns[name]) for name in (*_PHASES.values(), "transfer")]

    def step_s(self, schedule: str) -> float:
        """What the printed pass times and bubble rate make of a step [s]."""
        busy_ms = self.key[1] * math.fsum(self.ms[: len(_PHASES)])
        return 1e-3 * busy_ms / (1 - float(self.columns[schedule]))

    def gain_pct(self, schedule: str) -> float:
        """What the printed bubble rates say that a schedule does more than 1F1B."""
        idle, baseline = (float(self.columns[name]) for name in (schedule, BASELINE))
        return 100 * ((1 - idle) / (1 - baseline) - 1)

    @property
    def synchronized_loss_pct(self) -> float | None:
        """Throughput that zb-2p loses where its optimizer waits for all stages; None if unsaid."""
        before, after = (
            self.columns[f"samples_{name}"] for name in ("post_validated", "synchronized")
        )
        return 100 * (float(after) / float(before) - 1) if after else None


def read_printed(path: Path) -> dict[tuple[str, int], PrintedPasses]:
    """The rows of a table, by model and microbatches."""
    rows = read_table(path, ("model", "microbatches", *_PHASES.values(), "transfer", BASELINE))
    return {printed.key: printed for printed in map(PrintedPasses, rows)}


def simulated_ms(row: Row) -> list[float]:
    """Forward, input gradient and weight gradient of a stage in the middle, and a transfer [ms].

    The transfer is the mean over all hops, as the authors' program measures it.
    """
    job = job_from_document(job_document(row))
    costs, stages = pass_costs(job, job.choices.schedule), job.plan.pp
    times_s = [costs.seconds[phase, stages // 2] for phase in _PHASES]
    transfer_s = fmean(costs.transfer_s(rank, rank + 1) for rank in range(stages - 1))
    return [1e3 * time_s for time_s in (*times_s, transfer_s)]


def simulated_loss_pct(row: Row) -> float:
    """Throughput that a run loses where its optimizer waits for all stages [%]."""
    document = job_document(row)
    waits = merged(document, {"plan": {"post_validation": False}})
    before, after = (run_step(job_from_document(each)).step_time_s for each in (document, waits))
    return 100 * (before / after - 1)


def zb_1p_gain_pct(passes: Sequence[float], stages: int, microbatches: int) -> float:
    """What zb-1p does more than 1F1B where transfers take no time and all stages are alike [%].

    Args:
        passes: Times of forward, input gradient and weight gradient, in any unit.
        stages: Ranks of the pipeline.
        microbatches: Per step.

    Source:
        Bubbles of (p - 1)(tF + tI + tW) and (p - 1)(tF + tI - tW): arXiv 2401.10241, section 2.1.
    """
    work, weight = microbatches * math.fsum(passes), passes[-1]
    bubble, less = (stages - 1) * math.fsum(passes), 2 * (stages - 1) * weight
    return 100 * ((work + bubble) / (work + bubble - less) - 1)


def pass_lines(
    rows: Sequence[Row], printed: Mapping[tuple[str, int], PrintedPasses]
) -> Iterator[str]:
    """A table of pass times, and one of what waiting for the optimizer costs."""
    models: dict[str, tuple[Row, PrintedPasses]] = {}
    for row in rows:
        found = printed.get((row["model"], microbatches(row)))
        if row["schedule"] == "zb-2p" and found is not None:
            models.setdefault(row["model"], (row, found))
    yield "\n## Passes of one microbatch: printed, simulated\n"
    yield "| model | forward ms | input gradient ms | weight gradient ms | transfer ms |"
    yield "|---|---:|---:|---:|---:|"
    simulated = {model: simulated_ms(row) for model, (row, _) in models.items()}
    for model, (_, found) in models.items():
        pairs = zip(found.ms, simulated[model], strict=True)
        yield f"| {model} | {' | '.join(f'{told:.2f}, {ours:.2f}' for told, ours in pairs)} |"
    yield from _split_lines(rows, printed, simulated)
    yield from _excess_lines(rows, printed)
    yield "\n## What zb-2p loses if its optimizer waits for all stages\n"
    yield "| model | m | measured % | predicted % |"
    yield "|---|---:|---:|---:|"
    for model, (row, found) in models.items():
        told = found.synchronized_loss_pct
        if told is not None:
            losses = f"{told:+.1f} | {simulated_loss_pct(row):+.1f}"
            yield f"| {model} | {microbatches(row)} | {losses} |"


def _split_lines(
    rows: Sequence[Row],
    printed: Mapping[tuple[str, int], PrintedPasses],
    simulated: Mapping[str, Sequence[float]],
) -> Iterator[str]:
    """What zb-1p gains by the closed forms of its bubble, at printed and at simulated passes."""
    steps = {(row["model"], microbatches(row), row["schedule"]): row for row in rows}
    yield "\n## What the passes alone make of zb-1p\n"
    yield "| model | m | measured gain % | at printed passes % | at simulated passes % |"
    yield "|---|---:|---:|---:|---:|"
    for (model, count), found in printed.items():
        before, after = (
            float(steps[model, count, name]["measured_step_s"]) for name in (BASELINE, "zb-1p")
        )
        stages = int(found.columns["stages"])
        gains = (
            100 * (before / after - 1),
            *(
                zb_1p_gain_pct(times[: len(_PHASES)], stages, count)
                for times in (found.ms, simulated[model])
            ),
        )
        yield f"| {model} | {count} | {' | '.join(f'{gain:+.1f}' for gain in gains)} |"


def _excess_lines(
    rows: Sequence[Row], printed: Mapping[tuple[str, int], PrintedPasses]
) -> Iterator[str]:
    """How much longer steps are than printed pass times and bubble rates make them."""
    over: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        told_s = printed[row["model"], microbatches(row)].step_s(row["schedule"])
        excess_pct = 100 * (float(row["measured_step_s"]) / told_s - 1)
        over.setdefault(row["model"], {}).setdefault(row["schedule"], []).append(excess_pct)
    schedules = sorted({row["schedule"] for row in rows})
    yield "\n## Measured steps over printed pass times and bubble rates, % (all m)\n"
    ranges = (
        (model, *(f"{min(found[name]):.1f} to {max(found[name]):.1f}" for name in schedules))
        for model, found in over.items()
    )
    yield from markdown_table(("model", *schedules), ranges)


def microbatches(row: Row) -> int:
    """Microbatches of a run without data parallelism."""
    return int(row["global_batch"]) // int(row["micro_batch"])
