"""What does one row of a table of measured collectives say, and what answers it?

A row states its own machine: GPUs, nodes, NICs and their rate. These override the
profile as facts about the row; the parameters stay those of the profile, or of the
fabric library where the row names another fabric than the profile's.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from simulator.cost.collectives import CollectiveKind, Group, collective_cost, send_recv_cost
from simulator.errors import InputError
from simulator.importers.measured_collective import (
    ALGORITHM_OF_NAME,
    KIND_OF_NAME,
    SEND_RECV,
    CollectiveRow,
    calls_per_gpu,
)
from simulator.spec.fabrics import library_fabric
from simulator.spec.network import Fabric, FabricKind, Network

LAUNCH_S = 4.5e-6
"""Host time to launch one kernel. Source: 4 to 6 us through the driver (Nsight Systems
guide); tables of one process that drives eight GPUs have floors of 30 to 42 us."""

CALL_S = 0.4e-6
"""Host time to queue one more send or receive of a group call. Source: the 86 us floor of the
all-to-all of one process that drives eight A100s (superbench logs)."""

_COLUMNS = ("id", "collective", "gpu", "gpus", "nodes", "gpus_per_node", "bytes", "time_us")
_ONE_PROCESS = re.compile(r"\b1 process\b|-g [2-9]|Azure/AI-benchmarking-guide")
"""Signs that one process drives all GPUs; the Azure guide runs nccl-tests so."""

_FABRIC_OF_WORD: tuple[tuple[str, FabricKind], ...] = (
    ("infiniband", "ib"),
    ("roce", "roce"),
    ("rdma", "roce"),
    ("efa", "efa"),
    ("tcpxo", "tcpxo"),
    ("tcpx", "tcpx"),
    ("slingshot", "slingshot"),
    ("omni-path", "opa"),
    ("ethernet", "ethernet"),
)
_WIDEST_NODE_GPUS = 16
"""Scale-up domains of more GPUs than this are racks."""


def read_collective_rows(path: str | Path) -> list[CollectiveRow]:
    """The rows of a table of measured collectives, in order.

    Raises:
        InputError: The file cannot be read, lacks a column or has a wrong number.
    """
    file_name = str(path)
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            cells = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError.single("", f"cannot be read: {error}", file=file_name) from error
    if missing:
        rule = f"lacks the columns {', '.join(missing)}"
        raise InputError.single("", rule, hint="see the docstring for them", file=file_name)
    try:
        return [_parsed(row) for row in cells]
    except ValueError as error:
        raise InputError.single("", f"holds a wrong number: {error}", file=file_name) from error


def _parsed(cells: Mapping[str, str]) -> CollectiveRow:
    nodes = int(cells["nodes"])
    nics, nic_gbps = cells.get("nics_per_node"), cells.get("nic_gbps")
    ranks, kind = int(cells["gpus"]), cells["collective"]
    kind = KIND_OF_NAME.get(kind, kind)
    text = f"{cells.get('source', '')} {cells.get('notes', '')}"
    return CollectiveRow(
        id=cells["id"],
        gpu=cells["gpu"],
        kind=kind,
        num_bytes=float(cells["bytes"]),
        ranks=ranks,
        nodes=nodes,
        gpus_per_node=int(cells["gpus_per_node"]),
        nics_per_node=int(float(nics)) if nics else None,
        nic_bytes_per_s=float(nic_gbps) * 1e9 / 8 if nic_gbps else None,
        fabric=_fabric_of(cells.get("inter") or ""),
        algorithm=ALGORITHM_OF_NAME.get((cells.get("algo") or "").lower(), ""),
        one_process=nodes == 1 and _ONE_PROCESS.search(text) is not None,
        calls=calls_per_gpu(kind, ranks, cells.get("nccl_version") or ""),
        links=(cells.get("intra") or "").lower(),
        seconds=float(cells["time_us"]) * 1e-6,
    )


def _fabric_of(name: str) -> FabricKind | None:
    lowered = name.lower()
    return next((kind for word, kind in _FABRIC_OF_WORD if word in lowered), None)


def profile_name_of(gpu: str, names: Iterable[str]) -> str | None:
    """The profile among ``names`` that describes a GPU, or None.

    The first word must be the same ("A100-SXM4-40GB" is never an H100); of several, the
    one with most words in common wins, an SXM module if the form is not stated.
    """
    words = [re.sub(r"^sxm\d*$", "sxm", word) for word in re.split(r"[-\s]+", gpu.lower())]
    exact = gpu.lower().replace(" ", "-")
    candidates = [name for name in names if name.split("-")[0] == words[0]]

    def likeness(name: str) -> tuple[int, int, bool, str]:
        own = name.split("-")
        shared = sum(any(word.startswith(w) for word in own) for w in words)
        verbatim = sum(word in exact for word in own)
        return shared, verbatim, "sxm" in name, name

    return max(candidates, key=likeness, default=None)


def reason_to_skip(row: CollectiveRow) -> str:
    """Why a row cannot be answered, a fact about the row; empty if it can."""
    if row.kind != SEND_RECV and row.kind not in set(CollectiveKind):
        return f"{row.kind} is not a modelled collective"
    if row.nodes > 1 and row.fabric is None and row.nics_per_node is None:
        return "the fabric between the nodes is not stated"
    if "bridge" in row.links:
        return "a bridge joins the cards, which the profile of the system does not have"
    if row.gpu == "L40S" and row.gpus_per_node > 2:
        return (
            "no direct path between the cards: 4 and 8 of them reach a quarter and a tenth of "
            "the PCIe rate that 2 reach, all traffic is copied through host memory"
        )
    return ""


def network_of(row: CollectiveRow, network: Network) -> Network:
    """The profile's network with the facts of the row in place of its own."""
    up = network.scale_up
    if "cube mesh" in row.links:
        up = up.model_copy(update={"kind": "hybrid-cube-mesh"})
    if row.gpus_per_node > up.gpus:
        up = up.model_copy(update={"gpus": row.gpus_per_node})
    fabric = network.fabric if row.nodes == 1 else _fabric_of_row(row, network.fabric)
    return network.model_copy(
        update={"gpus_per_node": row.gpus_per_node, "scale_up": up, "fabric": fabric}
    )


