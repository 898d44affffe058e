"""How do fitted network parameters get into a profile without disturbing the rest?

Only the lines of the fitted parameters change; comments, order and all other numbers
stay as their authors wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simulator.described.base import file_name_of_field
from simulator.described.cluster.network import ScaleUp
from simulator.described.documents import data_folder
from simulator.units import format_quantity


@dataclass(frozen=True)
class Fit:
    """Parameters of one block of a network, and what they rest on.

    Attributes:
        part: ``scale_up`` or ``fabric``.
        values: Parameter name, with unit suffix, to value in SI units.
        rows: Measured rows that they were fitted to.
        median_error: Median absolute relative error over these rows.
        held: Parameters that the rows cannot tell, left at their priors.
        spreads: Standard deviation of the logarithm of the others.
    """

    part: str
    values: Mapping[str, float]
    rows: int
    median_error: float
    held: tuple[str, ...] = ()
    spreads: Mapping[str, float] = field(default_factory=dict)

    def for_links(self, scale_up: ScaleUp) -> Fit:
        """The fit without what ``scale_up`` cannot do."""
        if scale_up.in_switch_reduction:
            return self
        values = {k: v for k, v in self.values.items() if not k.startswith("in_switch")}
        return replace(self, values=values)


def write_profile_fit(profile: str, fit: Fit, reference: str) -> None:
    """Put a fit, and the ``reference`` it rests on, into a shipped profile's network block."""
    path = data_folder("hardware_profiles") / f"{profile}.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(with_profile_fit(text, fit, reference), encoding="utf-8")


def write_fabric_fit(kind: str, fit: Fit, reference: str) -> None:
    """Put a fit into the fabric library."""
    path = data_folder("hardware_profiles") / "fabrics" / f"{kind}.yaml"
    kept = path.read_text(encoding="utf-8").split("\n", 1)[0]
    lines = [kept, f'source: {{kind: fitted, reference: "{reference}"}}']
    lines += [f"{_name(key)}: {value_text(key, value)}" for key, value in fit.values.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def with_profile_fit(text: str, fit: Fit, reference: str) -> str:
    """The profile's text with the fit's parameters in its ``network`` block."""
    header = f"  {fit.part}:\n"
    start = text.index(header, text.index("\nnetwork:")) + len(header)
    length = re.match(r"(?:    .*\n)*", text[start:])
    end = start + (length.end() if length else 0)
    anchor = f"{fit.part}_fit"
    names = {_name(key) for key in fit.values}
    kept = [
        line
        for line in text[start:end].splitlines()
        if line.strip().split(":")[0] not in names and f"*{anchor}" not in line
    ]
    kind = "assumed" if reference.startswith("as ") else "fitted"
    source = f'&{anchor} {{kind: {kind}, reference: "{reference}"}}'
    for key, value in fit.values.items():
        kept.append(f"    {_name(key)}: {{value: {value_text(key, value)}, source: {source}}}")
        source = f"*{anchor}"
    return text[:start] + "\n".join(kept) + "\n" + text[end:]


def _name(field: str) -> str:
    return file_name_of_field(field)


def value_text(field: str, value: float) -> str:
    """The value as files spell it; times keep their three digits."""
    if field.endswith("_bytes_per_s"):
        return format_quantity(value, "bytes_per_s")
    if field.endswith("_bytes"):
        return format_quantity(value, "bytes")
    return format_quantity(value, "s") if field.endswith("_s") else f"{value:g}"
