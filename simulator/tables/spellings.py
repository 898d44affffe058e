"""Which words of tables mean which of ours: GPUs, fabrics, schedules, formats, recomputation?

"NVIDIA A100-SXM4-80GB", "A100 80G" and "a100-sxm-80gb" are one device; an A100 on a PCIe card, or
one with other memory, is none of them. Words that are not known stay as they are, so that whoever
reads the field refuses it by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

from simulator.described.cluster.network import FabricKind
from simulator.schedule import SCHEDULES

_FABRIC_OF_WORD: tuple[tuple[str, FabricKind], ...] = (
    (r"infiniband|\bib\b|\b[hnefqx]dr\b|quantum", "ib"),
    (r"roce|pollara|thor", "roce"),
    (r"\befa", "efa"),
    (r"slingshot|cassini|cxi", "slingshot"),
    (r"omni-?\s?path|\bopa\b", "opa"),
    (r"tcpxo|fastrak", "tcpxo"),
    (r"tcpx", "tcpx"),
    (r"gpudirect rdma|rdma", "roce"),
    (r"ethernet|\beth\b|gbe\b|\btcp\b|sockets?\b", "ethernet"),
)
"""Word for a fabric, the most telling first."""

_SCHEDULE_OF_WORD = {
    "pipedreamflush": "1f1b", "noninterleaved": "1f1b", "1f1bnoninterleaved": "1f1b",
    "interleaved": "interleaved-1f1b", "1f1binterleaved": "interleaved-1f1b",
    "interleaving": "interleaved-1f1b", "vpp": "interleaved-1f1b",
    "afab": "gpipe", "fthenb": "gpipe", "allforwardallbackward": "gpipe",
    "bfs": "looped-bfs", "interleavedzerobubble": "zb-1p", "zbvzerobubble": "zb-v",
    "zerobubblev": "zb-v", "zbb": "zb-2p",
}  # fmt: skip
"""What others call a schedule, small letters and digits only."""

CHUNKS_OF_SCHEDULE = {name: 2 for name, info in SCHEDULES.items() if info.chunks == (2, 2)}
"""Model chunks per rank of schedules that fold the pipeline once, whatever a table calls them."""

_NO_PIPELINE = ("", "none", "no", "nopp", "nopipeline", "na")

_RECOMPUTE_OF_WORD: tuple[tuple[str, str], ...] = (
    (r"^(no|none|false|off|0|disabled|without)\b", "none"),
    (r"selective|\bsac\b|per-op|core-?attn|core-?attention", "selective"),
    (r"full|uniform|block|^all\b|^(true|yes|on|1)$|checkpoint|every-layer", "full"),
)

_PRECISION_OF_WORD: tuple[tuple[str, str], ...] = (
    (r"nv-?fp4|\bfp4", "nvfp4"),
    (r"mx-?fp8|fp8-?mx", "mxfp8"),
    (r"(?:\b|_)fp-?8|float-?8|e4m3|e5m2", "fp8"),
    (r"tf-?32", "tf32"),
    (r"(?:\b|-)bf-?16\b|bfloat-?16", "bf16"),
    (r"(?:\b|-)fp-?16\b|\bfloat-?16|\bhalf\b|^amp$|^16-mixed$", "fp16"),
    (r"(?:\b|-)fp-?32\b|\bfloat-?32|^float$|^single$|^full$", "fp32"),
)

_ATTENTION_OF_WORD: tuple[tuple[str, str], ...] = (
    (r"fused-?(scale-?mask-?)?softmax", "fused-softmax"),
    (r"^(no|none|false|off|0|eager|math|naive|standard|core|local|torch|vanilla)\b|unfused"
     r"|no-flash|without-flash|non-flash", "unfused"),
    (r"flash|^fa-?[1-4]?$|sdpa|cudnn|triton|xformers|efficient|fused|^te\b|transformer-engine|\bck\b"
     r"|aiter|splash|pallas|^(true|yes|on|1)$", "flash"),
)  # fmt: skip


def is_inside_nodes(said: str) -> bool:
    """Whether a text names links inside a node or a rack, which say nothing of the fabric."""
    return re.search(r"nv-?link|nv-?switch|nvl\d|pcie|xgmi|infinity", said.lower()) is not None


def fabric_kind(said: str) -> FabricKind | None:
    """The kind of network between nodes that a text names; None if it names none."""
    lowered = said.lower()
    exact = next((kind for kind in get_args(FabricKind) if kind == lowered), None)
    if exact:
        return exact  # type: ignore[no-any-return]
    return next((kind for word, kind in _FABRIC_OF_WORD if re.search(word, lowered)), None)


def schedule_name(said: str, chunks: int) -> str | None:
    """The pipeline schedule of a word; 1F1B over several chunks is the interleaved one.

    None where the table says that there is none.
    """
    plain = re.sub(r"[^a-z0-9]", "", said.lower())
    if plain in _NO_PIPELINE:
        return None
    ours = {re.sub(r"[^a-z0-9]", "", name): name for name in SCHEDULES}
    name = ours.get(plain) or _SCHEDULE_OF_WORD.get(plain, said)
    return "interleaved-1f1b" if name == "1f1b" and chunks > 1 else name


def recompute_extent(said: str) -> str:
    """none, selective or full."""
    return _first(_RECOMPUTE_OF_WORD, said)


def precision_name(said: str) -> str:
    """The number format of matrix products; of several, the one with fewest bits."""
    return _first(_PRECISION_OF_WORD, said)


def attention_facts(said: str) -> dict[str, Any]:
    """How core attention is computed, and the kernel where its generation is stated."""
    kernel = _first(_ATTENTION_OF_WORD, said)
    generation = re.search(r"(?:fa|flash|attn|attention)-?v?([12])(?![\d])", said)
    if kernel != "flash" or not generation:
        return {"attention": kernel}
    return {"attention": kernel, "stack": {"flash_kernel": f"flash-{generation.group(1)}"}}


def zero_stage(said: str) -> str:
    """The ZeRO stage, as a number in text, of a word such as ``ZeRO-3`` or ``FULL_SHARD``."""
    stage = re.fullmatch(r"(?:deepspeed-)?(?:zero-?)?(?:stage-?)?([0-3])(?:\.0)?", said)
    if stage:
        return stage.group(1)
    if re.search(r"shard-grad-op", said):
        return "2"
    if re.search(r"fsdp|full-shard|hybrid-shard|hsdp", said):
        return "3"
    if re.search(r"distributed-optimizer|dist-opt", said):
        return "1"
    return "0" if said in ("none", "no", "false", "ddp", "off") else said


def _first(words: tuple[tuple[str, str], ...], said: str) -> str:
    return next((meant for word, meant in words if re.search(word, said)), said)


_HOST_MEMORY_GB = {"gh200": (120, 480)}
"""Memory that names of a device state and that is its host's: Grace's beside Hopper."""

_SMALLER_TWINS_GB = {"v100": {16: 32}}
"""Memory sizes of a device that differ in nothing else, and the size that profiles have."""

_CARDS = ("l40s", "4090")
"""Devices that exist as PCIe cards only."""

_RACKS = ("gb200", "gb300")
"""Devices that exist in racks only, whatever form a table calls them."""

_LARGEST_SIZE_ERROR = 0.1
"""Names state a memory before or after what is held back from it: 192 and 180 GB are one B200."""


@dataclass(frozen=True, slots=True)
class _Named:
    """What a name says of a device."""

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

    def likeness(candidate: tuple[str, _Named]) -> tuple[int, int, int, str]:
        name, other = candidate
        shared, unsaid = given.words & other.words, other.words - given.words
        special = sum(word in ("hbm2e", "500w", "dgx1", "sxm3") for word in unsaid)
        return len(shared), -special, other.form == "sxm", name

    return max(fitting, key=likeness, default=(None, None))[0]


def stated_memory_gb(gpu: str) -> int | None:
    """Memory that the name of a GPU states [GB], where it is not that of its profile."""
    given = _named(gpu)
    twins = _SMALLER_TWINS_GB.get(given.device, {})
    return given.memory_gb if given.memory_gb in twins else None


def _named(gpu: str) -> _Named:
    text = re.sub(r"(?<=\d)x(?=[a-z])|^\d+ ?x ", " ", gpu.lower())
    text = re.sub(r"dgx-1\b", "dgx1", re.sub(r"(?<=[0-9s])(sxm|pcie|nvl)", r" \1", text))
    text = re.sub(r"(\d+) ?(?:gb|gib|g)\b", r" \1gb ", text)
    text = re.sub(r"(\d+) ?w\b", r" \1w ", text)
    words = [word for word in re.split(r"[^a-z0-9]+", text.replace("rtx", "rtx ")) if word]
    device = next((word for word in words if re.fullmatch(r"[a-z]{0,2}\d{2,4}[a-z]?", word)), "")
    sizes = [int(word[:-2]) for word in words if re.fullmatch(r"\d+gb", word)]
    of_device = [size for size in sizes if size not in _HOST_MEMORY_GB.get(device, ())]
    forms = [word for word in words if word.startswith(("sxm", "pcie", "nvl"))]
    form = re.sub(r"\d+$", "", forms[0]) if forms else ""
    # Generations of the module tell V100s apart; all later ones have one only.
    kept = frozenset(word if device == "v100" else re.sub(r"^sxm\d", "sxm", word) for word in words)
    return _Named(device, form, of_device[0] if of_device else None, kept)


def _may_be(given: _Named, other: _Named) -> bool:
    """Whether nothing that both names state tells the two apart."""
    if not given.device or given.device != other.device:
        return False
    return _same_form(given, other) and _same_memory(given, other) and _same_module(given, other)


def _same_form(given: _Named, other: _Named) -> bool:
    if given.device in _RACKS or not given.form:
        return True
    return given.form == (other.form or ("pcie" if given.device in _CARDS else "sxm"))


def _same_memory(given: _Named, other: _Named) -> bool:
    if given.memory_gb is None or other.memory_gb is None:
        return True
    size = _SMALLER_TWINS_GB.get(given.device, {}).get(given.memory_gb, given.memory_gb)
    return abs(size - other.memory_gb) <= _LARGEST_SIZE_ERROR * other.memory_gb


def _same_module(given: _Named, other: _Named) -> bool:
    modules = [{w for w in each.words if re.fullmatch(r"sxm\d", w)} for each in (given, other)]
    return not all(modules) or modules[0] == modules[1]
