"""Which word of a plan or a network does a table mean?

Each reader returns the project's own word, or what was written where it is nobody's word for
anything: the job's own rules then refuse it by name.
"""

from __future__ import annotations

import re
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
