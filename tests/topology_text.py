"""Text of nvidia-smi topo -m and rocm-smi --showtopo for made-up machines."""

from __future__ import annotations

from collections.abc import Sequence

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges
  PXB  = Connection traversing multiple PCIe bridges
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""

CUBE_MESH = (
    "X NV1 NV1 NV2 NV2 SYS SYS SYS",
    "NV1 X NV2 NV1 SYS NV2 SYS SYS",
    "NV1 NV2 X NV2 SYS SYS NV1 SYS",
    "NV2 NV1 NV2 X SYS SYS SYS NV1",
    "NV2 SYS SYS SYS X NV1 NV1 NV2",
    "SYS NV2 SYS SYS NV1 X NV2 NV1",
    "SYS SYS NV1 SYS NV1 NV2 X NV2",
    "SYS SYS SYS NV1 NV2 NV1 NV2 X",
)
"""A DGX-1 with V100."""


def uniform(gpus: int, link: str) -> list[str]:
    """Rows in which every GPU has the same link to every other."""
    return [" ".join("X" if i == j else link for j in range(gpus)) for i in range(gpus)]


def nvidia_text(rows: Sequence[str], nic_paths: Sequence[str] = (), coloured: bool = False) -> str:
    """The matrix; ``nic_paths`` has a row per NIC with its path to each GPU."""
    gpus, nics = len(rows), len(nic_paths)
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    heading = "\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    lines = [f"\x1b[4m{heading}\x1b[0m" if coloured else heading]
    for i, row in enumerate(rows):
        paths = [path.split()[i] for path in nic_paths]
        cells = [f" {cell} " if cell == "X" else cell for cell in [*row.split(), *paths]]
        lines.append("\t".join([f"GPU{i}", *cells, "0-55", "0", "", "N/A"]))
    for i, path in enumerate(nic_paths):
        others = [" X " if i == j else "NODE" for j in range(nics)]
        lines.append("\t".join([f"NIC{i}", *path.split(), *others]))
    legend = ["", "NIC Legend:", "", *(f"  NIC{i}: mlx5_{i}" for i in range(nics))]
    return "\n".join(lines) + "\n" + LEGEND + ("\n".join(legend) + "\n" if nics else "")


def amd_text(gpus: int, link: str) -> str:
    """The matrices of weights, hops and link types."""
    names = [f"GPU{i}" for i in range(gpus)]

    def matrix(title: str, cell: str) -> str:
        rows = [
            f"{names[i]:<7}" + "".join(f"{'0' if i == j else cell:<13}" for j in range(gpus))
            for i in range(gpus)
        ]
        heading = " " * 7 + "".join(f"{name:<13}" for name in names)
        return "\n".join([f"{f' {title} ':=^80}", heading, *rows]) + "\n\n"

    return (
        matrix("Weight between two GPUs", "15")
        + matrix("Hops between two GPUs", "1")
        + matrix("Link Type between two GPUs", link)
        + f"{' Numa Nodes ':=^80}\nGPU[0]\t\t: (Topology) Numa Node: 0\n"
    )
