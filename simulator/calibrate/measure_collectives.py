"""How long do collectives take between the ranks that are here?

Each collective over a range of sizes, on NCCL or gloo, every call from a barrier to the end of
the slowest rank. Rows are written as the tables that ``calibrate collectives`` reads, with
the median, so that what is measured here is fitted as anybody's measurements are.
"""

from __future__ import annotations

import csv
import io
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import Tensor

from simulator.calibrate.ranks.launch import loopback, run_ranks
from simulator.calibrate.ranks.shaped import shaped_network
from simulator.calibrate.ranks.world import Backend, World, joined, own_world
from simulator.validate.torch_run.measure import environment

_FLOAT_BYTES = 4
_WARM_CALLS = 2
_FEWEST_CALLS, _MOST_CALLS, _BUDGET_S = 5, 30, 0.5
LEAST_BYTES, MOST_BYTES = 2**12, 2**24
_COLUMNS = (
    "id", "source", "collective", "gpu", "gpus", "nodes", "gpus_per_node", "intra", "inter",
    "nics_per_node", "nic_gbps", "algo", "proto", "bytes", "time_us", "spread", "nccl_version",
    "notes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measurement:
    """One collective of one size.

    Attributes:
        kind: As ``CollectiveKind`` spells it, or ``send_recv``.
        ranks: How many took part.
        num_bytes: Message size as nccl-tests counts it [B].
        median_s: Time of a call, its slowest rank [s].
        spread: Half the distance of the quartiles over the median.
    """

    kind: str
    ranks: int
    num_bytes: int
    median_s: float
    spread: float


@dataclass(frozen=True)
class Measurements:
    """What a group of ranks measured.

    Attributes:
        rows: One per collective and size.
        environment: What it ran on, by name.
        link_bytes_per_s: Rate of the shaped link of every rank; None without one.
    """

    rows: Sequence[Measurement]
    environment: Mapping[str, str]
    link_bytes_per_s: float | None


def message_sizes(least_bytes: int = LEAST_BYTES, most_bytes: int = MOST_BYTES) -> list[int]:
    """Sizes from the least to the most, each four times the one before [B]."""
    sizes = []
    while least_bytes <= most_bytes:
        sizes.append(least_bytes)
        least_bytes *= 4
    return sizes


def measure_collectives(
    ranks: int,
    sizes: Sequence[int],
    *,
    link_bytes_per_s: float | None = None,
    on_row: Callable[[], None] = lambda: None,
) -> Measurements:
    """Every collective over some sizes between gloo ranks on this machine.

    Args:
        ranks: How many processes to start.
        sizes: Message sizes [B].
        link_bytes_per_s: Rate of a link for each of them; None is the loopback device.
        on_row: Called after each collective and size.
    """
    task = partial(measure_rank, "gloo", ranks, sizes)
    if link_bytes_per_s is None:
        found = run_ranks(task, loopback(ranks), on_row)
    else:
        with shaped_network(ranks, link_bytes_per_s) as place:
            found = run_ranks(task, place, on_row)
    return Measurements(found.rows, found.environment, link_bytes_per_s)


def measure_rank(
    backend: Backend, ranks: int, sizes: Sequence[int], on_row: Callable[[], None]
) -> Measurements | None:
    """Be one of the ranks; rank 0 gets the measurements."""
    world = own_world(backend, ranks, int(os.environ.get("RANK", "0")))
    if not world.is_gpu:
        torch.set_num_threads(1)
    with joined(world):
        rows = []
        for kind, size in _cases(ranks, sizes):
            rows.append(_measured(kind, size, world))
            on_row()
        return Measurements(rows, environment(world), None) if world.rank == 0 else None


def table_text(found: Sequence[Measurements]) -> str:
    """The rows as the table that ``calibrate collectives`` reads."""
    file = io.StringIO()
    writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for measurements in found:
        for row in measurements.rows:
            writer.writerow(_cells(row, measurements))
    return file.getvalue()


def _cells(row: Measurement, measurements: Measurements) -> dict[str, object]:
    rate, facts = measurements.link_bytes_per_s, measurements.environment
    nodes = 1 if rate is None else row.ranks
    link = "loopback" if rate is None else f"{8 * rate / 1e6:g}mbit"
    return {
        "id": f"{facts['backend']}-{link}-{row.kind}-{row.ranks}-{row.num_bytes}",
        "source": f"clustersim calibrate collectives, {facts['date']}",
        "collective": row.kind,
        "gpu": "cpu",
        "gpus": row.ranks,
        "nodes": nodes,
        "gpus_per_node": row.ranks // nodes,
        "intra": "loopback" if rate is None else "",
        "inter": "" if rate is None else "ethernet",
        "nics_per_node": 0 if rate is None else 1,
        "nic_gbps": "" if rate is None else f"{8 * rate / 1e9:g}",
        "bytes": row.num_bytes,
        "time_us": f"{1e6 * row.median_s:.4g}",
        "spread": f"{row.spread:.3f}",
        "nccl_version": f"{facts['backend']} of torch {facts['torch']}",
        "notes": f"{facts['device']}, load {facts['load']}",
    }


Call = Callable[[Tensor, World], object]


def _all_reduce(buffer: Tensor, _: World) -> object:
    return dist.all_reduce(buffer)


def _all_gather(buffer: Tensor, world: World) -> object:
    return dist.all_gather_into_tensor(buffer, buffer.chunk(world.ranks)[world.rank].clone())


def _reduce_scatter(buffer: Tensor, world: World) -> object:
    return dist.reduce_scatter_tensor(buffer.chunk(world.ranks)[world.rank].clone(), buffer)


def _all_to_all(buffer: Tensor, _: World) -> object:
    return dist.all_to_all_single(torch.empty_like(buffer), buffer)


def _broadcast(buffer: Tensor, _: World) -> object:
    return dist.broadcast(buffer, 0)


def _send_recv(buffer: Tensor, world: World) -> object:
    if world.rank == 0:
        return dist.send(buffer, 1)
    return dist.recv(buffer, 0) if world.rank == 1 else None


CALLS: Mapping[str, Call] = MappingProxyType(
    {
        "all_reduce": _all_reduce,
        "all_gather": _all_gather,
        "reduce_scatter": _reduce_scatter,
        "all_to_all": _all_to_all,
        "broadcast": _broadcast,
        "send_recv": _send_recv,
    }
)
"""What is measured, by name; the buffer is as large as nccl-tests counts it."""


def _cases(ranks: int, sizes: Sequence[int]) -> Iterator[tuple[str, int]]:
    for kind in CALLS:
        for size in sizes:
            if kind != "send_recv" or ranks == 2:  # a pair
                yield kind, max(1, size // (_FLOAT_BYTES * ranks)) * _FLOAT_BYTES * ranks


def _measured(kind: str, num_bytes: int, world: World) -> Measurement:
    buffer = torch.ones(num_bytes // _FLOAT_BYTES, device=world.device)
    call = CALLS[kind]
    for _ in range(_WARM_CALLS):
        call(buffer, world)
    seconds: list[float] = []
    while len(seconds) < _MOST_CALLS:
        # The sum is the same on every rank, so that all stop at once.
        if len(seconds) >= _FEWEST_CALLS and sum(seconds) > _BUDGET_S:
            break
        buffer.fill_(1.0)
        seconds.append(_call_s(call, buffer, world))
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Measurement(kind, world.ranks, num_bytes, median, (high - low) / 2 / median)


def _call_s(call: Call, buffer: Tensor, world: World) -> float:
    """One call, until its slowest rank is done [s]."""
    if world.is_gpu:
        torch.cuda.synchronize()
    dist.barrier()
    started = time.perf_counter()
    call(buffer, world)
    if world.is_gpu:
        torch.cuda.synchronize()
    longest = torch.tensor(time.perf_counter() - started, dtype=torch.float64, device=world.device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(longest)
