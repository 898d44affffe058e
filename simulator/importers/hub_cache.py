"""Where on this machine lies the ``config.json`` of a model of the Hugging Face hub?

The hub's client keeps what it has downloaded as ``models--ORG--NAME/snapshots/REVISION/``, and in
``refs/main`` which revision ``main`` was. Source: documentation of huggingface_hub, *Understand
caching*. ``HF_HUB_CACHE``, ``HF_HOME`` or ``XDG_CACHE_HOME`` say where, in this order.
Nothing is ever downloaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
_CONFIG = "config.json"


def is_hub_name(text: str) -> bool:
    """Whether a text can be a repository of the hub, ``ORG/NAME``, and no file of that name is."""
    return bool(_REPOSITORY.fullmatch(text)) and ".." not in text and not Path(text).exists()


def hub_cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Folder in which the hub's client keeps repositories, whether or not it exists."""
    if own := environment.get("HF_HUB_CACHE"):
        return Path(own).expanduser()
    if home := environment.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    caches = environment.get("XDG_CACHE_HOME", "~/.cache")
    return Path(caches).expanduser() / "huggingface" / "hub"


def cached_config(repository: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The ``config.json`` of a repository in the local cache, or None where there is none.

    That of the revision that ``main`` was, else of the only or newest other one that holds it.

    Args:
        repository: ``ORG/NAME``.
        environment: Variables that say where the cache lies.
    """
    organisation, _, name = repository.partition("/")
    folder = hub_cache_folder(environment) / f"models--{organisation}--{name}"
    main = _text(folder / "refs" / "main")
    if main and (found := folder / "snapshots" / main / _CONFIG).is_file():
        return found
    others = [path for path in folder.glob(f"snapshots/*/{_CONFIG}") if path.is_file()]
    return max(others, key=lambda path: path.stat().st_mtime, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
