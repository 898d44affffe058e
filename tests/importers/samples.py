"""Which sample files of training frameworks does a test read, and how does it change one?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulator.importers.assembly import Given

FILES = Path(__file__).parent / "files"

Reader = Callable[..., Any]


def read(reader: Reader, name: str, **given: Any) -> Any:
    return reader(FILES / name, Given(**given))


def plan_of(job: Any) -> dict[str, Any]:
    return dict(job.document["plan"])


def edited(folder: Path, name: str, *replacements: tuple[str, str]) -> Path:
    """A copy of a sample file with some texts replaced; each must be there."""
    text = (FILES / name).read_text(encoding="utf-8")
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path
