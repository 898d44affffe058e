"""How does a workload become requests?"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simulator.errors import InputError
from simulator.files import read_text, strict_json
from simulator.serving.described import Lengths, Workload
from simulator.serving.request import Request

_MOONCAKE_BLOCK_TOKENS = 512
"""Tokens that one hash of a Mooncake trace stands for (its README)."""
_MAX_TRACE_BYTES = 256 * 1024**2


def requests_of(workload: Workload) -> list[Request]:
    """All requests of a workload in order of arrival; those of a closed loop arrive at 0.

    The same seed gives the same requests.

    Raises:
        InputError: The trace cannot be read.
    """
    if workload.trace:
        return _traced(workload)
    draw = np.random.default_rng(workload.seed)
    count = workload.requests
    prompts = _lengths(workload.prompt, count, draw)
    answers = _lengths(workload.answer, count, draw)
    arrivals = _arrival_times(workload, count, draw)
    shared = workload.shared_prefix
    which = draw.integers(shared.distinct, size=count)
    requests = []
    for number in range(count):
        prompt = int(prompts[number])
        end = min(shared.tokens, prompt)
        prefix = (((("prefix", int(which[number]))), end),) if end else ()
        requests.append(
            Request(number, float(arrivals[number]), prompt, int(answers[number]), prefix)
        )
    return requests


def _arrival_times(
    workload: Workload, count: int, draw: np.random.Generator
) -> npt.NDArray[np.float64]:
    arrivals = workload.arrivals
    if arrivals.kind in ("poisson", "gamma"):
        assert arrivals.rate is not None
        shape = 1.0 if arrivals.kind == "poisson" else 1.0 / arrivals.burstiness
        gaps = draw.gamma(shape, 1.0 / (shape * arrivals.rate), size=count)
        return np.cumsum(gaps)
    return np.zeros(count)


def _lengths(lengths: Lengths, count: int, draw: np.random.Generator) -> npt.NDArray[np.int64]:
    if lengths.variation:
        spread = np.log1p(lengths.variation**2)
        middle = np.log(lengths.mean) - spread / 2.0
        drawn = draw.lognormal(middle, np.sqrt(spread), size=count)
        longest = lengths.longest or np.inf
        return np.clip(np.round(drawn), 1, longest).astype(np.int64)
    if lengths.least_share < 1:
        least = max(1, round(lengths.least_share * lengths.mean))
        return draw.integers(least, lengths.mean, size=count, endpoint=True)
    return np.full(count, lengths.mean, dtype=np.int64)


def _traced(workload: Workload) -> list[Request]:
    path = Path(workload.trace)
    text = read_text(path, "give a .csv or .jsonl trace", max_bytes=_MAX_TRACE_BYTES)
    rows = _mooncake(text) if path.suffix == ".jsonl" else _columns(text, str(path))
    requests = sorted(rows, key=lambda request: request.arrival_s)[: workload.requests]
    for number, request in enumerate(requests):
        request.number = number
        request.arrival_s /= workload.speed
    return requests


def _columns(text: str, file: str) -> list[Request]:
    reader = csv.DictReader(text.splitlines())
    wanted = ("arrival_s", "input_tokens", "output_tokens")
    if not set(wanted) <= set(reader.fieldnames or ()):
        raise InputError.single("workload.trace", f"needs columns {', '.join(wanted)}", file=file)
    return [
        Request(
            0,
            float(row["arrival_s"]),
            max(1, int(float(row["input_tokens"]))),
            max(1, int(float(row["output_tokens"]))),
        )
        for row in reader
    ]


def _mooncake(text: str) -> list[Request]:
    requests = []
    for line in text.splitlines():
        entry = strict_json(line)
        prompt = max(1, int(entry["input_length"]))
        ends = range(_MOONCAKE_BLOCK_TOKENS, prompt + 1, _MOONCAKE_BLOCK_TOKENS)
        prefix = tuple(zip(entry.get("hash_ids", ()), ends, strict=False))
        answer = max(1, int(entry["output_length"]))
        requests.append(Request(0, entry["timestamp"] / 1e3, prompt, answer, prefix))
    return requests
