"""What does one row of a table of measured collectives say, and what answers it?

A row states its own machine: GPUs, nodes, NICs and their rate. These override the
profile as facts about the row; the parameters stay those of the profile, or of the
fabric library where the row names another fabric than the profile's.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from math import sqrt
from pathlib import Path

from simulator import cells
from simulator.cells import Row, read_table
from simulator.cost.collectives import CollectiveKind, Group, demands_of, send_recv_demand
from simulator.cost.collectives.collective_time import (
    FULL_HOP_BYTES,
    Links,
    demand_timing,
    links_of,
)
from simulator.cost.collectives.tiers import climb_of, network_above
from simulator.cost.collectives.types import Demand
from simulator.described.cluster.network import Fabric, FabricKind, Network, library_fabric
from simulator.described.load import profile_names
from simulator.errors import InputError
from simulator.importers.nccl_tests.measured_collective import (
    SEND_RECV,
    CollectiveRow,
    algorithm_of,
    bus_share,
    calls_per_gpu,
    kind_of,
)
from simulator.tables.spellings import fabric_kind, profile_name_of

LAUNCH_S = 4.5e-6
"""Host time to launch one kernel. Source: 4 to 6 us through the driver (Nsight Systems
guide); tables of one process that drives eight GPUs have floors of 30 to 42 us."""

CALL_S = 0.4e-6
"""Host time to queue one more send or receive of a group call. Source: the 86 us floor of the
all-to-all of one process that drives eight A100s (superbench logs)."""

CHANNEL_S = 0.2e-6
"""Host time to queue one more channel of a collective, with libraries that queue each by itself.

Source: all_gather, all_reduce, reduce_scatter and broadcast of one process that drives eight A100s
take 34.5 us with one channel and 1.65 us more with each other one, whichever they are (superbench
logs)."""

LATE_START = 0.5
"""Weight of the pipeline that GPUs fill which one process starts one after the other.

