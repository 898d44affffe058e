"""What is one request, and how does a workload become requests?"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field

from simulator import cells
from simulator.cells import read_table
from simulator.described.documents import validated
from simulator.errors import InputError
from simulator.files import read_text, strict_json
from simulator.serving.workload import Lengths, Workload


@dataclass(slots=True, eq=False)
class Request:
    """One prompt and its answer.

    Attributes:
        number: Its place in the workload, from 0.
        arrival_s: When it reaches the router [s].
        prompt_tokens: Tokens of the prompt, >= 1.
        output_tokens: Tokens of the answer, >= 1.
        prefix: Parts of the prompt that other requests may share, first to last: what names the
            part, and where it ends [token].
        computed: Tokens whose keys and values are in the cache, or will be after this step.
        decoded_tokens: Places that its answer took since it last joined, steps times their mean.
        named_tokens: Tokens that its full blocks may be known by.
        generated: Tokens of the answer so far; of a running decode, as it joined.
        blocks: Blocks of the cache that it holds, by place.
        order: When it was last admitted, counted over all admissions of its replica.
        preemptions: How often it lost its blocks.
        adapter: Number of the adapter that it wants; below 0 is none.
        cached_tokens: Prompt tokens that it found in the cache when it was first admitted.
        joined_step: Decode step at which it began to make tokens.
        is_decoding: Whether it makes tokens now.
        is_finishing: Whether its last token is under way.
        scheduled_s: When it was first part of a step [s].
        first_token_s: When its first token came [s].
        last_token_s: When its last token came [s].
    """

    number: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[tuple[Hashable, int], ...] = ()
    computed: int = 0
    decoded_tokens: float = 0
    named_tokens: int = 0
    generated: int = 0
    blocks: list[int] = field(default_factory=list)
    order: int = -1
    preemptions: int = 0
    adapter: int = -1
    cached_tokens: int = -1
    joined_step: int = -1
    is_decoding: bool = False
    is_finishing: bool = False
    scheduled_s: float = -1.0
    first_token_s: float = -1.0
    last_token_s: float = -1.0

    @property
    def known_tokens(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return self.prompt_tokens + self.generated

    @property
    def ttft_s(self) -> float:
        """Time to the first token [s]."""
        return self.first_token_s - self.arrival_s

    @property
    def end_to_end_s(self) -> float:
        """Time to the last token [s]."""
        return self.last_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Mean time of a token after the first [s]; 0 where there is only one."""
        more = self.output_tokens - 1
        return (self.last_token_s - self.first_token_s) / more if more else 0.0


_MOONCAKE_BLOCK_TOKENS = 512
"""Tokens that one hash of a Mooncake trace stands for (its README)."""
_MAX_TRACE_BYTES = 256 * 1024**2
_LATEST = 1e15
"""Of seconds and milliseconds alike."""
_Tokens = Annotated[int, Field(ge=0, le=2**30)]
_LINE = ("timestamp", "input_length", "output_length")
_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")


