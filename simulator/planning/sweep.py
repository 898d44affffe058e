"""How does a job fare over a grid of changes?

Every combination is a what-if of its own; one that cannot run becomes a row that says
why. The work goes to any ``concurrent.futures`` executor, and the rows do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from simulator.errors import InputError
from simulator.results.run import Engine, run_step
from simulator.spec.job import Job

if TYPE_CHECKING:
    import pandas as pd


def sweep(
    job: Job,
    grid: Mapping[str, Sequence[Any]],
    executor: Executor | None = None,
    *,
    engine: Engine = "des",
) -> pd.DataFrame:
    """One row per combination of the grid's values, in the grid's order.

    Args:
        job: What is varied.
        grid: Values by dotted path, for example ``{"plan.tp": [1, 2, 4, 8]}``.
        executor: Where the steps are simulated; in this process if None.
        engine: How steps are simulated.

    Returns:
        A table with the grid's paths and step_time_s, tokens_per_s_per_gpu, mfu,
        bubble_fraction, peak_allocated_bytes, peak_device_bytes, fits, and error (empty
        unless the combination cannot run).

    Raises:
        InputError: The grid is empty, or a path has no values.
    """
    import pandas as pd

    empty = [path for path, values in grid.items() if not values]
    if not grid or empty:
        rule = "needs at least one value to try"
        raise InputError.single(empty[0] if empty else "grid", rule)
    variants = list(_combinations(grid))
    row_of = partial(_row, job, engine)
    rows = executor.map(row_of, variants) if executor else map(row_of, variants)
    return pd.DataFrame(list(rows))


def _combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _row(job: Job, engine: Engine, changes: Mapping[str, Any]) -> dict[str, Any]:
    try:
        changed = job.replace(changes)
        step = run_step(changed, engine)
    except InputError as error:
        return {**changes, "error": "; ".join(f"{f.path}: {f.rule}" for f in error.faults)}
    peak_device_bytes = max(memory.peak_device_bytes for memory in step.memory)
    return {
        **changes,
        "step_time_s": step.step_time_s,
        "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
        "mfu": step.mfu,
        "bubble_fraction": step.bubble_fraction,
        "peak_allocated_bytes": max(memory.peak_allocated_bytes for memory in step.memory),
        "peak_device_bytes": peak_device_bytes,
        "fits": peak_device_bytes <= step.capacity_bytes,
        "error": "",
    }
