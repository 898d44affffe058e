"""Which words of tables mean which of ours: GPUs, fabrics, schedules, formats, recomputation?

"NVIDIA A100-SXM4-80GB", "A100 80G" and "a100-sxm-80gb" are one device; an A100 on a PCIe card, or
one with other memory, is none of them. Words that are not known stay as they are, so that whoever
reads the field refuses it by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from simulator.described.cluster.network import FabricKind
from simulator.facts import shipped_facts
from simulator.schedule import SCHEDULES

_FILE = "spellings"


def is_inside_nodes(said: str) -> bool:
    """Whether a text names links inside a node or a rack, which say nothing of the fabric."""
    return re.search(shipped_facts(_FILE)["links_inside_nodes"], said.lower()) is not None


def fabric_kind(said: str) -> FabricKind | None:
    """The kind of network between nodes that a text names; None if it names none."""
    lowered = said.lower()
    kinds: tuple[FabricKind, ...] = get_args(FabricKind)
    wanted = lowered if lowered in kinds else _first("fabrics", lowered)
    return next((kind for kind in kinds if kind == wanted), None)


def schedule_name(said: str, chunks: int) -> str | None:
    """The pipeline schedule of a word; 1F1B over several chunks is the interleaved one.

    None where the table says that there is none.
    """
    plain = re.sub(r"[^a-z0-9]", "", said.lower())
    if plain in shipped_facts(_FILE)["no_pipeline"]:
        return None
    ours = {re.sub(r"[^a-z0-9]", "", name): name for name in SCHEDULES}
    name = ours.get(plain) or shipped_facts(_FILE)["schedules"].get(plain, said)
    return "interleaved-1f1b" if name == "1f1b" and chunks > 1 else name


def recompute_extent(said: str) -> str:
    """none, selective or full."""
    return _first("recompute", said)


def precision_name(said: str) -> str:
    """The number format of matrix products; of several, the one with fewest bits."""
    return _first("precision", said)


def attention_facts(said: str) -> dict[str, Any]:
    """How core attention is computed, and the kernel where its generation is stated.

    FlashAttention 3 and 4 are the best kernels of the GPUs that they are written for, Hopper and
    data-centre Blackwell.
    """
    kernel = _first("attention", said)
    generation = re.search(r"(?:fa|flash|attn|attention)-?v?([1-4])(?![\d])", said)
    if kernel != "flash" or not generation:
        return {"attention": kernel}
    name = f"flash-{generation.group(1)}" if generation.group(1) in "12" else "best"
    return {"attention": kernel, "stack": {"flash_kernel": name}}


def zero_stage(said: str) -> str:
    """The ZeRO stage, as a number in text, of a word such as ``ZeRO-3`` or ``FULL_SHARD``."""
    return _first("zero", said)


def chunks_of_schedule(name: str | None) -> int | None:
    """Model chunks per rank of a schedule that folds the pipeline; None if it leaves them open."""
    info = SCHEDULES.get(name or "")
    return 2 if info and info.chunks == (2, 2) else None


def facts_in_notes(notes: str) -> Iterator[Mapping[str, Any]]:
    """Fields of a job that phrases in the notes of a published run decide."""
    return _facts_of_phrases("notes", notes)


def usual_facts(notes: str) -> Iterator[Mapping[str, Any]]:
    """Fields of a job that phrases mostly stand for, which leave them open."""
    return _facts_of_phrases("vague_notes", notes)


def _facts_of_phrases(table: str, notes: str) -> Iterator[Mapping[str, Any]]:
    for phrase in shipped_facts(_FILE)[table]:
        if re.search(phrase["pattern"], notes):
            yield phrase["job"]


class PackedDocuments(NamedTuple):
    """Documents that are packed into sequences, and see only themselves.

    Attributes:
        tokens: How long they are, in the mean over tokens.
        is_stated: Whether the notes say so; else it is assumed.
    """

    tokens: int
    is_stated: bool


def packed_documents(notes: str) -> PackedDocuments | None:
    """What notes of a published run say of packed documents; None where each sequence is one."""
    words = shipped_facts(_FILE)["packed_documents"]
    if stated := re.search(words["stated"], notes):
        shortest, longest = (int(each or stated.group(1)) for each in stated.groups())
        return PackedDocuments(round(1024 * math.sqrt(shortest * longest)), is_stated=True)
    if re.search(words["apart"], notes):
        return PackedDocuments(words["usual_tokens"], is_stated=False)
    return None


def _first(table: str, said: str) -> str:
    words = shipped_facts(_FILE)[table].items()
    return next((meant for word, meant in words if re.search(word, said)), said)


_DEVICE = re.compile(r"[a-z]{0,2}\d{2,4}(?:ti|[a-z])?|[lt]4|titanrtx")
"""Words that name a GPU."""

_LINES = frozenset({"ada", "pro", "quadro"})
"""Words that tell cards of one number apart."""

_LARGEST_SIZE_ERROR = 0.1
"""Names state a memory before or after what is held back from it: 192 and 180 GB are one B200."""


@dataclass(frozen=True, slots=True)
class _Named:
    device: str
    form: str
    memory_gb: int | None
    words: frozenset[str]


def profile_name_of(gpu: str, names: Iterable[str]) -> str | None:
    """The profile among ``names`` that describes a GPU, or None.

    The device must be the same, and form and memory where both state them; of several, the one
    with most words in common wins, then the one that says least, on an SXM module.
    """
    shipped = list(names)
    if gpu.strip().lower() in shipped:
        return gpu.strip().lower()
    given = _named(gpu)
    found = [(name, _named(name)) for name in shipped]
    fitting = [(name, other) for name, other in found if _may_be(given, other)]

    def closeness(candidate: tuple[str, _Named]) -> tuple[int, int, int, str]:
        name, other = candidate
        shared, unsaid = given.words & other.words, other.words - given.words
        special = sum(word in ("hbm2e", "500w", "dgx1", "sxm3") for word in unsaid)
        return len(shared), -special, other.form == "sxm", name

    return max(fitting, key=closeness, default=(None, None))[0]


def stated_memory_gb(gpu: str) -> int | None:
    """Memory that the name of a GPU states [GB], where it is not that of its profile."""
    given = _named(gpu)
    twins = _gpus("smaller_twins_gb").get(given.device, {})
    return given.memory_gb if given.memory_gb in twins else None


def _gpus(table: str) -> Any:
    return shipped_facts(_FILE)["gpus"][table]


def _named(gpu: str) -> _Named:
    text = re.sub(r"(?<=\d)x(?=[a-z])|^\d+ ?x ", " ", gpu.lower())
    text = re.sub(r"dgx-1\b", "dgx1", re.sub(r"(?<=[0-9s])(sxm|pcie|nvl)", r" \1", text))
    text = re.sub(r"(\d+) ?(?:gb|gib|g)\b", r" \1gb ", text)
    text = re.sub(r"(\d+) ?w\b", r" \1w ", text)
    text = re.sub(r"(\d{4}) ti\b", r"\1ti", text)
    for words, word in _gpus("one_word").items():
        text = re.sub(words, word, text)
    words = [word for word in re.split(r"[^a-z0-9]+", re.sub(r"\brtx", "rtx ", text)) if word]
    device = next((word for word in words if _DEVICE.fullmatch(word)), "")
    sizes = [int(word[:-2]) for word in words if re.fullmatch(r"\d+gb", word)]
    of_device = [size for size in sizes if size not in _gpus("host_memory_gb").get(device, ())]
    forms = [word for word in words if word.startswith(("sxm", "pcie", "nvl"))]
    form = re.sub(r"\d+$", "", forms[0]) if forms else ""
    # Generations of the module distinguish V100s; all later ones have one only.
    kept = frozenset(word if device == "v100" else re.sub(r"^sxm\d", "sxm", word) for word in words)
    return _Named(device, form, of_device[0] if of_device else None, kept)


def _may_be(given: _Named, other: _Named) -> bool:
    """Whether nothing that both names state differs."""
    if not given.device or given.device != other.device:
        return False
    lines = given.words & _LINES, other.words & _LINES
    if all(lines) and lines[0].isdisjoint(lines[1]):
        return False
    return _same_form(given, other) and _same_memory(given, other) and _same_module(given, other)


def _same_form(given: _Named, other: _Named) -> bool:
    if given.device in _gpus("racks_only") or not given.form:
        return True
    return given.form == (
        other.form or ("pcie" if given.device in _gpus("pcie_cards_only") else "sxm")
    )


def _same_memory(given: _Named, other: _Named) -> bool:
    if given.memory_gb is None or other.memory_gb is None or given.memory_gb == other.memory_gb:
        return True
    size: int = (
        _gpus("smaller_twins_gb").get(given.device, {}).get(given.memory_gb, given.memory_gb)
    )
    return abs(size - other.memory_gb) <= _LARGEST_SIZE_ERROR * other.memory_gb


def _same_module(given: _Named, other: _Named) -> bool:
    modules = [{w for w in each.words if re.fullmatch(r"sxm\d", w)} for each in (given, other)]
    return not all(modules) or modules[0] == modules[1]