Source: one machine measured both ways (notes on nccl-tests of one A100 node): all_reduces of eight
A100 that take eight processes 38, 82, 131 and 616 us take one 53, 104, 163 and 696 us."""

ONE_CALL_S = 25e-6
"""Host time of one all_reduce of PyTorch, which a benchmark that times it on an idle GPU counts.
Source: "some 20-30us" (stas00/ml-engineering, network/benchmarks/all_reduce_bench.py)."""

_COLUMNS = ("id", "collective", "gpu", "gpus", "nodes", "gpus_per_node", "bytes", "time_us")
_ONE_PROCESS = re.compile(r"\b1 process\b|-g [2-9]|Azure/AI-benchmarking-guide")
"""Signs that one process drives all GPUs; the Azure guide runs nccl-tests so."""

_BY_CHANNEL = re.compile(r"\bLaunch mode (?:Parallel|Group)\b")
"""Sign of a library that queues each channel by itself: what NCCL of the time printed."""

_UNSTATED_START = re.compile(r"\bhow processes were started is not stated\b")

_HIDDEN = 2
"""Collectives that take so many times what one process needs to launch them tell nothing of who
launched (assumption)."""

_ONE_CALL = re.compile(r"\ball_reduce_bench\.py\b")
"""Sign that calls of PyTorch are timed one by one."""

_ONE_SIDED = ("gather", "scatter")
"""Collectives of sends and receives between one rank and all others. Its port carries what every
port carries in an all-to-all of as many bytes, and so takes as long."""

_RACK = re.compile(r"(?i)\bGB[23]00|nvl ?72")
_RACK_GPUS = 72
"""GPUs that the links of a GB200 or GB300 rack join, whatever hosts they are in."""

WIDEST_NODE_GPUS = 16
"""Scale-up domains of more GPUs than this are racks."""


def read_collective_rows(path: str | Path) -> list[CollectiveRow]:
    """The rows of a table of measured collectives, in order.

    Raises:
        InputError: The file cannot be read, lacks a column or has a wrong number.
    """
    rows = []
    for number, cells_of_row in enumerate(read_collective_cells(path), start=1):
        try:
            rows.append(collective_row(cells_of_row))
        except InputError as error:
            rule = f"holds a wrong number: row {number}: {_first_rule(error)}"
            raise InputError.single("", rule, file=str(path)) from error
    return rows


def readable_collective_rows(path: str | Path) -> Iterator[CollectiveRow]:
    """The rows of a table of measured collectives whose cells can all be read, in order.

    Raises:
        InputError: The file cannot be read or lacks a column.
    """
    for cells_of_row in read_collective_cells(path):
        with contextlib.suppress(InputError):
            yield collective_row(cells_of_row)


def read_collective_cells(path: str | Path) -> list[Row]:
    """The rows of a table of measured collectives as they are written, in order.

    Raises:
        InputError: The file cannot be read or lacks a column.
    """
    return read_table(path, _COLUMNS)


def _first_rule(error: InputError) -> str:
    fault = error.faults[0]
    return f"{fault.path}: {fault.rule}"


def collective_row(row: Row) -> CollectiveRow:
    """What one row of a table says.

    Raises:
        InputError: A cell is missing or cannot be read.
    """
    ranks, kind = cells.whole(row, "gpus"), kind_of(cells.text(row, "collective"))
    nodes, gpus_per_node = _hosts(row, ranks)
    num_bytes = cells.size_bytes(row, "bytes")
    nics, nic_gbps = cells.number(row, "nics_per_node"), cells.number(row, "nic_gbps")
    # Tables write 0 where nothing crosses hosts; what does cross has NICs.
    is_stated = nodes == 1 or bool(nics)
    return CollectiveRow(
        id=row["id"],
        gpu=_gpu(row),
        kind=kind,
        num_bytes=num_bytes,
        ranks=ranks,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        nics_per_node=int(nics) if nics is not None and is_stated else None,
        nic_bytes_per_s=nic_gbps * 1e9 / 8 if nic_gbps and is_stated else None,
        fabric=_fabric(row),
        algorithm=algorithm_of(cells.text(row, "algo")),
        one_process=nodes == 1 and _ONE_PROCESS.search(_said(row)) is not None,
        calls=calls_per_gpu(kind, ranks, row.get("nccl_version") or ""),
        by_channel=_BY_CHANNEL.search(_said(row)) is not None,
        says_start=_UNSTATED_START.search(_said(row)) is None,
        one_call=_ONE_CALL.search(_said(row)) is not None,
        links=cells.text(row, "intra").lower(),
        seconds=_seconds(row, kind, ranks, num_bytes),
        source=cells.text(row, "source").partition(":")[0],
    )


def _fabric(row: Row) -> FabricKind | None:
    """The kind of fabric; generations of some follow from the GPU that a host has."""
    inter = cells.text(row, "inter")
    return fabric_kind(f"{inter} {cells.text(row, 'gpu')}") if inter else None


def _said(row: Row) -> str:
    return f"{row.get('source', '')} {row.get('notes', '')}"


def _gpu(row: Row) -> str:
    """The GPU as the table spells it, with what joins the GPUs where that distinguishes cards."""
    gpu, links = cells.text(row, "gpu"), cells.text(row, "intra").lower()
    states_form = re.search(r"sxm|pcie|nvl", gpu.lower())
    only_pcie = "pcie" in links and not re.search(r"(?<!no )nvlink|xgmi|nvl\d", links)
    is_card = only_pcie and not states_form and profile_name_of(f"{gpu} PCIe", profile_names())
    return f"{gpu} PCIe" if is_card and profile_name_of(gpu, profile_names()) != is_card else gpu


def _hosts(row: Row, ranks: int) -> tuple[int, int]:
    """Hosts, and GPUs of each that take part, whichever of the two the row leaves out.

    Some tables state all GPUs of a host where only a part of them takes part.
    """
    nodes = cells.whole_if_stated(row, "nodes")
    per_node = cells.whole_if_stated(row, "gpus_per_node")
    if not nodes:
        nodes = -(-ranks // per_node) if per_node else 1
    if not per_node or per_node * nodes != ranks:
        per_node = -(-ranks // nodes)
    if ranks < 1 or nodes > ranks:
        raise InputError.single(
            "nodes", f"{nodes} nodes need at least one GPU each, but there are {ranks}"
        )
    return nodes, per_node


def _seconds(row: Row, kind: str, ranks: int, num_bytes: float) -> float:
    """The measured time, from a bandwidth where no time is stated."""
    time_us = cells.measured(row, "time_us")
    if time_us is not None:
        return time_us * 1e-6
    rate_gbps = cells.measured(row, "algbw_GBs")
    if rate_gbps is None:
        bus_gbps, share = cells.measured(row, "busbw_GBs"), bus_share(kind, ranks)
        rate_gbps = bus_gbps / share if bus_gbps and share else None
    if not rate_gbps or not num_bytes:
        raise InputError.single("time_us", "neither a time nor a bandwidth is stated")
    return num_bytes / (rate_gbps * 1e9)


def reason_to_skip(row: CollectiveRow) -> str:
    """Why a row cannot be answered, a fact about the row; empty if it can."""
    if row.kind not in (SEND_RECV, *_ONE_SIDED, *CollectiveKind):
        return f"{row.kind} is not a modelled collective"
    if row.ranks == 1 or not row.num_bytes:
        return "no data is exchanged"
    in_rack = _RACK.search(f"{row.gpu} {row.links}") and row.ranks <= _RACK_GPUS
    if row.nodes > 1 and not in_rack and row.fabric is None and row.nics_per_node is None:
        return "the fabric between the nodes is not stated"
    if not row.says_start and row.seconds < _HIDDEN * _in_turn_s(row):
        return "who launched it is not stated, and it is short"
    if "bridge" in row.links:
        return "a bridge connects the GPUs, which the profile does not have"
    return ""


def network_of(row: CollectiveRow, network: Network) -> Network:
    """The profile's network with the facts of the row in place of its own."""
    up = network.scale_up
    if "cube mesh" in row.links:
        up = up.model_copy(update={"kind": "hybrid-cube-mesh"})
    if row.gpus_per_node > up.gpus:
        up = up.model_copy(update={"gpus": row.gpus_per_node})
    fabric = network.fabric if row.nodes == 1 else _fabric_of_row(row, network)
    return network.model_copy(
        update={"gpus_per_node": row.gpus_per_node, "scale_up": up, "fabric": fabric}
    )


