"""The package ``simulator`` under the name that it is installed by.

``import clustersim`` and ``import simulator`` give the same functions; neither loads what is heavy
before it is used. The file stands apart because it is installed beside the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import simulator

if TYPE_CHECKING:
    from simulator import *  # noqa: F403 - the same names

__all__ = simulator.__all__
__version__ = simulator.__version__


def __getattr__(name: str) -> Any:
    """What the package ``simulator`` has."""
    return getattr(simulator, name)


def __dir__() -> list[str]:
    return sorted(__all__)
