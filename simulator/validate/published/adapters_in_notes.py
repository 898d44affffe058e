"""Which adapters do the notes of a published run name?

Notes say it in many words: their kind and rank, the matrices that have one, and the format of what
is frozen. What they leave open is as the recipes of the framework have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from simulator.cells import Row
from simulator.errors import InputError
from simulator.validate.published.framework_stacks import usual_adapters
from simulator.validate.published.row_facts import stated_facts

_ADAPTERS = re.compile(r"\b(?:Q?LoRA|QDoRA|DoRA|frozen base)\b")
_NAME = r"\bQ?(?:LoRA|DoRA)\b"
_RANK = re.compile(
    rf"{_NAME}[^;.\d]{{0,40}}?\b(?:rank|r)[ =:]*(\d+)"
    rf"|\brank[ -]?(\d+) {_NAME}"
    r"|\blora_(?:r|rank|dim)[ =:]*(\d+)"
)
"""Phrases that state a rank: "LoRA rank 8", "LoRA r16", "LoRA (r=16)", "rank-16 LoRA"."""

_EVERYTHING = re.compile(
    r"(?i)\ball[- ](?:the )?(?:linears?|matrices|projections|(?:target )?modules)\b"
    r"|\bevery (?:linear|projection|matrix)\b"
)
_GROUPS = (
    (re.compile(r"(?i)\b(?:of|on|in) (?:the )?attention\b(?!_)"), "query key value output"),
    (re.compile(r"(?i)\b(?:query_key_value|qkv(?:_proj)?|attention_qkv|W_pack|c_attn)\b"),
     "query key value"),
    (re.compile(r"(?i)\b(?:MLP|feed-?forward|FFN)\b"), "gate up down"),
)  # fmt: skip
_MATRICES = {
    "query": re.compile(r"(?i)\bq(?:uery|ueries)?(?:_proj)?\b"),
    "key": re.compile(r"(?i)\bk(?:ey|eys)?(?:_proj)?\b"),
    "value": re.compile(r"(?i)\bv(?:alue|alues)?(?:_proj)?\b"),
    "output": re.compile(r"(?i)\bo(?:ut|utput|utputs)?(?:_proj)?\b"),
    "gate": re.compile(r"(?i)\bgate_?proj\b"),
    "up": re.compile(r"(?i)\bup_?proj\b"),
    "down": re.compile(r"(?i)\bdown_?proj\b"),
}
"""Words for the matrices of a layer that have adapters."""

_LIST = re.compile(rf"(?:{_NAME}|\blora_target\w*)([^;.]*)")
"""What follows the name of adapters, up to the end of what is said of them."""

_BASE_PRECISION = (
    (re.compile(r"(?i)\bNF4\b"), "nf4"),
    (re.compile(r"(?i)\bFP4\b"), "fp4"),
    (re.compile(r"(?i)\bQ(?:LoRA|DoRA)\b|\b4[- ]?bit\b(?! Adam| optim)"), "nf4"),
    (re.compile(r"(?i)\bload_in_8bit\b|\b(?:base|weights?)\b[^;,.]{0,12}\b(?:8[- ]?bit|int8)\b"
                r"|\b(?:8[- ]?bit|int8) (?:base|weights?|model)\b"), "int8"),
)  # fmt: skip


def adapters(row: Row) -> dict[str, Any]:
    """Adapters that the notes name, or those of the framework's recipes, as fields of a plan.

    Raises:
        InputError: Their rank is neither stated nor known.
    """
    notes = row.get("notes", "")
    if not _ADAPTERS.search(notes):
        return {}
    lora = dict(usual_adapters(row["framework"], row.get("framework_version", "")))
    if rank := _RANK.search(notes):
        lora["rank"] = int(next(filter(None, rank.groups())))
    stated = stated_facts(row).get("plan", {}).get("lora", {})
    if "rank" not in {**lora, **stated}:
        raise InputError.single("notes", "name adapters, but not their rank")
    if targets := list(_targets(notes)):
        lora["targets"] = targets
    if re.search(r"\bQ?DoRA\b", notes):
        lora["kind"] = "dora"
    base = next((name for phrase, name in _BASE_PRECISION if phrase.search(notes)), None)
    return {"lora": {**lora, "base_precision": base} if base else lora}


def _targets(notes: str) -> Iterator[str]:
    """Names of the matrices that the notes list beside adapters."""
    if _EVERYTHING.search(notes):
        yield "all"
        return
    said = " ".join(each.group(1) for each in _LIST.finditer(notes))
    grouped = {name for phrase, names in _GROUPS if phrase.search(said) for name in names.split()}
    yield from (name for name, word in _MATRICES.items() if name in grouped or word.search(said))