def _fabric_of_row(row: CollectiveRow, fabric: Fabric) -> Fabric:
    nics = fabric.nics_per_node if row.nics_per_node is None else row.nics_per_node
    rate = fabric.nic_bytes_per_s if row.nic_bytes_per_s is None else row.nic_bytes_per_s
    if row.fabric is None or row.fabric == fabric.kind:
        return fabric.model_copy(update={"nics_per_node": nics, "nic_bytes_per_s": rate})
    return library_fabric(row.fabric, nics, rate)


def group_of(row: CollectiveRow, network: Network) -> Group:
    """The row's ranks; in racks, spread evenly over as few as hold them."""
    domain = network.scale_up.gpus
    if domain <= _WIDEST_NODE_GPUS:
        return Group(row.ranks, row.gpus_per_node)
    racks = -(-row.ranks // domain)
    return Group(row.ranks, -(-row.ranks // racks))


def predicted_s(row: CollectiveRow, network: Network) -> float:
    """Seconds that the row should take on ``network``, which already has its facts."""
    if row.kind == SEND_RECV:
        pair = Group(2, 1 if row.nodes > 1 else 2)
        return send_recv_cost(row.num_bytes, pair, network).seconds
    seconds = collective_cost(
        CollectiveKind(row.kind),
        row.num_bytes,
        group_of(row, network),
        network,
        algorithm=row.algorithm or None,
    ).seconds
    return max(seconds, host_s(row))


def host_s(row: CollectiveRow) -> float:
    """Seconds in which one process launches the collective on all its GPUs in turn."""
    if not row.one_process:
        return 0.0
    return row.ranks * (LAUNCH_S + (row.calls - 1) * CALL_S)
