"""Which hardware profile describes the GPU that a table names, however it spells it?

"NVIDIA A100-SXM4-80GB", "A100 80G" and "a100-sxm-80gb" are one device; an A100 on a PCIe card, or
one with other memory, is none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_HOST_MEMORY_GB = {"gh200": (120, 480)}
"""Memory that names of a device state and that is its host's: Grace's beside Hopper."""

_SMALLER_TWINS_GB = {"v100": {16: 32}}
"""Memory sizes of a device that differ in nothing else, and the size that profiles have."""

_CARDS = ("l40s", "4090")
"""Devices that exist as PCIe cards only."""

_RACKS = ("gb200", "gb300")
"""Devices that exist in racks only, whatever form a table calls them."""

_LARGEST_SIZE_ERROR = 0.1
"""Names state a memory before or after what is held back from it: 192 and 180 GB are one B200."""


@dataclass(frozen=True, slots=True)
class _Named:
    """What a name says of a device."""

    device: str
    form: str
    memory_gb: int | None
    words: frozenset[str]


def profile_name_of(gpu: str, names: Iterable[str]) -> str | None:
    """The profile among ``names`` that describes a GPU, or None.

    The device must be the same, and form and memory where both state them; of several, the one
    with most words in common wins, then the one that says least, on an SXM module.
    """
    shipped = list(names)
    if gpu.strip().lower() in shipped:
        return gpu.strip().lower()
    given = _named(gpu)
    found = [(name, _named(name)) for name in shipped]
    fitting = [(name, other) for name, other in found if _may_be(given, other)]

    def likeness(candidate: tuple[str, _Named]) -> tuple[int, int, int, str]:
        name, other = candidate
        shared, unsaid = given.words & other.words, other.words - given.words
        special = sum(word in ("hbm2e", "500w", "dgx1", "sxm3") for word in unsaid)
        return len(shared), -special, other.form == "sxm", name

    return max(fitting, key=likeness, default=(None, None))[0]


def stated_memory_gb(gpu: str) -> int | None:
    """Memory that the name of a GPU states [GB], where it is not that of its profile."""
    given = _named(gpu)
    twins = _SMALLER_TWINS_GB.get(given.device, {})
    return given.memory_gb if given.memory_gb in twins else None


def _named(gpu: str) -> _Named:
    text = re.sub(r"(?<=\d)x(?=[a-z])|^\d+ ?x ", " ", gpu.lower())
    text = re.sub(r"dgx-1\b", "dgx1", re.sub(r"(?<=[0-9s])(sxm|pcie|nvl)", r" \1", text))
    text = re.sub(r"(\d+) ?(?:gb|gib|g)\b", r" \1gb ", text)
    text = re.sub(r"(\d+) ?w\b", r" \1w ", text)
    words = [word for word in re.split(r"[^a-z0-9]+", text.replace("rtx", "rtx ")) if word]
    device = next((word for word in words if re.fullmatch(r"[a-z]{0,2}\d{2,4}[a-z]?", word)), "")
    sizes = [int(word[:-2]) for word in words if re.fullmatch(r"\d+gb", word)]
    of_device = [size for size in sizes if size not in _HOST_MEMORY_GB.get(device, ())]
    forms = [word for word in words if word.startswith(("sxm", "pcie", "nvl"))]
    form = re.sub(r"\d+$", "", forms[0]) if forms else ""
    # Generations of the module tell V100s apart; all later ones have one only.
    kept = frozenset(word if device == "v100" else re.sub(r"^sxm\d", "sxm", word) for word in words)
    return _Named(device, form, of_device[0] if of_device else None, kept)


def _may_be(given: _Named, other: _Named) -> bool:
    """Whether nothing that both names state tells the two apart."""
    if not given.device or given.device != other.device:
        return False
    return _same_form(given, other) and _same_memory(given, other) and _same_module(given, other)


def _same_form(given: _Named, other: _Named) -> bool:
    if given.device in _RACKS or not given.form:
        return True
    return given.form == (other.form or ("pcie" if given.device in _CARDS else "sxm"))


def _same_memory(given: _Named, other: _Named) -> bool:
    if given.memory_gb is None or other.memory_gb is None:
        return True
    size = _SMALLER_TWINS_GB.get(given.device, {}).get(given.memory_gb, given.memory_gb)
    return abs(size - other.memory_gb) <= _LARGEST_SIZE_ERROR * other.memory_gb


def _same_module(given: _Named, other: _Named) -> bool:
    modules = [{w for w in each.words if re.fullmatch(r"sxm\d", w)} for each in (given, other)]
    return not all(modules) or modules[0] == modules[1]
