"""Which matrices have an adapter where a regular expression names their modules?

PEFT takes a text among ``target_modules`` as an expression that fits a module's whole name, such
as ``model.layers.3.self_attn.q_proj``, and the items of a list as ends of such names.

Source: PEFT's ``check_target_module_exists`` (tuners/tuners_utils.py); names of modules are those
of transformers' decoders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

_LONGEST = 400
_MOST_LOOSE_PARTS = 3
"""Parts that fit any text, such as ``.*``: each multiplies how long a search takes."""
_LOOSE_PART = re.compile(r"(?:\.|\\[wS]|(?<!\[\\d)(?<!\[0-9)\])[*+{]")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
"""Where a search may take as long as two to the length of a name."""
_ROOTS = (
    "model.", "model.language_model.", "language_model.model.", "model.text_model.",
    "transformer.", "",
)  # fmt: skip
_STACKS = ("layers", "h")
_LAYERS = (0, 1, 2, 3, 5, 7, 10, 31)
_BLOCKS = (
    "self_attn", "attn", "attention", "mlp", "feed_forward", "mlp.experts.0",
    "block_sparse_moe.experts.0", "mlp.shared_experts",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fitting:
    """What an expression fits.

    Attributes:
        names: Last parts of the names of modules that it fits in every layer.
        in_some_layers: Those that it fits in some layers only.
    """

    names: tuple[str, ...]
    in_some_layers: tuple[str, ...]


def is_pattern(text: str) -> bool:
    """Whether a text is an expression, rather than one name or several with commas."""
    return bool(re.search(r"[\\()\[\]|*+?^$]", text))


def fitting(pattern: str, names: Iterable[str]) -> Fitting | None:
    """What an expression fits; None where it is none, or would take long to search.

    Args:
        pattern: As PEFT takes it.
        names: Names of matrices, the last parts of their modules' names.
    """
    is_slow = len(_LOOSE_PART.findall(pattern)) > _MOST_LOOSE_PARTS
    if is_slow or len(pattern) > _LONGEST or _REPEATED_GROUP.search(pattern):
        return None
    try:
        expression = re.compile(pattern)
    except (re.error, RecursionError):
        return None
    everywhere, somewhere = dict[str, None](), dict[str, None]()
    for name in names:
        for modules in _modules(name):
            fits = [bool(expression.fullmatch(module)) for module in modules]
            if all(fits):
                everywhere[name] = None
            elif any(fits):
                somewhere[name] = None
    return Fitting(tuple(everywhere), tuple(name for name in somewhere if name not in everywhere))


def _modules(name: str) -> Iterator[list[str]]:
    """The same module of several layers, for each way in which models are built."""
    for root, stack, block in product(_ROOTS, _STACKS, _BLOCKS):
        yield [f"{root}{stack}.{layer}.{block}.{name}" for layer in _LAYERS]
