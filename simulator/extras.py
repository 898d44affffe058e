"""Are the libraries there that only some commands need?"""

from __future__ import annotations

import re
from importlib.util import find_spec

from simulator.errors import InputError

_EXTRA_OF = {
    "torch": "calibrate",
    "scipy.optimize": "calibrate",
    "distributed": "dask",
    "pyarrow": "parquet",
    "google.protobuf": "chakra",
    "mcp": "mcp",
    "starlette": "studio",
    "uvicorn": "studio",
}
"""Extra of the distribution that brings a library; others are of no extra."""

_ALONE = ("scipy",)
"""Libraries that commands need without the others of their extra; fits need no torch."""


def require(library: str, purpose: str) -> None:
    """Refuse to go on without a library of one of the extras.

    Args:
        library: One of those above, or one of no extra.
        purpose: What it does, for the message: ``fits``.

    Raises:
        InputError: It is not installed.
    """
    try:
        is_there = find_spec(library) is not None
    except ModuleNotFoundError:  # of the package that it is a part of
        is_there = False
    if not is_there:
        words = _libraries(library) if library in _EXTRA_OF else library
        hint = f"install it: pip install {words}"
        raise InputError.single(library, f"{purpose}, and is not installed", hint=hint)


def _libraries(library: str) -> str:
    """What pip has to install for it: all of its extra, since clustersim is on no index."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        listed = requires("clustersim") or []
    except PackageNotFoundError:  # run from a clone
        listed = []
    extra, (name, *_) = _EXTRA_OF[library], library.split(".")
    marker = re.compile(rf"""extra == ["']{extra}["']""")
    named = [each.partition(";")[0].strip() for each in listed if marker.search(each)]
    if name in _ALONE:
        named = [each for each in named if re.match(rf"{name}\b", each)]
    words = [f"'{each}'" for each in named]
    return " ".join(words) or f"'.[{extra}]' in a clone of clustersim"
