"""What does the matrix of links that a driver prints say?

Reads ``nvidia-smi topo -m`` and the link types of ``rocm-smi --showtopo``. Nothing is
concluded here; :mod:`simulator.importers.node_topology` does that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.errors import InputError
from simulator.files import read_text

NVIDIA, AMD = "nvidia-smi topo -m", "rocm-smi --showtopo"
SELF = "X"

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU\d+\Z")
_NVIDIA_LINK = re.compile(r"(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC)\Z")
_AMD_LINK = re.compile(r"(?:0|XGMI|PCIE)\Z")
_AMD_TITLE = "Link Type between two GPUs"
_NIC_NAME = re.compile(r"^\s*(NIC\d+):\s*(\S+)\s*$")
_OLD_NAMES = {"SOC": "SYS", "0": SELF}
"""Paths between sockets were called SOC by old drivers; AMD writes 0 for a GPU itself."""


@dataclass(frozen=True, slots=True)
class TopologyMatrix:
    """Links between the GPUs of one node, and from them to its NICs.

    Attributes:
        program: What printed it, ``NVIDIA`` or ``AMD``.
        links: Kind of link from GPU to GPU; :data:`SELF` on the diagonal.
        nics: Kind of path from each NIC to each GPU, by name of the NIC.
    """

    program: str
    links: Sequence[Sequence[str]]
    nics: Mapping[str, Sequence[str]]

    @property
    def gpus(self) -> int:
        """GPUs of the node."""
        return len(self.links)


def read_topology_matrix(path: str | Path) -> TopologyMatrix:
    """The matrix in a file.

    Raises:
        InputError: The file holds no such matrix, or an unreadable one; with the line.
    """
    wanted = f"give the output of {NVIDIA} or {AMD}"
    return parse_topology_matrix(read_text(Path(path), wanted, errors="replace"), Path(path).name)


def parse_topology_matrix(text: str, file: str = "") -> TopologyMatrix:
    """The matrix in a text; ``file`` names it in error messages.

    Raises:
        InputError: There is no such matrix, or an unreadable one; with the line.
    """
    lines = _COLOUR.sub("", text).splitlines()
    title = next((i for i, line in enumerate(lines) if _AMD_TITLE in line), None)
    program, allowed = (NVIDIA, _NVIDIA_LINK) if title is None else (AMD, _AMD_LINK)
    first = 0 if title is None else title + 1
    head = next((i for i in range(first, len(lines)) if _is_heading(lines[i])), None)
    if head is None:
        rule = f"is no output of {NVIDIA} or {AMD}: no line is headed GPU0"
        hint = "give the whole text, from the line with GPU0 GPU1 ... on"
        raise InputError.single("", rule, hint=hint, file=file)
    columns = _columns(lines[head])
    cells = _cells(lines, head, columns, allowed, file)
    gpus = [name for name in columns if _GPU.match(name)]
    links = [[cells[name][columns.index(other)] for other in gpus] for name in gpus]
    _check_symmetry(gpus, links, head, file)
    names = {found[1]: found[2] for line in lines if (found := _NIC_NAME.match(line))}
    nics = {
        names.get(name, name): [row[columns.index(name)] for row in (cells[gpu] for gpu in gpus)]
        for name in columns
        if name not in gpus
    }
    return TopologyMatrix(program, links, nics)


def _is_heading(line: str) -> bool:
    return line.split()[:1] == ["GPU0"] and not any(
        _NVIDIA_LINK.match(cell) or _AMD_LINK.match(cell) for cell in line.split()[1:]
    )


def _columns(heading: str) -> list[str]:
    """Names of the columns that are devices: those before the affinities."""
    words = heading.split()
    return words[: words.index("CPU")] if "CPU" in words else words


def _cells(
    lines: Sequence[str], head: int, columns: Sequence[str], allowed: re.Pattern[str], file: str
) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for count, line in enumerate(lines[head + 1 :], start=head + 2):
        name, *words = line.split() or [""]
        if name not in columns or name in rows:
            continue
        row = words[: len(columns)]
        wrong = next((word for word in row if not allowed.match(word)), None)
        if wrong is not None:
            rule = f"{wrong!r} in the row of {name} is no link that is known"
            hint = f"give what {NVIDIA} or {AMD} prints, unwrapped"
            raise InputError.single(f"line {count}", rule, hint=hint, file=file)
        if len(row) < len(columns):
            rule = f"the row of {name} has {len(row)} of {len(columns)} columns"
            hint = "give the text unwrapped and uncut"
            raise InputError.single(f"line {count}", rule, hint=hint, file=file)
        rows[name] = [_OLD_NAMES.get(word, word) for word in row]
    missing = [name for name in columns if _GPU.match(name) and name not in rows]
    if missing:
        rule = f"has no row of {', '.join(missing)}, which its heading names"
        raise InputError.single(f"line {head + 1}", rule, hint="give the text uncut", file=file)
    return rows


def _check_symmetry(
    gpus: Sequence[str], links: Sequence[Sequence[str]], head: int, file: str
) -> None:
    for i, row in enumerate(links):
        for j, link in enumerate(row):
            if (link == SELF) != (i == j) or link != links[j][i]:
                rule = f"says {link} from {gpus[i]} to {gpus[j]} and {links[j][i]} back"
                hint = "give the text as it was printed"
                raise InputError.single(f"line {head + 2 + i}", rule, hint=hint, file=file)
