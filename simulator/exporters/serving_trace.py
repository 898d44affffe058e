"""How are the steps of a serving run looked at in Perfetto?

Trace Event JSON, as of a training step: a process per replica, an event per engine step with what
was in it, counters of requests and of the cache; beside them the life of each request: it waits,
its prompt is computed, its answer is made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simulator.exporters.chrome_trace import open_trace
from simulator.serving.cluster import Served

_MOST_REQUESTS = 5_000
"""Requests whose life is shown."""
_STEPS = 1


def write_serving_trace(served: Served, path: Path) -> None:
    """Write recorded steps and requests as ``.json`` or ``.json.gz``.

    Raises:
        InputError: The suffix is neither.
    """
    with open_trace(path) as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        for number, event in enumerate(_serving_events(served)):
            file.write(",\n" if number else "\n")
            file.write(json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def _serving_events(served: Served) -> Iterator[dict[str, Any]]:
    """Events of all replicas, then of the requests."""
    for index, steps in enumerate(served.steps, start=1):
        yield _named("process_name", index, f"replica {index - 1}")
        yield _named("thread_name", index, "engine steps")
        for step in steps:
            start, span = _microseconds(step.start_s), _microseconds(step.end_s - step.start_s)
            about = {
                "answers": step.decodes,
                "prompt tokens": step.prompt_tokens,
                "preempted": step.preempted,
                "steps": step.merged,
            }
            name = "prompts" if step.prompt_tokens else "answers"
            place = {"pid": index, "tid": _STEPS}
            yield {"ph": "X", "name": name, **place, "ts": start, "dur": span, "args": about}
            counted = {
                "requests": {"running": step.running, "waiting": step.waiting},
                "cache": {"%": round(100 * step.used_share, 2)},
            }
            for counter, values in counted.items():
                yield {"ph": "C", "name": counter, "pid": index, "ts": start, "args": values}
    requests = len(served.steps) + 1
    yield _named("process_name", requests, "requests")
    for request in sorted(served.requests, key=lambda r: r.arrival_s)[:_MOST_REQUESTS]:
        about = {"prompt": request.prompt_tokens, "answer": request.output_tokens}
        moments = (request.arrival_s, request.scheduled_s, request.first_token_s)
        ends = (*moments[1:], request.last_token_s)
        for name, begin_s, end_s in zip(("wait", "prompt", "answer"), moments, ends, strict=True):
            event = {"cat": "request", "id": request.number, "pid": requests, "tid": 1}
            yield {"ph": "b", "name": name, **event, "ts": _microseconds(begin_s), "args": about}
            yield {"ph": "e", "name": name, **event, "ts": _microseconds(end_s)}


def _named(kind: str, process: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": _STEPS, "args": {"name": name}}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e9) / 1e3
