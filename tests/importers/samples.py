"""Which sample files of training frameworks does a test read, and how does it change one?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from simulator.importers.assembly import Given

HERE = Path(__file__).parent
FILES = HERE / "files"

FORMAT_OF = {
    "megatron": "megatron", "launch": "megatron", "deepspeed": "deepspeed", "ds": "deepspeed",
    "titan": "torchtitan", "llama3": "torchtitan", "accelerate": "accelerate",
    "nemo": "nemo", "bridge": "nemo", "axolotl": "axolotl", "foundry": "llm-foundry",
    "llamafactory": "llamafactory", "maxtext": "maxtext", "nanotron": "nanotron",
    "neox": "gpt-neox", "primus": "primus", "swift": "ms-swift", "torchtune": "torchtune",
    "xtuner": "xtuner", "automodel": "automodel",
}  # fmt: skip
"""Which format a sample file has, by how its name begins."""

Reader = Callable[..., Any]


def files_of_formats() -> Iterator[tuple[Path, str]]:
    """Every sample file of a training framework, and its format."""
    for folder in ("files", "public", "recipes"):
        for path in sorted((HERE / folder).iterdir()):
            name = FORMAT_OF.get(re.split(r"[_.0-9]", path.name)[0])
            name = name or FORMAT_OF.get(path.name.split("_")[0])
            if path.is_file() and name:
                yield path, name


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