def _fabric_of_row(row: CollectiveRow, network: Network) -> Fabric:
    """The row's fabric; hosts of which fewer GPUs take part use their share of the NICs."""
    fabric = network.fabric
    share = min(1.0, row.gpus_per_node / network.gpus_per_node)
    nics = row.nics_per_node
    if nics is None:
        nics = max(1, round(fabric.nics_per_node * share))
    rate = fabric.nic_bytes_per_s if row.nic_bytes_per_s is None else row.nic_bytes_per_s
    rate = min(rate, _reached_bytes_per_s(row, network, rate) / nics) if nics else rate
    if row.fabric is None or row.fabric == fabric.kind:
        return fabric.model_copy(update={"nics_per_node": nics, "nic_bytes_per_s": rate})
    return library_fabric(row.fabric, nics, rate)


def _reached_bytes_per_s(row: CollectiveRow, network: Network, nic_bytes_per_s: float) -> float:
    """What a node's GPUs that take part reach of its NICs, one way [B/s].

    Each reaches one NIC, or as many slower ones as make up the one that it has in the profile.
    Source: one H100 of a node with four NICs of 400 Gbit/s passes 42 GB/s (NVIDIA/nccl-tests issue
    #232).
    """
    fabric = network.fabric
    own = fabric.nics_per_node * fabric.nic_bytes_per_s / network.gpus_per_node
    return row.gpus_per_node * max(nic_bytes_per_s, own)


