"""How close do predicted runs of serving come to measured ones?

Every row is simulated request by request; throughput is that of the whole run, latencies are
medians where the source prints medians and means elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from simulator.errors import ClustersimError
from simulator.serving.cluster import serve
from simulator.serving.requests import Request
from simulator.validate.serving_pools import SkippedRowError
from simulator.validate.serving_rows import (
    ServingRow,
    deployment_of,
    read_serving_rows,
    workload_of,
)

Signed = float | None


@dataclass(frozen=True, slots=True)
class ServingResult:
    """One row, predicted or skipped; errors are predicted over measured, less one [%]."""

    id: str
    source: str
    grade: str
    engine: str
    model: str
    gpu: str
    measured_tokens_per_s: Signed = None
    predicted_tokens_per_s: Signed = None
    throughput_error_pct: Signed = None
    tpot_error_pct: Signed = None
    ttft_error_pct: Signed = None
    skipped: str = ""


@dataclass(frozen=True)
class ServingReport:
    """All rows."""

    results: Sequence[ServingResult]

    def to_dict(self) -> dict[str, Any]:
        """Rows, summaries by source and grade, and one over all."""
        sources = sorted({result.source for result in self.results})
        grades = sorted({result.grade for result in self.results})
        return {
            "rows": [asdict(result) for result in self.results],
            "by_source": {
                source: _summary([r for r in self.results if r.source == source])
                for source in sources
            },
            "by_grade": {
                grade: _summary([r for r in self.results if r.grade == grade]) for grade in grades
            },
            "summary": _summary(self.results),
        }


def validate_serving(
    path: Path,
    *,
    grades: Sequence[str] = (),
    executor: Executor | None = None,
    on_row: Callable[[ServingResult], None] = lambda _: None,
    leave_one_source_out: bool = False,
) -> ServingReport:
    """Predict every row of a table of measured runs.

    Args:
        path: A table with the columns of serving_open.csv, plain or gzipped.
        grades: Grades of the rows to predict; all if empty.
        executor: Who predicts; this process if None.
        on_row: Called with each result.
        leave_one_source_out: Whether a row is predicted without what runs of its own source told.

    Raises:
        InputError: The table cannot be read.
    """
    rows = [row for row in read_serving_rows(path) if not grades or row.grade in grades]
    results = []
    predict = predicted_elsewhere if leave_one_source_out else predicted
    mapped = executor.map(predict, rows, chunksize=8) if executor else map(predict, rows)
    for result in mapped:
        results.append(result)
        on_row(result)
    return ServingReport(results)


def predicted_elsewhere(row: ServingRow) -> ServingResult:
    """One row's result, without what runs of its own source told."""
    return predicted(row, without=row.source)


def predicted(row: ServingRow, *, without: str = "") -> ServingResult:
    """One row's result, without what runs of a source told."""
    about: dict[str, Any] = {
        "id": row.id,
        "source": row.source,
        "grade": row.grade,
        "engine": row.cells["engine"],
        "model": row.cells["model"],
        "gpu": row.cells["gpu"],
    }
    try:
        return ServingResult(**about, **_errors(row, without))
    except SkippedRowError as reason:
        return ServingResult(**about, skipped=str(reason))
    except ClustersimError as error:
        return ServingResult(**about, skipped=" ".join(str(error).split()))


def _errors(row: ServingRow, without: str) -> dict[str, Any]:
    deployment = deployment_of(row, without=without)
    workload = workload_of(row, deployment)
    # Replicas are alike: one of them with its share of the traffic is all of them.
    whole, deployment = deployment, deployment.unit
    replicas = whole.replicas // deployment.replicas
    workload = workload.model_copy(update={"requests": -(-workload.requests // replicas)})
    if workload.arrivals.rate is not None:
        rate = workload.arrivals.rate / replicas
        arrivals = workload.arrivals.model_copy(update={"rate": rate})
        workload = workload.model_copy(update={"arrivals": arrivals})
    if workload.arrivals.users:
        users = max(1, workload.arrivals.users // replicas)
        arrivals = workload.arrivals.model_copy(update={"users": users})
        workload = workload.model_copy(update={"arrivals": arrivals})
    requests = serve(deployment, workload, without=without).requests
    span_s = max(r.last_token_s for r in requests) - min(r.arrival_s for r in requests)
    answers = sum(r.output_tokens for r in requests)
    prompts = sum(r.prompt_tokens for r in requests)
    output_rate = replicas * answers / span_s
    total_rate = replicas * (answers + prompts) / span_s
    warm = sorted(requests, key=lambda r: r.arrival_s)[
        int(workload.warm_up_share * len(requests)) :
    ]
    middle = median if "median" in row.cells.get("notes", "") else mean
    measured, rate = row.output_tokens_per_s, output_rate
    if measured is None:
        measured, rate = row.total_tokens_per_s, total_rate
    if workload.warm_up_share or row.command().steady:
        # In a run that lasts, as much comes out as comes in.
        rate = _steady_rate(requests, replicas)
    return {
        "measured_tokens_per_s": measured,
        "predicted_tokens_per_s": rate,
        "throughput_error_pct": _error_pct(rate, measured),
        "tpot_error_pct": _error_pct(1e3 * _middle_tpot_s(warm, middle), row.tpot_ms),
        "ttft_error_pct": _error_pct(1e3 * middle([r.ttft_s for r in warm]), row.ttft_ms),
    }


def _steady_rate(requests: Sequence[Request], replicas: int) -> float:
    """Tokens of answers per second in the middle of a run: neither filling nor emptying."""
    starts = sorted(r.first_token_s for r in requests)
    begin, end = starts[len(starts) // 3], starts[-1]
    made = math.fsum(r.output_tokens * _share_between(r, begin, end) for r in requests)
    return replicas * made / max(1e-9, end - begin)


def _share_between(request: Request, begin_s: float, end_s: float) -> float:
    """Share of an answer that is made between two times."""
    first, last = request.first_token_s, request.last_token_s
    if last <= first:
        return float(begin_s <= first <= end_s)
    return max(0.0, min(last, end_s) - max(first, begin_s)) / (last - first)


def _middle_tpot_s(requests: Sequence[Request], middle: Callable[[list[float]], float]) -> float:
    times = [r.tpot_s for r in requests if r.output_tokens > 1]
    return middle(times) if times else 0.0


def _error_pct(predicted: float, measured: float | None) -> float | None:
    return None if not measured else 100.0 * (predicted / measured - 1.0)


def _summary(results: Sequence[ServingResult]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "n": len(results),
        "predicted": sum(1 for r in results if not r.skipped),
        "skipped": sum(1 for r in results if r.skipped),
    }
    for name in ("throughput", "tpot", "ttft"):
        values = [getattr(r, f"{name}_error_pct") for r in results]
        errors = [abs(value) for value in values if value is not None]
        found[f"{name}_n"] = len(errors)
        found[f"{name}_mean_pct"] = mean(errors) if errors else None
        found[f"{name}_median_pct"] = median(errors) if errors else None
    found["mape"] = found["throughput_mean_pct"]
    return found
