"""Do steps spread as published ones do, whose lengths or ranks were stated?

``make distributions`` writes ``reports/distributions.md`` and its picture. The data lie in
``reports/data/distributions``: the job of each run with its source, what was measured, and what was
predicted at first sight.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import fmean, linear_regression

from matplotlib.figure import Figure

from simulator.api import sample
from simulator.cells import read_table
from simulator.described.load import load_job
from simulator.planning.drawn_lengths import Spread, steps_of_lengths
from simulator.plots import style
from simulator.program.ir import Category
from simulator.results.simulation import run_step

FOLDER = Path(__file__).parents[2] / "data" / "distributions"
_SAMPLES = 4000
_VERL_UPDATES, _VERL_MICROBATCHES = 4, 4
_VIME_ANSWERS, _VIME_MOST_TOKENS = 8, 8192

_PAGE = """# How steps spread, against published runs

Made by `make distributions`. Data and sources are in `reports/data/distributions/`. *First sight*
is what was predicted first, before causes were sought; it is never changed.

![Steps of a run of verl, and growth with ranks](distributions.png)

## Lengths: 105 steps of verl on 8 H20

The log `gsm8k/qwen2-7b-fsdp2.log` of eric-haibin-lin/verl-data states for every step of a GRPO run
how many tokens its 5,120 sequences have, and how long the update of the actor takes [s]: four
optimizer steps of FSDP2 without padding, on ranks that are balanced by tokens. Every step is
priced from its tokens alone.

{verl}

Steps spread as predicted; their level is {verl_error:.0f} % too low. So are forwards alone: of the
longest step they are priced at {forward_s:.1f} s, while `timing_s/old_log_prob` is 25.6 s. The
log's own MFU of 0.78 is 115 TFLOP/s of an H20, whose profile has products at 137 and assumes that
its clock lasts. Weights and optimizer states that verl brings to the GPUs and back are 2 % of an
update and not modelled.

## Lengths: {vime_steps} steps of vime on 8 MI300X

RL-Align/RL-Kernel publishes 200 steps of a GRPO run of Qwen3-8B with the mean length of the eight
sequences of each (`rounds.csv` of pr396_rocm_s1234_g10_g11_200, run G10); the table has about
every third. Three of four steps have eight sequences of the longest length. Updates of the actor
[s]:

{vime}

By least squares a microbatch takes {measured_fixed:.2f} s and {measured_slope:.0f} us per token;
predicted are {predicted_fixed:.2f} s and {predicted_slope:.0f} us. What is missing hardly depends
on lengths, as if the host launched more than is modelled: {per_layer:.0f} ms per layer of forward,
recomputation and backward together. Its cause is not known. The first step, at 14.9 s, warms up.

## Stragglers: 43 steps of 32 data-parallel ranks

Trace SE of ByteDance-Seed/StragglerAnalysis (*Understanding Stragglers in Large Model Training
Using What-if Analysis*, OSDI 2025) is a job whose sequences differ in length. The analysis states
how long each step takes, and how long it would take if a single rank were slow. From the spread of
single ranks (`variation.compute`: the standard deviation of their logarithms, constant within a
step) follow the steps of all 32, relative to the mean with one:

{ranks}

| ranks that wait for each other | {counts} |
|---|{rule}|
| measured | {measured_growth} |
| predicted | {predicted_growth} |

The table of single ranks holds every fourth step, from the slowest to the fastest. No rank is
faster than without stragglers, so slowdowns are not lognormal, and the slowest are slower than
those of a lognormal of the same width.

## Not reproduced

