"""Which deployment and which traffic does a row of measured serving describe?"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.cells import rows_of
from simulator.described.load import load_model, load_profile
from simulator.errors import ClustersimError
from simulator.files import read_unpacked_text
from simulator.serving.defaults import version_of_year
from simulator.serving.described import Deployment, Speculation
from simulator.serving.requests import requests_of
from simulator.serving.workload import Arrivals, Lengths, SharedPrefix, Workload
from simulator.validate.serving_commands import (
    Command,
    ServingFacts,
    facts_file_of,
    limits_of_users,
    number_in,
    tuned_limits,
)
from simulator.validate.serving_pools import SkippedRowError, is_apart, pools_of

_MOST_BYTES = 2**28
"""Unpacked; a hundred thousand rows are a tenth of it."""

_MODELS = {
    "deepseek-r1": "deepseek-v3",
    "deepseek-r1-0528": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "llama3-405b": "llama3.1-405b",
    "qwen2-7b": "qwen2.5-7b",
    "qwen2-72b": "qwen2.5-72b",
}
"""Shipped models that are the same network under another name."""
_ENGINES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt-llm": "tensorrt-llm",
    "tensorrt-llm (triton)": "tensorrt-llm",
    "atom": "atom",
    "dynamo-sglang": "sglang",
    "dynamo-trt": "tensorrt-llm",
    "mori-sglang": "sglang",
    "deepspeed-mii": "fastgen",
    "lmdeploy": "lmdeploy",
    "tgi": "tgi",
}
"""Engine whose rules a row's follows; some are named after what moves keys and values between their
pools."""
_WEIGHTS = {
    "fp16": "fp16",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp4": "nvfp4",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "int4": "int4",
    "uint4": "int4",
    "q4_k_m": "int4",
}
_GPUS = {"rtx-pro-6000-server": "rtx-pro-6000-blackwell-96gb"}
"""Profiles of GPUs that tables name otherwise."""
_LEAST_SPAN_S, _SPAN_PER_TOKEN_S = 400.0, 0.3
"""Simulated time of a Poisson run: some times as long as its answers take. Near saturation the
batch grows for as long as several answers take; MLPerf's runs last 600 s at least."""
_WARM_UP_SHARE = 0.5
_MOST_REQUESTS = 12_000
_LARGEST = 2.0**60
_CONTRADICTION = 3.0
"""Users that a closed loop's own rate and latencies imply, over those that it states, or the
reverse, from which on one of its numbers is wrong (Little's law holds for all of them)."""
_EVEN = 1e-6
"""Burstiness of a constant rate: gaps that differ by a thousandth."""
_DRAFTS = 3
_ACCEPTANCE = (0.85, 0.7, 0.6)
"""Of multi-token prediction, where nothing says it: DeepSeek-V3 (arXiv 2412.19437, section 5.4.3)
reports 85 to 90 % for the second token; the further places are assumed."""
_OFFLINE_REQUESTS = 6000


@dataclass(frozen=True)
class ServingRow:
    """One measured run.

    Attributes:
        id: Name of the row.
        source: Who measured.
        grade: How much the source states.
        scenario: What was measured, in the table's words.
        output_tokens_per_s: Tokens of answers per second, if measured; likewise:
        total_tokens_per_s: Tokens of prompts and answers.
        ttft_ms: Time to the first token.
        tpot_ms: Time of a further token.
        cells: The row itself.
        facts: What is known of its table.
    """

    id: str
    source: str
    grade: str
    scenario: str
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    cells: Mapping[str, str]
    facts: ServingFacts

    def command(self, without: str = "") -> Command:
        """What its source's commands say; without a source, that which its errors did not tell."""
        return self.facts.command(self.cells, residuals=not without)

    def number(self, name: str) -> float | None:
        """A cell as a number; None where it is empty.

        Raises:
            SkippedRowError: No run has so many of anything.
        """
        value = number_in(self.cells.get(name, ""))
        if value is not None and abs(value) > _LARGEST:
            raise SkippedRowError(f"{name} is larger than that of any run")
        return value

    def whole(self, name: str, default: int = 1) -> int:
        """A cell as a whole number."""
        value = self.number(name)
        return default if value is None else int(value)


