"""How is PyTorch's caching allocator set (``PYTORCH_CUDA_ALLOC_CONF``)?"""

from __future__ import annotations

import math
from typing import NamedTuple


class AllocatorSettings(NamedTuple):
    """What decides which blocks are cut, and when unused ones go back to the driver.

    Attributes:
        expandable_segments: Whether pages are mapped into one segment that grows, instead of asking
            the driver for separate ones.
        max_split_bytes: Blocks of this size and more are never cut, nor given to requests that are
            smaller (``max_split_size_mb``) [B].
        collects_above_share: Part of the device's memory above which segments that have been unused
            for long are returned before more is asked for (``garbage_collection_threshold``).
    """

    expandable_segments: bool = False
    max_split_bytes: float = math.inf
    collects_above_share: float = math.inf
