"""Which numbers of the golden jobs and of the published runs are kept, and what are they now?

``make golden`` writes them anew. They are no oracle: they say that a number moved, and the
difference of the files is what a reviewer reads.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import simulator as sim
from simulator.validate.published.published_runs import predicted, read_rows

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"
PREDICTIONS = FOLDER / "published.csv"
PUBLISHED_RUNS = FOLDER.parents[1] / "reports" / "data" / "runs_open.csv"

_NUMBERS = (
    "step_time_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "hfu", "bubble_fraction",
)  # fmt: skip
_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes", "peak_time_s")
PREDICTED = ("predicted_step_s", "predicted_mem_gib", "fits", "skipped")
"""What is kept of each published run."""


@cache
def _document() -> Mapping[str, Any]:
    return yaml.safe_load((FOLDER / "jobs.yaml").read_text(encoding="utf-8"))


def job_names() -> list[str]:
    """Every golden job."""
    return list(_document()["jobs"])


def golden_job(name: str) -> sim.Job:
    """The golden job of that name."""
    return sim.load_job(_document()["base"], _document()["jobs"][name])


def result_fields(result: sim.Result) -> dict[str, Any]:
    """What is kept of a result, by the name of the field; sums do not depend on their order."""
    plain = result.to_dict()
    fields: dict[str, Any] = {name: plain[name] for name in _NUMBERS}
    fields["fits"] = plain["fits"]
    fields |= _flat("breakdown_s", plain["breakdown_s"])
    fields |= _flat("exposed_comm_s", plain["exposed_comm_s"])
    classes = zip(plain["memory"], plain["rank_classes"], strict=True)
    for number, (memory, ranks) in enumerate(classes):
        kept = {name: memory[name] for name in _PEAKS} | {"ranks": ranks["ranks"]}
        fields |= _flat(f"class {number}", kept) | _flat(f"class {number}", memory["by_owner"])
    fields |= _flat("host_memory", plain.get("host_memory", {}).get("by_owner", {}))
    fields |= _flat("asynchrony", plain["asynchrony"] or {})
    return fields | _operation_sums(result)


def _operation_sums(result: sim.Result) -> dict[str, Any]:
    """Operations of each kind on all classes of ranks: how many, their FLOP, bytes and seconds."""
    fields: dict[str, Any] = {}
    frame = result.to_frame()
    frame["busy_s"] = frame["end_s"] - frame["start_s"]
    for kind, rows in frame.groupby("kind"):
        sums = {name: math.fsum(rows[name]) for name in ("flop", "bytes", "busy_s")}
        fields |= _flat(f"operations.{kind}", {"count": len(rows), **sums})
    return fields


def _flat(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}.{key}": value for key, value in values.items()}


def results_of(name: str) -> dict[str, Any]:
    """What is kept of a golden job, as it is now."""
    return result_fields(sim.simulate(golden_job(name)))


def prediction(row: Mapping[str, str]) -> dict[str, str]:
    """What is kept of a published run, as it is now, each cell with all its digits."""
    found = predicted(row)
    return {name: str(getattr(found, name)) for name in PREDICTED}


def kept_results() -> dict[str, dict[str, Any]]:
    """What was kept of every golden job."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def kept_predictions() -> dict[str, dict[str, str]]:
    """What was kept of every published run, by its id."""
    with PREDICTIONS.open(encoding="utf-8", newline="") as file:
        return {row.pop("id"): row for row in csv.DictReader(file)}


def moved(kept: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Every field that is not what it was, with both values."""
    return [
        f"{field}: {kept.get(field, 'not there')} -> {now.get(field, 'not there')}"
        for field in sorted({*kept, *now})
        if not _is_same(kept.get(field), now.get(field))
    ]


def _is_same(kept: Any, now: Any) -> bool:
    try:
        return float(kept) == float(now)
    except (TypeError, ValueError):
        return kept == now


def write(executor: Executor) -> None:
    """Keep the results of now instead of those that were kept."""
    names, rows = sorted(job_names()), read_rows(PUBLISHED_RUNS)
    results = dict(zip(names, executor.map(results_of, names), strict=True))
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    with PREDICTIONS.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ("id", *PREDICTED), lineterminator="\n")
        table.writeheader()
        for row, found in zip(rows, executor.map(prediction, rows, chunksize=8), strict=True):
            table.writerow({"id": row["id"], **found})


if __name__ == "__main__":
    with ProcessPoolExecutor() as pool:
        write(pool)