NVIDIA-NeMo/RL issue 2438 publishes 30,000 steps (mean 2.81 s, P5 1.98 s, P95 3.48 s) of
Nemotron-3-Nano on 64 GPUs with tp 4, pp 2, ep 8 and sequences packed into 32,768 tokens. It states
neither lengths, nor the sequences of a step, nor the GPU.
"""


@dataclass(frozen=True)
class Compared:
    """Measured and predicted steps of a run: seconds, or ratios of them.

    Attributes:
        name: Of its files.
        measured, predicted: Steps.
    """

    name: str
    measured: tuple[float, ...]
    predicted: tuple[float, ...]

    @property
    def spreads(self) -> tuple[Spread, Spread]:
        """Mean and percentiles of both."""
        return Spread.of(self.measured), Spread.of(self.predicted)

    @property
    def error(self) -> float:
        """Predicted over measured mean, minus 1."""
        measured, predicted = self.spreads
        return predicted.mean / measured.mean - 1

    def table(self) -> str:
        """Mean and percentiles, as a table of Markdown."""
        measured, predicted = self.spreads
        (row,) = (
            r for r in read_table(FOLDER / "first_sight.csv", ["run"]) if r["run"] == self.name
        )
        first = Spread(*(float(row[key]) for key in ("mean", "p5", "p50", "p95")))
        lines = [
            "| | mean | P5 | P50 | P95 | P5 / mean | P95 / mean |",
            "|---|---|---|---|---|---|---|",
        ]
        for what, spread in (("measured", measured), ("first sight", first), ("now", predicted)):
            cells = [f"{value:.3g}" for value in astuple(spread)]
            cells += [f"{value / spread.mean:.3f}" for value in (spread.p5, spread.p95)]
            lines.append(f"| {what} | {' | '.join(cells)} |")
        errors = (
            f"{p / m - 1:+.1%}" for m, p in zip(astuple(measured), astuple(predicted), strict=True)
        )
        lines.append(f"| error | {' | '.join(errors)} | | |")
        return "\n".join(lines)


def _table(name: str) -> tuple[list[float], tuple[float, ...]]:
    """Tokens and measured seconds of the steps of a run."""
    rows = read_table(FOLDER / f"{name}.csv", ["tokens", "measured_s"])
    return [float(row["tokens"]) for row in rows], tuple(float(row["measured_s"]) for row in rows)


def verl() -> Compared:
    """Updates of the actor in the run of verl [s]."""
    job, (tokens, measured) = load_job(FOLDER / "verl-gsm8k.yaml"), _table("verl-gsm8k")
    of_all = job.dp * _VERL_UPDATES * _VERL_MICROBATCHES
    steps = [[[count / of_all] * _VERL_MICROBATCHES] * job.dp for count in tokens]
    predicted = (_VERL_UPDATES * step_s for step_s in steps_of_lengths(job, steps))
    return Compared("verl-gsm8k", measured, tuple(predicted))


def _verl_forward_s() -> float:
    """Forwards alone of the longest step of verl [s]."""
    job, tokens = load_job(FOLDER / "verl-gsm8k.yaml"), max(_table("verl-gsm8k")[0])
    of_rank = tokens / (job.dp * _VERL_UPDATES * _VERL_MICROBATCHES)
    update = run_step(job.replace({"batch.seq_len": round(of_rank)}), "replay")
    return _VERL_UPDATES * update.breakdown_s[Category.FORWARD]


def vime_microbatches() -> list[list[float]]:
    """Tokens of every microbatch in the run of vime: as many sequences as may share one."""
    found = []
    for tokens in _table("vime-dapo")[0]:
        sequence = tokens / _VIME_ANSWERS
        together = 2 if 2 * sequence <= _VIME_MOST_TOKENS else 1
        found.append([together * sequence] * (_VIME_ANSWERS // together))
    return found


def vime() -> Compared:
    """Updates of the actor in the run of vime [s]."""
    steps = steps_of_lengths(
        load_job(FOLDER / "vime-dapo.yaml"), [[step] for step in vime_microbatches()]
    )
    return Compared("vime-dapo", _table("vime-dapo")[1], tuple(steps))


@dataclass(frozen=True)
class Growth:
    """Steps of ranks that wait for each other, relative to the mean with one.

    Attributes:
        steps: Of all ranks.
        ranks: How many wait for each other.
        measured, predicted: Mean steps of that many ranks.
    """

    steps: Compared
    ranks: tuple[int, ...]
    measured: tuple[float, ...]
    predicted: tuple[float, ...]


def mean_largest(values: Sequence[float], count: int) -> float:
    """Mean of the largest of some values over all ways to choose that many of them."""
    ways = math.comb(len(values), count)
    return math.fsum(
        value * math.comb(below, count - 1) / ways for below, value in enumerate(sorted(values))
    )


def stragglers() -> Growth:
    """Steps of the ranks of trace SE."""
    table = read_table(FOLDER / "straggler-ranks.csv", ["slowdowns"])
    slowdowns = [[float(cell) for cell in row["slowdowns"].split()] for row in table]
    found = sample(load_job(FOLDER / "straggler-ranks.yaml"), _SAMPLES)
    ranks = tuple(scale.pipelines for scale in found.stragglers)
    means = [fmean(mean_largest(step, count) for step in slowdowns) for count in ranks]
    rows = read_table(FOLDER / "straggler-steps.csv", ["slowdown"])
    one_s = found.stragglers[0].mean_step_s
    steps = Compared(
        "straggler-ranks",
        tuple(float(row["slowdown"]) / means[0] for row in rows),
        tuple(float(step_s) / one_s for step_s in found.steps_s),
    )
    growth = tuple(scale.mean_step_s / one_s for scale in found.stragglers)
    return Growth(steps, ranks, tuple(mean / means[0] for mean in means), growth)


def _line(step_s: Sequence[float]) -> tuple[float, float]:
    """Seconds of a microbatch without tokens, and us per token, of all steps but the first."""
    steps = list(zip(vime_microbatches(), step_s, strict=True))[1:]
    fit = linear_regression([step[0] for step, _ in steps], [s / len(step) for step, s in steps])
    return fit.intercept, 1e6 * fit.slope


def _picture(run: Compared, growth: Growth) -> Figure:
    figure = style.new_figure(3.9)
    left = style.add_axes_in(figure, left=0.8, top=0.75, width=4.3, height=2.5)
    for name, color, steps in (
        ("measured", style.INK, run.measured), ("predicted", style.BLUE, run.predicted),
    ):  # fmt: skip
        mean = fmean(steps)
        left.plot(
            range(1, len(steps) + 1), [s / mean for s in steps], color=color, lw=1.2, label=name
        )
    left.set_xlabel("step of the run")
    left.set_ylabel("time relative to its mean")
    left.legend(frameon=False, fontsize=style.SMALL_PT)
    right = style.add_axes_in(figure, left=6.2, top=0.75, width=3.4, height=2.5)
    right.plot(growth.ranks, growth.measured, color=style.INK, marker="o", markersize=4)
    right.plot(growth.ranks, growth.predicted, color=style.BLUE, marker="o", markersize=4)
    right.set_xscale("log", base=2)
    right.set_xticks(growth.ranks, [str(count) for count in growth.ranks])
    right.set_xlabel("data-parallel ranks that wait for each other")
    right.set_ylabel("mean step relative to one rank")
    style.add_title(
        figure,
        "Steps of verl by their lengths, and growth of steps with ranks in StragglerAnalysis",
        "105 steps of 5,120 sequences on 8 H20; 32 ranks whose sequences differ in length",
        left=0.8,
    )
    return figure


def main(arguments: Sequence[str]) -> int:
    """Writes the page, and the picture beside it."""
    page = Path(arguments[0])
    verl_run, vime_run, growth = verl(), vime(), stragglers()
    measured, predicted = _line(vime_run.measured), _line(vime_run.predicted)
    layers = load_job(FOLDER / "vime-dapo.yaml").model.layers
    page.write_text(
        _PAGE.format(
            verl=verl_run.table(),
            verl_error=-100 * verl_run.error,
            forward_s=_verl_forward_s(),
            vime=vime_run.table(),
            vime_steps=len(vime_run.measured),
            measured_fixed=measured[0],
            measured_slope=measured[1],
            predicted_fixed=predicted[0],
            predicted_slope=predicted[1],
            per_layer=1e3 * (measured[0] - predicted[0]) / layers,
            ranks=growth.steps.table(),
            counts=" | ".join(str(count) for count in growth.ranks),
            rule="---|" * (len(growth.ranks) - 1) + "---",
            measured_growth=" | ".join(f"{ratio:.3f}" for ratio in growth.measured),
            predicted_growth=" | ".join(f"{ratio:.3f}" for ratio in growth.predicted),
        ),
        encoding="utf-8",
    )
    style.save(_picture(verl_run, growth), page.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
