"""What node do the links between its GPUs and NICs make?

The matrix tells how many GPUs and NICs a node has, what joins the GPUs and, with the rate
of one NVLink, how fast that is. It does not tell the rates of NICs or of PCIe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simulator.described.cluster.hardware import HardwareProfile, SourceKind
from simulator.described.cluster.network import ScaleUpKind
from simulator.described.foreign_config import ImportReport
from simulator.errors import InputError
from simulator.files import read_text
from simulator.units import format_quantity, format_rate, parse_quantity

NVIDIA, AMD = "nvidia-smi topo -m", "rocm-smi --showtopo"
_SELF = "X"

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU\d+\Z")
_NVIDIA_LINK = re.compile(r"(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC)\Z")
_AMD_LINK = re.compile(r"(?:0|XGMI|PCIE)\Z")
_AMD_TITLE = "Link Type between two GPUs"
_NIC_NAME = re.compile(r"^\s*(NIC\d+):\s*(\S+)\s*$")
_OLD_NAMES = {"SOC": "SYS", "0": _SELF}
"""Paths between sockets were called SOC by old drivers; AMD writes 0 for a GPU itself."""


@dataclass(frozen=True, slots=True)
class TopologyMatrix:
    """Links between the GPUs of one node, and from them to its NICs.

    Attributes:
        program: What printed it, ``NVIDIA`` or ``AMD``.
        links: Kind of link from GPU to GPU; :data:`_SELF` on the diagonal.
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
        rule = f"is not output of {NVIDIA} or {AMD}: no line is headed GPU0"
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
            rule = f"{wrong!r} in the row of {name} is not a known link"
            hint = f"give what {NVIDIA} or {AMD} prints, without line breaks"
            raise InputError.single(f"line {count}", rule, hint=hint, file=file)
        if len(row) < len(columns):
            rule = f"the row of {name} has {len(row)} of {len(columns)} columns"
            hint = "give the complete text, without line breaks"
            raise InputError.single(f"line {count}", rule, hint=hint, file=file)
        rows[name] = [_OLD_NAMES.get(word, word) for word in row]
    missing = [name for name in columns if _GPU.match(name) and name not in rows]
    if missing:
        rule = f"has no row of {', '.join(missing)}, which its heading names"
        raise InputError.single(f"line {head + 1}", rule, hint="give the complete text", file=file)
    return rows


def _check_symmetry(
    gpus: Sequence[str], links: Sequence[Sequence[str]], head: int, file: str
) -> None:
    for i, row in enumerate(links):
        for j, link in enumerate(row):
            if (link == _SELF) != (i == j) or link != links[j][i]:
                rule = f"says {link} from {gpus[i]} to {gpus[j]} and {links[j][i]} back"
                hint = "give the text as it was printed"
                raise InputError.single(f"line {head + 2 + i}", rule, hint=hint, file=file)


_NVLINKS: Mapping[str, tuple[int, float]] = {
    "v100": (6, 25e9), "a": (12, 25e9), "h": (18, 25e9), "gh": (18, 25e9), "b": (18, 50e9),
    "gb": (18, 50e9),
}  # fmt: skip
"""NVLinks of a GPU and the payload rate of one of them, one way [B/s], by family.

Source: NVIDIA data sheets of V100 (150 GB/s over 6 links), A100 (300 over 12), H100 (450 over
18) and B200 (900 over 18); H800 and A800 have fewer links of the same rate.
"""

_NV = re.compile(r"NV(\d+)\Z")
_NEAR = ("PIX", "PXB")
"""Paths through PCIe switches only: the NIC sits beside the GPU."""

_DGX1 = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
"""NVLinks between the GPUs of a DGX-1 with V100.

Source: nvidia-smi topo -m of such machines, as several people have published it.
"""


@dataclass(frozen=True, slots=True)
class StatedValue:
    """A value that the matrix tells: as files spell it, and where it comes from."""

    value: str | int
    kind: SourceKind
    reference: str


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """What changes in a profile, by dotted path, and the report of the import."""

    values: Mapping[str, StatedValue]
    report: ImportReport


@dataclass(frozen=True, slots=True)
class _Links:
    """What joins the GPUs: kind, rate of one GPU one way [B/s], and where that comes from."""

    kind: ScaleUpKind
    bandwidth_bytes_per_s: float
    kind_of_source: SourceKind
    reference: str
    assumed: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()


