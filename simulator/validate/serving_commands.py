"""With which settings did a published benchmark start the engine of a row?

Tables state the model, the split and the load; batch sizes, formats of the cache and the like are
in the commands that their authors publish: ``facts/serving_benchmarks.yaml``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.model import Model
from simulator.facts import shipped_facts
from simulator.program.layer.layer_kinds import layer_kinds
from simulator.program.layer.model_totals import parameter_count

_BENCH_BYTES = {"fp8": 1.0, "fp4": 0.5, "nvfp4": 0.5}


class Command(NamedTuple):
    """What the commands behind a row say.

    Attributes:
        settings: Fields of a deployment.
        drafts: Draft tokens of speculation; 0 where none are known.
        is_tuned: Whether trtllm-bench chose the sizes of its batches, see :func:`tuned_limits`.
        skip: Why the row tells nothing; empty if it does.
    """

    settings: Mapping[str, Any]
    drafts: int
    is_tuned: bool
    skip: str


def command_of(cells: Mapping[str, str]) -> Command:
    """The settings that all entries together give a row; the later over the earlier."""
    settings: dict[str, Any] = {}
    drafts, is_tuned, skip = 0, False, ""
    for entry in shipped_facts("serving_benchmarks"):
        if all(_holds(name, wanted, cells) for name, wanted in entry["when"].items()):
            settings.update(entry.get("set", {}))
            drafts = entry.get("drafts", drafts)
            is_tuned = entry.get("tuned", is_tuned)
            skip = entry.get("skip", skip)
    return Command(settings, drafts, is_tuned, skip)


def _holds(name: str, wanted: Any, cells: Mapping[str, str]) -> bool:
    if name.startswith(("least_", "most_")):
        bound, cell = name.split("_", 1)
        value = _number(cells.get(cell))
        return value is not None and (value >= wanted if bound == "least" else value <= wanted)
    beginnings = wanted if isinstance(wanted, list) else [wanted]
    return cells.get(name, "").startswith(tuple(beginnings))


def served_limits(cells: Mapping[str, str], drafts: int) -> dict[str, int]:
    """Batch and tokens that InferenceX's scripts compute for TensorRT-LLM from the load.

    Source: SemiAnalysisAI/InferenceX, benchmarks/dsr1_fp8_b200_trt.sh and
    dsr1_fp8_b200_trt_mtp.sh, MAX_NUM_TOKENS and MAX_BATCH_SIZE.
    """
    users, prompt = int(_number(cells.get("concurrency_or_batch")) or 1), int(cells["isl"])
    if not drafts:
        return {"max_tokens": max(8192, _up(users + prompt + 64, 64))}
    groups = int(_number(cells.get("dp")) or 1)
    batch = max(1, users // groups)
    tokens = _up((drafts + 1) * batch + prompt + 64, 64)
    return {"max_requests": batch, "max_tokens": tokens}


def tuned_limits(
    model: Model,
    profile: HardwareProfile,
    *,
    weights: str,
    cache_bytes: float,
    ranks: int,
    pp: int,
    tp: int,
    prompt: float,
    answer: float,
) -> dict[str, int]:
    """Batch and tokens that trtllm-bench chooses where its user names none.

    As many requests as fit in the memory that it expects to be left, rounded up.

    Source: TensorRT-LLM, tensorrt_llm/bench/build/tuning.py, calc_engine_setting and
    finetune_setting.
    """
    latent = model.latent_attention
    numbers = 2.0 * max(tp, model.kv_heads) * model.head_dim
    if latent is not None:
        numbers = float(latent.kv_lora_rank + latent.qk_rope_head_dim)
    token_bytes = numbers * len(layer_kinds(model)) * cache_bytes
    weights_bytes = parameter_count(model) * _BENCH_BYTES.get(weights, 2.0)
    free_bytes = ranks * profile.device.memory_bytes - weights_bytes
    fitting = 0.95 * free_bytes / (token_bytes * (prompt + answer))
    batch = min(max(fitting, 1.0), 4096.0) / pp
    tokens = min(batch * (1.0 + prompt / answer), 32768.0)
    return {"max_requests": _tuned_batch(batch), "max_tokens": _tuned_tokens(tokens)}


def _tuned_batch(batch: float) -> int:
    if batch < 256:
        return max(64, _up(batch, 32))
    return _up(batch, 128 if batch < 1024 else 256)


def _tuned_tokens(tokens: float) -> int:
    if tokens < 4096:
        return max(2048, _up(tokens, 256))
    return _up(tokens, 512 if tokens < 8192 else 1024)


def _up(value: float, unit: int) -> int:
    return unit * math.ceil(value / unit)


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
