"""How are the degrees of a plan, and changes of a job, put into a few words?"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any


def degrees_text(degrees: Mapping[str, int], dp: int) -> str:
    """The degrees above 1, and always that of data parallelism: ``tp2 pp4 dp1``."""
    divided = {name: degree for name, degree in degrees.items() if degree > 1}
    return " ".join(f"{name}{degree}" for name, degree in {**divided, "dp": dp}.items())


def options_text(changes: Mapping[str, Any]) -> str:
    """Changes as a shell takes them: ``--set plan.tp=2 --set batch.micro=1``."""
    words = (f"{path}={value}".replace("=True", "=true") for path, value in changes.items())
    return " ".join(f"--set {shlex.quote(word.replace('=False', '=false'))}" for word in words)
