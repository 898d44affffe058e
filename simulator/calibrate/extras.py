"""Are the libraries there that only measuring and fitting need?"""

from __future__ import annotations

from importlib.util import find_spec

from simulator.errors import InputError


def require(library: str, purpose: str) -> None:
    """Refuses to go on without a library of the ``calibrate`` extra.

    Raises:
        InputError: It is not installed.
    """
    if find_spec(library) is None:
        hint = "install the extra: pip install 'clustersim[calibrate]'"
        raise InputError.single(library, f"{purpose}, and is not installed", hint=hint)
