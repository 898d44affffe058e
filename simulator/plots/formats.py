"""In which formats is a picture written? Loads nothing, so that a command may ask before it works.

matplotlib writes the date into some of them unless it is told otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

METADATA: Mapping[str, Mapping[str, None]] = MappingProxyType(
    {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
)
"""What the files of each suffix leave out, so that the same picture gives the same bytes."""

PICTURES = tuple(METADATA)
"""How the name of a picture may end."""