def requests_of(workload: Workload) -> list[Request]:
    """All requests of a workload in order of arrival; those of a closed loop arrive at 0.

    With a rate, no request of a closed loop comes before its own time, whoever is free.

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
    adapters = np.full(count, -1)
    if workload.adapters.share:
        wanted = draw.integers(workload.adapters.distinct, size=count)
        adapters = np.where(draw.random(count) < workload.adapters.share, wanted, -1)
    requests = []
    for number in range(count):
        prompt = int(prompts[number])
        end = min(shared.tokens, prompt)
        adapter = int(adapters[number])
        # Keys and values of one adapter are of no use to another.
        prefix = ((("prefix", int(which[number]), adapter), end),) if end else ()
        arrival_s, answer = float(arrivals[number]), int(answers[number])
        requests.append(Request(number, arrival_s, prompt, answer, prefix, adapter=adapter))
    return requests


def _arrival_times(
    workload: Workload, count: int, draw: np.random.Generator
) -> npt.NDArray[np.float64]:
    arrivals = workload.arrivals
    if arrivals.rate is not None and arrivals.kind != "all-at-once":
        shape = 1.0 / arrivals.burstiness if arrivals.kind == "gamma" else 1.0
        arrived: npt.NDArray[np.float64] = np.cumsum(draw.gamma(shape, size=count))
        # Source: vLLM 0.23, benchmarks/serve.py, get_request: the last request comes when it is due
        # at the mean rate, so chance does not make a run of few requests faster or slower.
        return arrived * (count / arrivals.rate / float(arrived[-1]))
    return np.zeros(count)


def _lengths(lengths: Lengths, count: int, draw: np.random.Generator) -> npt.NDArray[np.int64]:
    drawn, longest = _drawn_lengths(lengths, count, draw), lengths.longest or np.inf
    return np.clip(drawn, 1, longest).astype(np.int64)


def _drawn_lengths(
    lengths: Lengths, count: int, draw: np.random.Generator
) -> npt.NDArray[np.float64] | npt.NDArray[np.int64]:
    if lengths.variation:
        spread = np.log1p(lengths.variation**2)
        middle = np.log(lengths.mean) - spread / 2.0
        return np.round(draw.lognormal(middle, np.sqrt(spread), size=count))
    if lengths.least_share < 1:
        least = max(1, round(lengths.least_share * lengths.mean))
        return draw.integers(least, lengths.mean, size=count, endpoint=True)
    return np.full(count, lengths.mean, dtype=np.int64)


def trace_at_rate(workload: Workload, rate: float, least: int) -> list[Request]:
    """A workload's trace at another mean rate [1/s], repeated until ``least`` requests came.

    Gaps keep their proportions. Prompts of one round have no blocks in common with another's.

    Raises:
        InputError: All requests of the trace come at once, or it cannot be read.
    """
    played = _traced(workload)
    begin_s = played[0].arrival_s
    span_s = played[-1].arrival_s - begin_s
    if not span_s:
        hint = "give one whose arrivals differ, or none"
        raise InputError.single("workload.trace", "has no rate", workload.trace, hint)
    slower = (len(played) - 1) / span_s / rate
    return [
        replace(
            request,
            number=cycle * len(played) + request.number,
            arrival_s=cycle * len(played) / rate + (request.arrival_s - begin_s) * slower,
            prefix=tuple(((cycle, name), end) for name, end in request.prefix),
        )
        for cycle in range(-(-least // len(played)))
        for request in played
    ]


def _traced(workload: Workload) -> list[Request]:
    path = Path(workload.trace)
    rows = _mooncake(path) if path.suffix == ".jsonl" else _columns(path)
    most = workload.requests if "requests" in workload.model_fields_set else None
    requests = sorted(rows, key=lambda request: request.arrival_s)[:most]
    for number, request in enumerate(requests):
        request.number = number
        request.arrival_s /= workload.speed
    return requests


class _Line(BaseModel):
    """A request of a trace, arrivals in the trace's unit; what else a line says is left out."""

    timestamp: Annotated[float, Field(ge=0, le=_LATEST)]
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[int, ...] = ()


def _columns(path: Path) -> Iterator[Request]:
    for number, row in enumerate(read_table(path, _COLUMNS), start=1):
        said = (cells.number(row, column) for column in _COLUMNS)
        entry = dict(zip(_LINE, said, strict=True))
        line = validated(_Line, entry, f"row {number}", file=str(path))
        yield _request(line, line.timestamp)


def _mooncake(path: Path) -> Iterator[Request]:
    text = read_text(path, "give a .csv or .jsonl trace", max_bytes=_MAX_TRACE_BYTES)
    for number, stated in enumerate(text.splitlines(), start=1):
        place = f"line {number}"
        try:
            entry = strict_json(stated)
        except (ValueError, RecursionError) as error:
            raise InputError.single(place, f"is not JSON ({error})", file=str(path)) from error
        line = validated(_Line, entry, place, file=str(path))
        yield _request(line, line.timestamp / 1e3)


def _request(line: _Line, arrival_s: float) -> Request:
    prompt, answer = max(1, line.input_length), max(1, line.output_length)
    ends = range(_MOONCAKE_BLOCK_TOKENS, prompt + 1, _MOONCAKE_BLOCK_TOKENS)
    prefix = tuple(zip(line.hash_ids, ends, strict=False))
    return Request(0, arrival_s, prompt, answer, prefix)