def node_topology(
    matrix: TopologyMatrix,
    base: HardwareProfile,
    file: str,
    *,
    nics: int | None = None,
    nic_rate: str | None = None,
) -> NodeTopology:
    """The node that a matrix describes, as changes to a profile.

    Args:
        matrix: What the driver printed.
        base: Profile of the same GPU; gives all that the matrix does not tell.
        file: Where the matrix was read.
        nics: NICs that carry collectives, where the matrix misleads.
        nic_rate: Line rate of one NIC, for example "400 Gbit/s".

    Raises:
        InputError: The links do not suit the GPU of ``base``, or the rate has no unit.
    """
    links = _links(matrix, base, file)
    seen = f"{matrix.program}, {file}"
    values = {
        "network.gpus_per_node": StatedValue(matrix.gpus, "measured", seen),
        "network.scale_up.kind": StatedValue(links.kind, "measured", seen),
        "network.scale_up.bandwidth": StatedValue(
            format_quantity(links.bandwidth_bytes_per_s, "bytes_per_s"),
            links.kind_of_source,
            links.reference,
        ),
    }
    assumed = list(links.assumed)
    up = base.network.scale_up
    if up.gpus > base.network.gpus_per_node:
        assumed.append(f"nodes share a domain of {up.gpus} GPUs, as in {base.name}")
    else:
        values["network.scale_up.gpus"] = StatedValue(matrix.gpus, "measured", seen)
    if up.in_switch_reduction and links.kind != "nvswitch":
        values["network.scale_up.in_switch_reduction"] = StatedValue("false", "measured", seen)
    if links.kind != up.kind:
        assumed.append(f"efficiency and latencies of {up.kind} links, as in {base.name}")
    assumed.append(f"name and description are still those of {base.name}")
    paths = ("which NIC is near which GPU",) if matrix.nics else ()
    nic_values, nic_assumed = _nics(matrix, base, seen, nics, nic_rate)
    report = ImportReport(
        source=f"{seen}: {matrix.gpus} GPUs, {len(matrix.nics)} NICs",
        understood=tuple(
            f"{path} {stated.value}" for path, stated in (values | nic_values).items()
        ),
        ignored=("CPU and NUMA affinity",),
        assumed=(*assumed, *nic_assumed),
        unsupported=(*links.unsupported, *paths),
    )
    return NodeTopology(values | nic_values, report)


def _links(matrix: TopologyMatrix, base: HardwareProfile, file: str) -> _Links:
    pairs = [link for row in matrix.links for link in row if link != _SELF]
    if not pairs:
        up = base.network.scale_up
        return _Links(up.kind, up.bandwidth_bytes_per_s, "assumed", f"as {base.name}: one GPU")
    if matrix.program == AMD:
        return _amd_links(matrix, pairs, base, file)
    counts = [[_nvlinks(link) for link in row] for row in matrix.links]
    if any(any(row) for row in counts):
        return _nvidia_links(counts, base, file)
    return _pcie_links(base, file, "shows no NVLink")


def _nvidia_links(counts: Sequence[Sequence[int]], base: HardwareProfile, file: str) -> _Links:
    links, rate = _nvlinks_of_gpu(base, file)
    least, *more = {count for i, row in enumerate(counts) for j, count in enumerate(row) if i != j}
    if not more:
        # Links that cannot all be a peer's own lead to a switch.
        shared = least == links or least * (len(counts) - 1) > links
        if shared:
            return _nvlink("nvswitch", least, rate)
        return _nvlink("full-mesh", least * (len(counts) - 1), rate)
    if all(sorted(row) == [0, 0, 0, 0, 1, 1, 2, 2] for row in counts):
        if links != sum(counts[0]):
            rule = f"shows the links of a DGX-1 with V100, and {base.name} has {links} NVLinks"
            hint = "use --profile v100-sxm2-32gb"
            raise InputError.single("", rule, hint=hint, file=file)
        is_dgx1 = tuple(map(tuple, counts)) == _DGX1
        other = "groups of fewer than 8 GPUs have the links of a DGX-1, whose order differs"
        return _nvlink("hybrid-cube-mesh", sum(counts[0]), rate, () if is_dgx1 else (other,))
    pcie = _pcie_links(base, file, "has NVLinks between some of its GPUs only")
    bridges = "NVLinks between some GPUs only; all traffic is read as PCIe"
    return replace(pcie, unsupported=(bridges,))


