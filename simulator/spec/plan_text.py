"""How are the degrees of a plan put into a few words?"""

from __future__ import annotations

from collections.abc import Mapping


def degrees_text(degrees: Mapping[str, int], dp: int) -> str:
    """The degrees above 1, and always that of data parallelism: ``tp2 pp4 dp1``."""
    divided = {name: degree for name, degree in degrees.items() if degree > 1}
    return " ".join(f"{name}{degree}" for name, degree in {**divided, "dp": dp}.items())