_COLUMNS = ("id", "engine", "model", "gpu", "gpus", "scenario", "isl", "osl")


def read_serving_rows(path: Path) -> list[ServingRow]:
    """The rows of a table with the columns of serving_open.csv, plain or gzipped.

    What the file of facts beside the table says goes with them.

    Raises:
        InputError: The file cannot be read or lacks a column.
    """
    text = read_unpacked_text(path, max_bytes=_MOST_BYTES)
    rows = rows_of(text, _COLUMNS, str(path))
    facts = ServingFacts(facts_file_of(path))
    return [_row(cells, facts) for cells in rows]


def _row(cells: Mapping[str, str], facts: ServingFacts) -> ServingRow:
    return ServingRow(
        id=cells["id"],
        source=cells.get("source", ""),
        grade=cells.get("grade", ""),
        scenario=cells["scenario"],
        output_tokens_per_s=number_in(cells.get("output_tokens_per_s", "")),
        total_tokens_per_s=number_in(cells.get("total_tokens_per_s", "")),
        ttft_ms=number_in(cells.get("ttft_ms", "")),
        tpot_ms=number_in(cells.get("tpot_ms", "")),
        cells=cells,
        facts=facts,
    )


def deployment_of(row: ServingRow, *, without: str = "") -> Deployment:
    """The deployment of a row.

    Args:
        row: The row.
        without: Source of measured runs that told nothing.

    Raises:
        SkippedRowError: Something of it is not known here, or not stated.
    """
    cells, notes = row.cells, row.cells.get("notes", "")
    command = row.command(without)
    if command.skip:
        raise SkippedRowError(command.skip)
    engine = _known(_ENGINES, cells["engine"].lower(), "no rules of the engine")
    weights = _known(_WEIGHTS, cells.get("weight_dtype", "").lower(), "no model of weights in")
    if row.number("tp") is None:
        raise SkippedRowError("the row does not state tp")
    fields: dict[str, Any] = {
        "model": _loaded(load_model, _MODELS.get(cells["model"], cells["model"]), "model"),
        "profile": _loaded(load_profile, _GPUS.get(cells["gpu"], cells["gpu"]), "profile"),
        "engine": engine,
        "scheduler": "static" if "static" in row.scenario else "",
        "version": _version(cells, engine),
        "weights": _weights(weights, cells),
        "cache": _cache(cells, engine),
        "has_front_end": "closed loop" in row.scenario or "HTTP" in row.scenario,
        **(pools_of(notes) if is_apart(row.scenario) else _degrees(row)),
    }
    fields |= _commanded(row, fields, command) | _noted(notes)
    try:
        return Deployment(**fields)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise SkippedRowError(f"no such deployment: {reason}") from error


def _commanded(row: ServingRow, fields: Mapping[str, Any], command: Command) -> dict[str, Any]:
    """Settings that the source's commands name or compute."""
    found = dict(command.set)
    drafts = (command.drafts or _DRAFTS) if "speculative" in row.scenario else 0
    if drafts:
        acceptance = command.acceptance or _ACCEPTANCE
        found["speculation"] = Speculation(draft_tokens=drafts, acceptance=acceptance)
    if command.sized_by == "trtllm-bench":
        cache = found.get("cache", fields["cache"])
        found |= tuned_limits(
            fields["model"],
            fields["profile"],
            weights=row.cells.get("weight_dtype", "").lower(),
            cache_bytes=1.0 if cache == "fp8" else 2.0,
            ranks=fields["tp"] * fields["pp"] * fields["attention_dp"],
            pp=fields["pp"],
            tp=fields["tp"],
            prompt=row.number("isl") or 1.0,
            answer=row.number("osl") or 1.0,
        )
    elif command.sized_by == "users":
        found |= limits_of_users(row.cells, drafts)
    return found


def _weights(weights: str, cells: Mapping[str, str]) -> str:
    if cells["model"].startswith("gpt-oss"):
        return "mxfp4"
    if weights == "nvfp4" and cells["gpu"].startswith("mi"):
        return "mxfp4"
    return weights