def group_of(row: CollectiveRow, network: Network) -> Group:
    """The row's ranks; in racks, spread evenly over as few as hold them."""
    domain = network.scale_up.gpus
    if domain <= WIDEST_NODE_GPUS:
        return Group(row.ranks, row.gpus_per_node)
    racks = -(-row.ranks // domain)
    return Group(row.ranks, -(-row.ranks // racks))


def predicted_s(row: CollectiveRow, network: Network) -> float:
    """Seconds that the row should take on ``network``, which already has its facts."""
    links, demands = links_of_row(row, network), demands_of_row(row, network)
    seconds = min(demand_timing(demand, links).seconds for demand in demands)
    return counted_s(row, seconds, network)


def demands_of_row(row: CollectiveRow, network: Network) -> Collection[Demand]:
    """What the algorithms that could have run ask of the ports."""
    kind, group = exchange_of(row, network)
    if kind is None:
        return [send_recv_demand(row.num_bytes, group, network)]
    try:
        found = demands_of(kind, row.num_bytes, group, network, row.algorithm or None)
    except InputError:
        # A library that was given an algorithm that these links do not have took another one.
        found = demands_of(kind, row.num_bytes, group, network)
    return found.values()


def links_of_row(row: CollectiveRow, network: Network) -> Links:
    """The links that the row's ranks share."""
    kind, group = exchange_of(row, network)
    return links_of(network_above(climb_of(kind, group, network), network), group.local_ranks)


def exchange_of(row: CollectiveRow, network: Network) -> tuple[CollectiveKind | None, Group]:
    """What is done by whom; None and two ranks for a transfer."""
    if row.kind == SEND_RECV:
        return None, Group(2, 1 if row.nodes > 1 else 2)
    kind = CollectiveKind.ALL_TO_ALL if row.kind in _ONE_SIDED else CollectiveKind(row.kind)
    return kind, group_of(row, network)


def counted_s(row: CollectiveRow, seconds: float, network: Network) -> float:
    """What the row's benchmark counts of a collective that takes so long: also its launch."""
    one_call_s = ONE_CALL_S if row.one_call else 0.0
    return one_call_s + max(host_s(row, network), seconds + _late_s(row, seconds, network))


def _late_s(row: CollectiveRow, seconds: float, network: Network) -> float:
    """Seconds that a collective takes more whose GPUs are started one after the other.

    Later GPUs join as the stages of a pipeline do. The delay ends with them: each of the two passes
    of a ring waits once. Roots start first, and switches that add wait for nobody (measured).
    """
    in_switch = network.scale_up.in_switch_reduction and row.kind == CollectiveKind.ALL_REDUCE
    is_rooted = row.kind in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE)
    if not row.one_process or not network.tuning or in_switch or is_rooted:
        return 0.0
    start_s = _in_turn_s(row)
    return min(2 * start_s, LATE_START * sqrt(start_s * seconds))


def host_s(row: CollectiveRow, network: Network) -> float:
    """Seconds in which one process launches the collective on all its GPUs in turn."""
    if not row.one_process:
        return 0.0
    more_channels = _channels(row, network) - 1 if row.by_channel else 0.0
    return _in_turn_s(row) + row.ranks * more_channels * CHANNEL_S


def _in_turn_s(row: CollectiveRow) -> float:
    """The same of kernels with one channel."""
    return row.ranks * (LAUNCH_S + (row.calls - 1) * CALL_S)


def _channels(row: CollectiveRow, network: Network) -> float:
    """Channels of a ring: as many as it takes until each thread passes on one word in a hop."""
    most = links_of_row(row, network).channels if row.calls == 1 else 1.0
    return min(most, max(1.0, row.num_bytes / row.ranks / FULL_HOP_BYTES))
