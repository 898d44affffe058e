"""Which kernels of serving do the tables hold, and how long do given numbers say that they take?"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.load import load_profile
from simulator.serving.kernels.cache_attention import decode_s, latent_decode_s, prefill_s
from simulator.serving.kernels.parameters import peak_flop_per_s
from simulator.serving.kernels.products import product_s
from simulator.serving.kernels.routed_experts import experts_s, loads_by_chance

_FORMS = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "fp16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "int4_wo": "int4",
    "int8_wo": "int8",
    "w4a8_mxfp4_mxfp8": "mxfp4",
    "w4a16_mxfp4": "mxfp4",
}
_ENGINES = {"trtllm": "tensorrt-llm"}
_PROFILES = {"rtx-pro-6000-server": "rtx-pro-6000-blackwell-96gb"}
"""Profiles of GPUs that the tables name otherwise."""
_LATENT, _VALUE = 576, 512
"""Numbers of a token in DeepSeek's compressed cache, and those of them that are values."""
_MOST_TOKENS, _FEW = 16384, 4.0


class KernelRow(NamedTuple):
    """One measured kernel; its shape in the words of the tables, under one set of names."""

    kernel: str
    form: str
    gpu: str
    engine: str
    seconds: float
    shape: Mapping[str, float]

    @property
    def is_of_the_host(self) -> bool:
        """Whether the row's time is that of launching kernels one by one.

        Source: ai-dynamo/aiconfigurator, collector/vllm/collect_gemm.py: products with blocks of
        fp8 are measured without a graph; their least time of 57 us and more is that of any shape.
        """
        return self.engine == "vllm" and (self.kernel == "latent" or self.form == "fp8_block")

    @property
    def is_unlike_engines(self) -> bool:
        """Whether engines would run another kernel.

        On Hopper, vLLM's experts with fp8 weights take six to ten times as long as those weights
        take to read, and SGLang's with mxfp4 weights as long as 16-bit ones: untuned and unpacked.
        SGLang's server takes Triton's kernels of 4 bits (``server_args.py``, gpt-oss).
        """
        pair = (self.engine, self.form)
        is_other = pair in (("vllm", "fp8"), ("sglang", "mxfp4"))
        return self.kernel == "experts" and self.gpu.startswith("h") and is_other


def kernel_rows(tables: Sequence[Path]) -> Iterator[KernelRow]:
    """Rows of products, experts and attention that have a time.

    Left out: windows, and routing that the collector skewed on purpose where experts get more rows
    than a few: which rank is the busiest then decides, not the kernel.
    """
    for table in tables:
        raw = table.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
        for cells in csv.DictReader(io.StringIO(text)):
            row = _row(cells)
            if row is not None:
                yield row


def _row(cells: Mapping[str, str]) -> KernelRow | None:
    kernel = _kernel(cells)
    seconds = _number(cells, "time_us") * 1e-6
    if kernel is None or seconds <= 0 or _number(cells, "window_size") > 0:
        return None
    form = _FORMS.get(_first(cells, "dtype", "gemm_dtype", "moe_dtype"), "")
    needs_form = kernel in ("products", "experts")
    shape = _shape(kernel, cells)
    if (needs_form and not form) or shape.get("tokens", 0) > _MOST_TOKENS:
        return None
    if cells.get("distribution", "").startswith("power_law") and _rows_per_expert(shape) > _FEW:
        return None
    engine = _ENGINES.get(cells["engine"], cells["engine"])
    return KernelRow(kernel, form if needs_form else "", cells["gpu"], engine, seconds, shape)


def _kernel(cells: Mapping[str, str]) -> str | None:
    name = cells["op"]
    decodes = cells.get("phase") == "decode" or name.startswith("generation")
    if name in ("attention", "context_attention", "generation_attention"):
        return "decode" if decodes else "prefill"
    if name in ("mla", "generation_mla"):
        return "latent" if decodes else None
    return {"gemm": "products", "moe": "experts"}.get(name)


def _rows_per_expert(shape: Mapping[str, float]) -> float:
    return shape["tokens"] * shape["top_k"] / shape["experts"]


