"""What do the commands and data sets behind a table of served runs say that its rows do not?

Tables state the model, the split and the load; batch sizes, formats of the cache and the like are
in the commands that their authors publish. A table ``runs.csv.gz`` may have them in a file
``runs.facts.yaml`` beside it, each with its evidence; that file's head says how it is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.documents import read_yaml, validated
from simulator.described.model import Model
from simulator.program.layer.layer_kinds import layer_kinds
from simulator.program.layer.model_totals import parameter_count

_BENCH_BYTES = {"fp8": 1.0, "fp4": 0.5, "nvfp4": 0.5}


class TrafficFacts(BaseModel):
    """Traffic of a run: spreads are standard deviations over means.

    Attributes:
        requests: How many the client sends; 0 is enough of them.
        prompt_variation: Spread of the prompts' lengths; likewise:
        answer_variation: Of the answers'.
        longest: Longest answer [tokens]; 0 is no limit.
        uniform_from: Lengths are uniform from this share of the longest on, and the row states
            their means.
        found_prompts: Whether every prompt was sent before and is found in the cache.
        found_tokens: Likewise of the first tokens of every prompt alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests: int = 0
    prompt_variation: float = 0.0
    answer_variation: float = 0.0
    longest: int = 0
    uniform_from: float | None = None
    found_prompts: bool = False
    found_tokens: int = 0


class Command(BaseModel):
    """What is known of a row, by the names of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    set: Mapping[str, Any] = {}
    workload: TrafficFacts = TrafficFacts()
    drafts: int = 0
    acceptance: tuple[float, ...] = ()
    sized_by: Literal["", "trtllm-bench", "users"] = ""
    steady: bool = False
    skip: str = ""


class _Entry(Command):
    when: Mapping[str, str | int | tuple[str, ...]]
    evidence: Literal["documentation", "measurement of its own", "residuals", "assumed"]
    reference: str

    def holds(self, cells: Mapping[str, str]) -> bool:
        return all(_holds(name, wanted, cells) for name, wanted in self.when.items())


class _FactsFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: tuple[_Entry, ...] = ()


def facts_file_of(table: Path) -> Path | None:
    """The file of facts beside a table, packed or not; None where there is none."""
    path = table.with_name(table.name.split(".")[0] + ".facts.yaml")
    return path if path.is_file() else None


class ServingFacts:
    """All that is known of the rows of one table.

    Args:
        path: The file; None knows nothing.

    Raises:
        InputError: The file cannot be read, or is none of facts.
    """

    def __init__(self, path: Path | None) -> None:
        document = read_yaml(path, "give a file of facts") if path else {}
        self._groups = validated(_FactsFile, document, file=str(path)).groups

    def command(self, cells: Mapping[str, str], *, residuals: bool = True) -> Command:
        """What all entries about a row say together, the later over the earlier.

        Args:
            cells: The row.
            residuals: Whether to take what was found with errors of such rows in view.
        """
        found: dict[str, Any] = {"set": {}, "workload": {}}
        for entry in self._groups:
            if entry.holds(cells) and (residuals or entry.evidence != "residuals"):
                said = {n: getattr(entry, n) for n in entry.model_fields_set & _FIELDS}
                traffic = entry.workload.model_dump(exclude_unset=True)
                both = {"set": entry.set, "workload": traffic}
                found |= said | {name: {**found[name], **more} for name, more in both.items()}
        return Command(**found)


_FIELDS = set(Command.model_fields)


def _holds(name: str, wanted: Any, cells: Mapping[str, str]) -> bool:
    if name.startswith(("least_", "most_")):
        bound, cell = name.split("_", 1)
        value = number_in(cells.get(cell))
        return value is not None and (value >= wanted if bound == "least" else value <= wanted)
    beginnings = (wanted,) if isinstance(wanted, str) else wanted
    return cells.get(name, "").startswith(tuple(beginnings))


def limits_of_users(cells: Mapping[str, str], drafts: int) -> dict[str, int]:
    """Batch and tokens of a TensorRT-LLM server that is started for its users and prompts.

    Source: SemiAnalysisAI/InferenceX, benchmarks/dsr1_fp8_b200_trt.sh and
    dsr1_fp8_b200_trt_mtp.sh, MAX_NUM_TOKENS and MAX_BATCH_SIZE.
    """
    users, prompt = int(number_in(cells.get("concurrency_or_batch")) or 1), int(cells["isl"])
    if not drafts:
        return {"max_tokens": max(8192, _up(users + prompt + 64, 64))}
    groups = int(number_in(cells.get("dp")) or 1)
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


def number_in(cell: str | None) -> float | None:
    """The finite number that a cell says; None where it says something else."""
    try:
        value = float(cell or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
