"""When does ``generate`` of ``transformers`` end?

Whether a sequence has ended follows from the tokens that are drawn, which have no values. So every
sequence gets all the tokens that it may have, ``max_new_tokens``; a note says so. A mean length is
stated there.

Source: ``GenerationMixin._sample`` and ``StoppingCriteriaList`` of transformers 5.17.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_NOTE = (
    "generate() is taken to make all the tokens that it may: "
    "where sequences end earlier, give their mean length as max_new_tokens"
)


def whole_generation(note: Callable[[str], None]) -> dict[tuple[Any, str], Any]:
    """Attributes of transformers, where it is imported, with which sequences reach their length.

    Args:
        note: Told how long they are taken to be.
    """
    criteria = sys.modules.get("transformers.generation.stopping_criteria")
    library = sys.modules.get("transformers.generation.utils")
    if criteria is None or library is None:
        return {}
    stops: Any = criteria.StoppingCriteriaList
    mixin: Any = library.GenerationMixin
    judge, go_on = stops.__call__, mixin._has_unfinished_sequences
    ended: list[bool] = []

    def judged(self: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        ended[:] = [self.max_length is not None and input_ids.shape[1] >= self.max_length]
        return judge(self, input_ids, *args, **kwargs)

    def goes_on(self: Any, _: Any, synced_gpus: bool, device: Any) -> bool:
        note(_NOTE)
        is_over = bool(ended and ended.pop())
        return go_on(self, is_over, synced_gpus, device) and not is_over

    return {(stops, "__call__"): judged, (mixin, "_has_unfinished_sequences"): goes_on}