def _shape(kernel: str, cells: Mapping[str, str]) -> dict[str, float]:
    if kernel == "products":
        return {"tokens": _number(cells, "m"), "n": _number(cells, "n"), "k": _number(cells, "k")}
    if kernel == "experts":
        inner = _number(cells, "inter", "inter_size")
        return {
            "tokens": _number(cells, "m", "num_tokens"),
            "hidden": _number(cells, "hidden", "hidden_size"),
            "ffn": max(1.0, inner / max(1.0, _number(cells, "tp", "moe_tp_size"))),
            "experts": _number(cells, "experts", "num_experts"),
            "top_k": _number(cells, "topk"),
            "ranks": max(1.0, _number(cells, "ep", "moe_ep_size")),
        }
    heads = _number(cells, "heads", "num_heads")
    queries = _number(cells, "q_len") or _number(cells, "isl")
    queries = queries if kernel == "prefill" else 1.0
    keys = _number(cells, "kv_len") or _number(cells, "step") + _number(cells, "isl")
    return {
        "requests": _number(cells, "batch", "batch_size"),
        "queries": queries,
        "keys": max(keys, queries),
        "heads": heads,
        "kv_heads": _number(cells, "kv_heads", "num_key_value_heads") or heads,
        "head_dim": _number(cells, "head_dim"),
        "cache_bytes": 1.0 if "fp8" in _first(cells, "kv_dtype", "kv_cache_dtype") else 2.0,
    }


def predicted_s(fit: Any, row: KernelRow) -> float:
    """Seconds of a row's kernel with the given numbers."""
    profile, s = _profile(row.gpu), row.shape
    bandwidth = profile.device.memory_bandwidth_bytes_per_s
    peak = peak_flop_per_s(profile, row.form or "bf16")
    rates: dict[str, Any] = {"peak_flop_per_s": peak, "bandwidth_bytes_per_s": bandwidth}
    sm_count = profile.device.sm_count
    if row.kernel == "products":
        m, n, k = (int(s[name]) for name in ("tokens", "n", "k"))
        return product_s(fit, row.form, m, n, k, sm_count=sm_count, **rates)
    if row.kernel == "experts":
        experts, top_k, ranks = (int(s[name]) for name in ("experts", "top_k", "ranks"))
        return experts_s(
            fit,
            row.form,
            loads_by_chance(s["tokens"], experts=experts, top_k=top_k, ranks=ranks),
            hidden=int(s["hidden"]),
            ffn_hidden=int(s["ffn"]),
            matrices=3,
            **rates,
        )
    context = s["requests"] * s["keys"]
    if row.kernel == "latent":
        return latent_decode_s(
            fit,
            s["requests"],
            context,
            heads=int(s["heads"]),
            token_bytes=_LATENT * s["cache_bytes"],
            latent_dim=_LATENT,
            value_dim=_VALUE,
            **rates,
        )
    head_bytes, kv_heads = 2.0 * s["head_dim"] * s["cache_bytes"], int(s["kv_heads"])
    if row.kernel == "decode":
        return decode_s(
            fit,
            s["requests"],
            context,
            kv_heads=kv_heads,
            head_bytes=head_bytes,
            bandwidth_bytes_per_s=bandwidth,
            sm_count=sm_count,
        )
    chunks = [(int(s["queries"]), s["keys"] - s["queries"])] * int(s["requests"])
    return prefill_s(
        fit,
        chunks,
        heads=int(s["heads"]),
        kv_heads=kv_heads,
        head_dim=int(s["head_dim"]),
        head_bytes=head_bytes,
        sm_count=sm_count,
        **rates,
    )


@cache
def _profile(name: str) -> HardwareProfile:
    return load_profile(_PROFILES.get(name, name))


def _first(cells: Mapping[str, str], *names: str) -> str:
    return next((cells[name] for name in names if cells.get(name)), "")


def _number(cells: Mapping[str, str], *names: str) -> float:
    try:
        return float(_first(cells, *names) or 0.0)
    except ValueError:
        return 0.0