def _cache(cells: Mapping[str, str], engine: str) -> str:
    """Format of the cache; unstated, TensorRT-LLM's checkpoints of 8 and 4 bits have fp8."""
    stated = (cells.get("kv_dtype") or "").lower()
    if stated.startswith("fp8"):
        return "fp8"
    is_small = cells.get("weight_dtype", "").lower() in ("fp8", "fp4")
    return "fp8" if not stated and is_small and engine == "tensorrt-llm" else "bf16"


def _degrees(row: ServingRow) -> dict[str, int]:
    """Degrees of a row; data parallelism beside experts shares them, else it is replicas."""
    gpus, tp, pp = row.whole("gpus"), row.whole("tp"), row.whole("pp")
    ep, dp = row.whole("ep"), row.whole("dp")
    shares_experts = 1 < dp <= ep
    groups = dp if shares_experts else 1
    # Tables that name tp for the whole replica count attention's groups in it.
    tp = tp // dp if shares_experts and tp * dp * pp > gpus else tp
    if shares_experts and tp * groups * pp > gpus:
        groups = max(1, gpus // (tp * pp))
    return {"gpus": gpus, "tp": tp, "pp": pp, "attention_dp": groups, "ep": ep}


def _noted(notes: str) -> dict[str, Any]:
    """Settings that only the notes state."""
    found: dict[str, Any] = {}
    for field, pattern in (
        ("max_requests", r"max_batch (\d+)"),
        ("max_tokens", r"max_num_tokens (\d+)"),
    ):
        match = re.search(pattern, notes)
        if match:
            found[field] = int(match[1])
    match = re.search(r"kv frac (\d\.\d+)", notes)
    if match:
        found["memory_share"] = float(match[1])
    if "max_util" in notes:
        found["scheduler"] = "trtllm-max-utilisation"
    match = re.search(r"chunked (True|False)", notes)
    if match:
        found["chunked_prefill"] = match[1] == "True"
    return found


def workload_of(row: ServingRow, deployment: Deployment) -> Workload:
    """The traffic of a row.

    Raises:
        SkippedRowError: Its lengths or its load are not stated, or nobody has such.
    """
    try:
        return _workload(row, deployment)
    except ValueError as error:
        raise SkippedRowError(f"no such workload: {' '.join(str(error).split())}") from error


def _workload(row: ServingRow, deployment: Deployment) -> Workload:
    isl, osl = row.number("isl"), row.number("osl")
    if osl is None or isl is None:
        raise SkippedRowError("the row states no lengths")
    load = row.number("concurrency_or_batch")
    prompt, answer = max(1, round(isl)), max(1, round(osl))
    if "closed loop" in row.scenario:
        if not load:
            raise SkippedRowError("the row states no concurrency")
        _check_users(row, load, answer)
        return _closed_loop(row, int(load), prompt, answer)
    if "offline" in row.scenario:
        return _offline(row, deployment, prompt, answer)
    if row.number("request_rate") and _is_online(row):
        return _online(row, deployment, prompt, answer)
    if "fixed batch" in row.scenario and load:
        return Workload(
            requests=int(load), prompt=Lengths(mean=prompt), answer=Lengths(mean=answer)
        )
    raise SkippedRowError(f"no such scenario: {row.scenario}")


def _closed_loop(row: ServingRow, users: int, prompt: int, answer: int) -> Workload:
    """So many users, each with a request at a time."""
    known = row.command().workload
    prompts, answers = _spreads(row, prompt, answer)
    if "uniform 0.8" in row.cells.get("notes", ""):
        prompts = Lengths(mean=prompt, least_share=0.8)
        answers = Lengths(mean=answer, least_share=0.8)
    workload = Workload(
        requests=known.requests or min(10 * users, max(4 * users, 256)),
        arrivals=Arrivals(kind="closed-loop", users=users, rate=row.number("request_rate")),
        prompt=prompts,
        answer=answers,
    )
    return _after_others(row, workload)


def _after_others(row: ServingRow, workload: Workload) -> Workload:
    """With what prompts sent before left in the cache: as a beginning that all prompts have."""
    known = row.command().workload
    tokens = known.found_tokens
    if known.found_prompts:
        # So long that the longest prompt, too, has nothing beyond it.
        tokens = max(request.prompt_tokens for request in requests_of(workload))
    prefix = SharedPrefix(tokens=tokens, cached=tokens > 0)
    return workload.model_copy(update={"shared_prefix": prefix})


def _check_users(row: ServingRow, users: float, answer: int) -> None:
    """Refuse a closed loop whose rate and latencies cannot come from its users."""
    rate, ttft_ms, tpot_ms = row.output_tokens_per_s, row.ttft_ms, row.tpot_ms
    if not rate or not ttft_ms or not tpot_ms:
        return
    implied = rate / answer * (ttft_ms + tpot_ms * (answer - 1)) / 1e3
    if not users / _CONTRADICTION < implied < users * _CONTRADICTION:
        raise SkippedRowError(
            f"the row contradicts itself: its rate and latencies imply {implied:.3g} users"
        )


def _offline(row: ServingRow, deployment: Deployment, prompt: int, answer: int) -> Workload:
    """All at once: so many requests as documented, or enough for a steady state."""
    prompts, answers = _spreads(row, prompt, answer)
    count = row.command().workload.requests or _OFFLINE_REQUESTS
    workload = Workload(requests=count * deployment.replicas, prompt=prompts, answer=answers)
    return _after_others(row, workload)


def _is_online(row: ServingRow) -> bool:
    return "Poisson" in row.scenario or "constant rate" in row.scenario


def _online(row: ServingRow, deployment: Deployment, prompt: int, answer: int) -> Workload:
    rate = row.number("request_rate")
    assert rate is not None
    prompts, answers = _spreads(row, prompt, answer)
    arrivals = Arrivals(kind="poisson", rate=rate)
    if "constant rate" in row.scenario:
        arrivals = Arrivals(kind="gamma", rate=rate, burstiness=_EVEN)
    known = row.command().workload.requests
    if known:
        # All that the client sends: its clock stops with the last answer, and nothing warms up.
        return Workload(requests=known, arrivals=arrivals, prompt=prompts, answer=answers)
    per_replica = rate / deployment.replicas
    seconds = max(_LEAST_SPAN_S, answer * _SPAN_PER_TOKEN_S)
    count = max(400, min(_MOST_REQUESTS, math.ceil(per_replica * seconds)))
    return Workload(
        requests=count * deployment.replicas,
        arrivals=arrivals,
        prompt=prompts,
        answer=answers,
        warm_up_share=_WARM_UP_SHARE,
    )


def _spreads(row: ServingRow, prompt: int, answer: int) -> tuple[Lengths, Lengths]:
    known = row.command().workload
    if known.uniform_from is not None:
        share = known.uniform_from
        longest = (max(1, round(2 * mean / (1 + share))) for mean in (prompt, answer))
        prompts, answers = (Lengths(mean=each, least_share=share) for each in longest)
        return prompts, answers
    return (
        Lengths(mean=prompt, variation=known.prompt_variation),
        Lengths(mean=answer, variation=known.answer_variation, longest=known.longest),
    )


def _known(names: Mapping[str, str], name: str, reason: str) -> str:
    if name not in names:
        raise SkippedRowError(f"{reason} {name or 'an unnamed kind'}")
    return names[name]


def _loaded(load: Any, name: str, kind: str) -> Any:
    try:
        return load(name)
    except ClustersimError as error:
        raise SkippedRowError(f"no {kind} of {name}") from error


def _version(cells: Mapping[str, str], engine: str) -> str:
    """The version that a row names, or the first of its year."""
    text = cells.get("engine_version", "")
    match = re.match(r"v?(\d{1,2}(?:\.\d+)*)(?![-\d])", text)
    if not match:
        year = re.search(r"20\d\d", text) or re.search(r"20\d\d", cells.get("year", ""))
        return version_of_year(engine, int(year[0])) if year else ""
    # TensorRT-LLM has no version 10: that is TensorRT's own, of containers of 2025.
    return "0.18" if match[1].startswith("10.") else match[1]
