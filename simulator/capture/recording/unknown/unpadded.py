"""Attention masks of transformers, which looks at padding before it decides on a kernel.

On a device it asks whether a sequence is padded or packed, and masks nothing where neither is so;
of tensors without contents it cannot know, and masks everything. Captured sequences are taken to be
whole, as they are in training on text that was joined and cut.

Source: ``_ignore_causal_mask_sdpa``, ``_ignore_bidirectional_mask_sdpa`` and
``find_packed_sequence_indices`` of transformers' ``masking_utils.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_MODULE = "transformers.masking_utils"
_DECIDE_BY_PADDING = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")
_NOTE = "sequences are taken not to be padded, and not to be packed"


def unpadded_sequences(note: Callable[[str], None]) -> dict[tuple[Any, str], Any]:
    """Attributes of transformers, where it is imported, and what they are for whole sequences."""
    module = sys.modules.get(_MODULE)
    if module is None:
        return {}
    note(_NOTE)

    def without_padding(decide: Callable[..., bool]) -> Callable[..., bool]:
        def decided(padding_mask: Any = None, *args: Any, **kwargs: Any) -> bool:
            del padding_mask
            return decide(None, *args, **kwargs)

        return decided

    found: dict[tuple[Any, str], Any] = {
        (module, name): without_padding(getattr(module, name))
        for name in _DECIDE_BY_PADDING
        if hasattr(module, name)
    }
    if hasattr(module, "find_packed_sequence_indices"):
        found[module, "find_packed_sequence_indices"] = lambda *_, **__: None
    return found