def _nvlinks(link: str) -> int:
    found = _NV.match(link)
    return int(found[1]) if found else 0


def _nvlinks_of_gpu(base: HardwareProfile, file: str) -> tuple[int, float]:
    family = base.name.split("-", maxsplit=1)[0].lower()
    letters = family.rstrip("0123456789")
    found = _NVLINKS.get(family) or _NVLINKS.get(letters)
    if found is None:
        rule = f"shows NVLinks, whose bandwidth on {base.name} is unknown"
        hint = "use --profile of a GPU with NVLink; its name begins with the GPU's, as h100-"
        raise InputError.single("", rule, hint=hint, file=file)
    return found


def _nvlink(
    kind: ScaleUpKind, links: int, rate_bytes_per_s: float, assumed: tuple[str, ...] = ()
) -> _Links:
    reference = f"{links} NVLinks of {format_rate(rate_bytes_per_s)} each, NVIDIA data sheets"
    return _Links(kind, links * rate_bytes_per_s, "datasheet", reference, assumed)


def _pcie_links(base: HardwareProfile, file: str, what: str) -> _Links:
    up = base.network.scale_up
    if up.kind != "pcie":
        rule = f"{what}, but the GPUs of {base.name} are joined by {up.kind}"
        hint = "use --profile of a PCIe card, or nvidia-smi topo -m (-mp hides the NVLinks)"
        raise InputError.single("", rule, hint=hint, file=file)
    reference = f"as {base.name}: the matrix does not state the PCIe generation"
    said = f"{format_rate(up.bandwidth_bytes_per_s)} of PCIe per GPU, as in {base.name}"
    return _Links("pcie", up.bandwidth_bytes_per_s, "assumed", reference, (said,))


def _amd_links(
    matrix: TopologyMatrix, pairs: Sequence[str], base: HardwareProfile, file: str
) -> _Links:
    up = base.network.scale_up
    if set(pairs) == {"PCIE"}:
        return _pcie_links(base, file, "shows no xGMI")
    if set(pairs) != {"XGMI"} or up.kind != "full-mesh":
        rule = "has xGMI between some of its GPUs only" if "PCIE" in pairs else "shows xGMI links"
        hint = "use --profile of a GPU on a full mesh of xGMI, such as mi300x"
        raise InputError.single("", f"{rule}: {base.name} has {up.kind}", hint=hint, file=file)
    link = up.bandwidth_bytes_per_s / (up.gpus - 1)
    reference = f"{matrix.gpus - 1} xGMI links of {format_rate(link)} each, as in {base.name}"
    return _Links("full-mesh", (matrix.gpus - 1) * link, "datasheet", reference)


def _nics(
    matrix: TopologyMatrix,
    base: HardwareProfile,
    seen: str,
    given_nics: int | None,
    rate: str | None,
) -> tuple[dict[str, StatedValue], list[str]]:
    near = [name for name, paths in matrix.nics.items() if set(paths) & set(_NEAR)]
    far = [name for name in matrix.nics if name not in near]
    values: dict[str, StatedValue] = {}
    assumed = []
    if given_nics is not None:
        values["network.fabric.nics_per_node"] = StatedValue(
            given_nics, "assumed", "given with the matrix"
        )
    elif matrix.nics:
        values["network.fabric.nics_per_node"] = StatedValue(
            len(near) or len(far), "measured", seen
        )
        if near and far:
            assumed.append(f"{', '.join(far)} carry no collectives: not near a GPU (PIX, PXB)")
    else:
        count = base.network.fabric.nics_per_node
        assumed.append(f"{count} NICs per node, as in {base.name}: the matrix lists none")
    if rate is None:
        nic = format_quantity(base.network.fabric.nic_bytes_per_s, "bytes_per_s")
        assumed.append(f"{nic} per NIC, as in {base.name}: the matrix does not state it")
    else:
        try:
            parse_quantity(rate, "bytes_per_s")
        except ValueError as error:
            raise InputError.single("--nic", str(error)) from error
        values["network.fabric.nic"] = StatedValue(rate, "assumed", "given with the matrix")
    return values, assumed
