"""Which rank classes stand for all, where not all can be shown?"""

from __future__ import annotations

import numpy as np


def spread(count: int, limit: int | None) -> list[int]:
    """At most ``limit`` of ``count`` indices, evenly from the first to the last."""
    if limit is None or limit >= count:
        return list(range(count))
    return sorted({round(i) for i in np.linspace(0, count - 1, max(limit, 1))})
