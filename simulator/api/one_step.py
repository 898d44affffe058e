"""The public functions: load a job, simulate it, look at the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.described import load
from simulator.described.job import Job
from simulator.errors import InputError
from simulator.program.build import check_layers
from simulator.results.simulation import Engine, PerturbationCost, perturbation_cost, run_step
from simulator.results.step import StepResult
from simulator.results.views.plain_data import json_text, result_to_dict
from simulator.units import format_seconds, percent

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import pandas as pd
    from matplotlib.figure import Figure

    from simulator.planning.distribution.sampled_steps import StepDistribution
    from simulator.results.views.difference import Difference
    from simulator.results.views.verdict import Advice

__all__ = ["Engine", "Job", "Result", "load_job", "sample", "simulate"]


def load_job(
    source: str | Path | Mapping[str, Any], changes: Mapping[str, Any] | None = None
) -> Job:
    """Load a job from a YAML file, a shipped name or a dictionary, and change fields of it.

    Args:
        source: The job file, a shipped name, or the content of a file as a dictionary. Relative
            paths inside a file are relative to its folder.
        changes: New values by dotted path, for example ``{"plan.tp": 4}``.

    Raises:
        InputError: The job is wrong; the error lists every fault.
    """
    job = load.load_job(source, changes)
    check_layers(job)
    return job


_NOTEBOOK_DPI = 80
"""Resolution of a picture in a notebook, which is as wide as its cell."""
_MOST_ROWS = 128
"""Rows of the pipeline picture: more than any pipeline has stages."""


@dataclass(frozen=True)
class Picture:
    """A picture that a notebook shows."""

    figure: Figure

    def _repr_png_(self) -> bytes:
        """What a notebook shows."""
        from io import BytesIO

        content = BytesIO()
        self.figure.savefig(content, format="png", dpi=_NOTEBOOK_DPI)
        return content.getvalue()

    def save(self, path: str | Path) -> Path:
        """Write it as PNG, SVG or PDF, by the suffix; returns the path."""
        return _saved(self.figure, path)


@dataclass(frozen=True)
class Result(StepResult):
    """Result of one simulated step, with its tables, pictures and pages.

    Pictures are written as PNG, SVG or PDF, by the suffix of the path; methods that write
    return the path. ``job`` is what was simulated, and ``engine`` how; the numbers are:
    """

    job: Job
    engine: Engine = "des"

    def __repr__(self) -> str:
        step, mfu = format_seconds(self.step_time_s), percent(self.mfu)
        return f"Result({self.title}: step {step}, MFU {mfu}, {self.fit})"

    def explain_misfit(self, *, search: bool = True) -> str:
        """What uses the memory and which change would fit; empty if the job fits.

        Candidates are simulated, which may take some seconds, or minutes where a step does; with
        ``search=False`` none is.
        """
        return self._misfit if search else self._explained(search=False)

    @cached_property
    def _misfit(self) -> str:
        return self._explained()

    def _explained(self, *, search: bool = True) -> str:
        from simulator.planning.changes.advice import explain_misfit

        return explain_misfit(self.job, self, search=search)

    @cached_property
    def perturbation_cost(self) -> PerturbationCost | None:
        """What slow GPUs, nodes and links cost, found by one more simulation; None without any."""
        return perturbation_cost(self.job, self.step_time_s, self.engine)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data; its schema is versioned."""
        return result_to_dict(self, self.job, self.perturbation_cost)

    def to_json(self, indent: int | None = 2) -> str:
        """The result as one JSON object, as ``clustersim run --json`` prints it."""
        return json_text(self.to_dict(), indent)

    def to_frame(self) -> pd.DataFrame:
        """The timeline as a pandas DataFrame, one row per operation and lane.

        Columns: rank_class (index of ranks that behave the same), stage, stream, kind, category,
        microbatch, chunk, first_layer, end_layer, start_s and end_s [s], flop, bytes [B]. A
        collective has one row for each class of ranks that takes part.
        """
        return self.timeline.to_frame()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from simulator.exporters.html.run_report import notebook_view

        return notebook_view(self)

    def picture(self, of: str = "pipeline") -> Picture:
        """A picture for a notebook: pipeline, memory, breakdown or links.

        Raises:
            InputError: There is no such picture.
        """
        from simulator.plots.comparison import build_breakdown_figure
        from simulator.plots.links import build_links_figure
        from simulator.plots.memory import build_memory_by_owner_figure
        from simulator.plots.pipeline import build_pipeline_figure

        builders: dict[str, Callable[[StepResult], Figure]] = {
            "pipeline": build_pipeline_figure,
            "memory": build_memory_by_owner_figure,
            "breakdown": build_breakdown_figure,
            "links": build_links_figure,
        }
        if of not in builders:
            raise InputError.single("of", f"must be one of {', '.join(builders)}", of)
        return Picture(builders[of](self))

    def plot_pipeline(self, path: str | Path) -> Path:
        """Draw the stages over time, with what runs in parallel on each of them.

        If there are too many classes of ranks for a page, only some are drawn.
        """
        from simulator.plots.pipeline import build_pipeline_figure

        return _saved(build_pipeline_figure(self, max_stages=_MOST_ROWS), path)

    def plot_memory(self, path: str | Path) -> Path:
        """Draw the memory of each stage at its peak by owner, with the capacity."""
        from simulator.plots.memory import build_memory_by_owner_figure

        return _saved(build_memory_by_owner_figure(self), path)

    def plot_memory_over_time(self, path: str | Path) -> Path:
        """Draw each stage's memory over the step."""
        from simulator.plots.memory import build_memory_over_time_figure

        return _saved(build_memory_over_time_figure(self), path)

    def plot_breakdown(self, path: str | Path) -> Path:
        """Draw where the step's time goes."""
        from simulator.plots.comparison import build_breakdown_figure

        return _saved(build_breakdown_figure(self), path)

    def plot_links(self, path: str | Path) -> Path:
        """Draw how busy the links of every stage are over the step."""
        from simulator.plots.links import build_links_figure

        return _saved(build_links_figure(self), path)

    def plot_roofline(self, path: str | Path) -> Path:
        """Draw the roofline of the device with each kernel of a layer."""
        from simulator.plots.roofline import build_roofline_figure
        from simulator.program.price.roofline import roofline

        return _saved(build_roofline_figure(roofline(self.job), self.title), path)

    def plot_placement(self, path: str | Path) -> Path:
        """Draw which ranks sit where, and which links their groups cross."""
        from simulator.plots.machines.placement import build_placement_figure
        from simulator.program.grid.placement import placement

        return _saved(build_placement_figure(placement(self.job)), path)

    def plot_all(self, folder: str | Path) -> list[Path]:
        """Draw every picture into a folder, which is created if needed.

        A cluster with several kinds of GPUs has no roofline and no placement.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return [
            self.plot_pipeline(folder / "pipeline.png"),
            self.plot_memory(folder / "memory.png"),
            self.plot_memory_over_time(folder / "memory_over_time.png"),
            self.plot_breakdown(folder / "breakdown.png"),
            self.plot_links(folder / "links.png"),
            *([] if self.job.cluster.pools else self._plots_of_one_kind(folder)),
        ]

    def _plots_of_one_kind(self, folder: Path) -> list[Path]:
        return [
            self.plot_roofline(folder / "roofline.png"),
            self.plot_placement(folder / "placement.png"),
        ]

    def write_trace(
        self,
        path: str | Path,
        *,
        ranks: Sequence[int] | None = None,
        max_events: int = 2_000_000,
        kernels: bool = False,
    ) -> Path:
        """Write a Chrome/Perfetto trace, compressed if the path ends in .gz.

        Args:
            path: The file.
            ranks: Ranks whose classes the trace shows; by default all.
            max_events: Largest number of events; beyond it, whole classes are left out, evenly
                spread.
            kernels: Whether to also show the kernels of compute operations.
        """
        from simulator.exporters.chrome_trace import write_trace
        from simulator.results.views.rank_classes import classes_of

        found = self.timeline.program.classes
        classes = None if ranks is None else classes_of(ranks, self.job, found)
        path = Path(path)
        write_trace(self, path, max_events=max_events, kernels=kernels, classes=classes)
        return path

    def difference_from(self, first: StepResult) -> Difference:
        """Why this step is slower or faster than another, by causes that sum to the difference."""
        from simulator.results.views.difference import difference

        return difference(first, self)

    def advice(self, *, on_trial: Callable[[], None] | None = None) -> Advice:
        """What limits the step and which single change would help; candidates are simulated.

        Args:
            on_trial: Called after each simulated candidate, for progress.
        """
        from simulator.planning.changes.advice import advice

        return advice(self.job, self, misfit=self.explain_misfit(), on_trial=on_trial)

    def write_html(self, path: str | Path, *, on_trial: Callable[[], None] | None = None) -> Path:
        """Write a self-contained HTML page; it simulates about twenty what-ifs.

        Args:
            path: The file.
            on_trial: Called after each simulated candidate, for progress.
        """
        from simulator.exporters.html.run_report import write_run_report

        write_run_report(self, self.job, self.advice(on_trial=on_trial), path)
        return Path(path)


def simulate(job: Job, *, engine: Engine = "des", unfolded: bool = False) -> Result:
    """Simulate one training step of a job on the CPU of this machine.

    Ranks that behave the same are simulated once, so the run time depends on microbatches times
    pipeline stages and hardly on the number of GPUs. A job that does not fit into memory also
    has a result: see its ``fits``.

    Args:
        job: The job to simulate.
        engine: ``des`` simulates shared links and multiprocessors; ``replay`` is the
            faster lower bound without contention.
        unfolded: Whether to simulate every rank instead of one of each class; the answer is the
            same and takes longer.

    Returns:
        Numbers of one step in the steady state, without data loading, logging, evaluation,
        checkpoints and failures (the command ``clustersim capacity`` adds the last two).

    Raises:
        InputError: The plan asks for something that cannot run.
    """
    numbers = run_step(job, engine, unfolded=unfolded)
    return Result(
        **{f.name: getattr(numbers, f.name) for f in fields(numbers)}, job=job, engine=engine
    )


def sample(
    job: Job,
    samples: int = 1000,
    *,
    seed: int | None = None,
    executor: Executor | None = None,
) -> StepDistribution:
    """Sample steps of a job whose ``variation`` or ``batch.lengths`` say what differs.

    Args:
        job: What to sample.
        samples: Number of steps to sample.
        seed: Random seed; by default the job's.
        executor: Any ``concurrent.futures`` executor samples; the steps are the same.

    Returns:
        Mean and percentiles of the step time, the effect of stragglers by number of GPUs, the
        probability of running out of memory, and every sampled step.

    Raises:
        InputError: Nothing in the job varies, or not in a way that is modelled.
    """
    from simulator.planning.distribution.sampled_steps import step_distribution

    return step_distribution(job, samples, seed, executor)


def _saved(figure: Figure, path: str | Path) -> Path:
    from simulator.plots.style import save

    save(figure, path)
    return Path(path)
