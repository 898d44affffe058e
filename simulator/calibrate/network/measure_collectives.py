"""How long do the collectives of a real cluster take, by size and group?

Run by every rank. As in nccl-tests, calls follow each other without a pause and the slowest rank
counts; sizes are counted as there. Rows are on the disk as soon as they are measured, in the
columns of published tables, so an interrupted run goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from simulator.calibrate.gpu.device_facts import device_facts
from simulator.calibrate.gpu.kernel_calls import Timing, Work, seconds_on_stream
from simulator.errors import InputError
from simulator.importers.nccl_tests.measured_collective import SEND_RECV, bus_share
from simulator.ranks.world import AskedBackend, World, chosen_backend, own_world
from simulator.tables.collective_table import append_row, cut_half_line, new_table, own_table

_LAUNCH = "start it with torchrun --nproc-per-node N --no-python clustersim calibrate collectives"

_SMALLEST_BYTES = 1024

_STEP = 4

_REPETITIONS = 9

_WARM_CALLS = 3

_REPETITION_S = 0.01

_MOST_CALLS = 100


@dataclass(frozen=True, slots=True)
class CollectiveWorld(World):
    """One of the processes that torchrun started.

    Attributes:
        ranks_per_node: Those that share a computer; the first of them have the lowest ranks.
        gpu: What the ranks run on, as tables spell it.
        library: Name and version of the library.
        date: Day, ISO 8601.
    """

    ranks_per_node: int
    gpu: str
    library: str
    date: str

    @property
    def groups(self) -> list[int]:
        """Ranks of the groups that are measured, counted from the first.

        Powers of two inside one node, then the node, then powers of two of whole nodes,
        then all: which links part of a node would use is not known.
        """
        inside = [2**p for p in range(1, 16) if 2**p < self.ranks_per_node]
        nodes = self.ranks // self.ranks_per_node
        across = [2**p * self.ranks_per_node for p in range(16) if 2**p < nodes]
        return [size for size in dict.fromkeys([*inside, *across, self.ranks]) if size > 1]

    def nodes_of(self, ranks: int) -> int:
        """Computers that a group stands on."""
        return -(-ranks // self.ranks_per_node)


def launched_world(
    backend: AskedBackend, environment: Mapping[str, str] = os.environ
) -> CollectiveWorld:
    """This process among those of torchrun; :func:`.ranks.world.joined` lets them talk.

    Args:
        backend: Library of the collectives.
        environment: What torchrun set.

    Raises:
        InputError: There are no other ranks, or the backend cannot be had.
    """
    rank, ranks, local_ranks = _numbers(environment)
    own = own_world(chosen_backend(backend, local_ranks, None), ranks, rank)
    facts = device_facts(str(own.device))
    library = _library(own.backend)
    return CollectiveWorld(
        rank, ranks, own.backend, own.device, local_ranks, facts.name, library, facts.date
    )


def _numbers(environment: Mapping[str, str]) -> tuple[int, int, int]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    missing = [name for name in names if not environment.get(name, "").isdecimal()]
    if missing:
        rule = f"needs the ranks that torchrun starts; {', '.join(missing)} is not set"
        raise InputError.single("--measure", rule, hint=_LAUNCH)
    rank, ranks, _, local_ranks = (int(environment[name]) for name in names)
    if ranks < 2:
        raise InputError.single(
            "--measure", "a single rank has no other rank to communicate with", hint=_LAUNCH
        )
    if ranks % local_ranks:
        rule = (
            f"needs the same number of ranks on every node; {local_ranks} does not divide {ranks}"
        )
        raise InputError.single("--measure", rule, hint=_LAUNCH)
    return rank, ranks, local_ranks


def _library(backend: str) -> str:
    if backend == "gloo":
        return f"gloo of torch {torch.__version__}"
    version = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    return f"{'RCCL' if torch.version.hip else 'NCCL'} {version}"


@dataclass(frozen=True, slots=True)
class CollectiveCase:
    """One collective of the first ``ranks`` ranks, of so many bytes."""

    kind: str
    ranks: int
    num_bytes: int

    @property
    def id(self) -> str:
        """Name of the case, the same in every run."""
        return f"{self.kind}-{self.ranks}-{self.num_bytes}"


def collective_cases(world: CollectiveWorld, largest_bytes: float) -> list[CollectiveCase]:
    """What is measured: every collective, group and size."""
    sizes = []
    size = _SMALLEST_BYTES
    while size <= largest_bytes:
        sizes.append(size)
        size *= _STEP
    return [
        CollectiveCase(kind, ranks, size)
        for ranks in world.groups
        for kind in _WORK
        if kind != SEND_RECV or ranks == 2
        for size in sizes
    ]


def measure_collectives(
    world: CollectiveWorld,
    path: Path,
    largest_bytes: float,
    *,
    resume: bool,
    on_case: Callable[[], None],
) -> None:
    """Measures what the table at ``path`` does not hold yet; only rank 0 writes.

    Args:
        world: The ranks; all of them must call this.
        path: The table.
        largest_bytes: Largest message [B].
        resume: Whether to continue an existing table.
        on_case: Called after every case.

    Raises:
        InputError: There is a table already, or one of another system.
    """
    done = _agreed(_done_in(path, world, resume=resume) if world.rank == 0 else None)
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in world.groups}
    for case in collective_cases(world, largest_bytes):
        if case.id not in done:
            if world.rank < case.ranks:
                timing = _timed(case, world, groups[case.ranks])
                if world.rank == 0:
                    _append(path, case, timing, world)
            dist.barrier()
        on_case()


def _agreed(answer: set[str] | InputError | None) -> set[str]:
    box = [answer]
    dist.broadcast_object_list(box, src=0)
    if isinstance(box[0], InputError):
        raise box[0]
    return box[0] or set()


def _done_in(path: Path, world: CollectiveWorld, *, resume: bool) -> set[str] | InputError:
    if not path.exists():
        new_table(path)
        return set()
    if not resume:
        hint = "continue with --resume, or choose another file"
        return InputError.single("--measure", "already holds measurements", str(path), hint)
    try:
        own = own_table(path)
    except InputError as error:
        return error
    ours = {"gpu": world.gpu, "nccl_version": world.library}
    if own is None or any(row[name] != ours[name] for row in own.rows for name in ours):
        rule = f"holds rows of another GPU or library than {world.gpu} with {world.library}"
        return InputError.single("--measure", rule, str(path), "choose another file")
    cut_half_line(path)
    return {row["id"] for row in own.rows}


def _timed(case: CollectiveCase, world: CollectiveWorld, group: dist.ProcessGroup) -> Timing:
    work = _WORK[case.kind](case, world, group)
    for _ in range(_WARM_CALLS):
        work()
    first_s = _slowest_s(_seconds(work, world), world, group)
    calls = max(1, min(_MOST_CALLS, round(_REPETITION_S / max(first_s, 1e-9))))

    def repeated() -> None:
        for _ in range(calls):
            work()

    samples = []
    for _ in range(_REPETITIONS):
        dist.barrier(group)
        samples.append(_slowest_s(_seconds(repeated, world) / calls, world, group))
    return Timing(samples)


def _seconds(work: Work, world: CollectiveWorld) -> float:
    if world.device.type == "cuda":
        return seconds_on_stream(work)
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _slowest_s(seconds: float, world: CollectiveWorld, group: dist.ProcessGroup) -> float:
    value = torch.tensor([seconds], dtype=torch.float64, device=world.device)
    dist.all_reduce(value, dist.ReduceOp.MAX, group)
    return float(value)


def _append(path: Path, case: CollectiveCase, timing: Timing, world: CollectiveWorld) -> None:
    seconds = timing.median_s
    rate = case.num_bytes / seconds * 1e-9
    nodes = world.nodes_of(case.ranks)
    cells = {
        "id": case.id,
        "collective": case.kind,
        "gpu": world.gpu,
        "gpus": case.ranks,
        "nodes": nodes,
        "gpus_per_node": case.ranks // nodes,
        "bytes": case.num_bytes,
        "time_us": f"{seconds * 1e6:.6g}",
        "algbw_GBs": f"{rate:.4g}",
        "busbw_GBs": f"{rate * (bus_share(case.kind, case.ranks) or 1.0):.4g}",
        "nccl_version": world.library,
        "notes": f"torch.distributed, {world.backend}",
        "spread_pct": f"{100 * timing.spread:.3g}",
        "repetitions": len(timing.samples_s),
    }
    append_row(path, world.date, cells)


def _buffer(num_bytes: float, world: CollectiveWorld) -> torch.Tensor:
    return torch.ones(max(1, round(num_bytes / 4)), device=world.device)


def _newest(name: str, older: str) -> Callable[..., object]:
    """Torch's function under the name that it has from 2.13 on, or the one before."""
    found: Callable[..., object] = getattr(dist, name, None) or getattr(dist, older)
    return found


_Maker = Callable[[CollectiveCase, CollectiveWorld, dist.ProcessGroup], Work]


def _all_reduce(case: CollectiveCase, world: CollectiveWorld, group: dist.ProcessGroup) -> Work:
    buffer = torch.zeros_like(_buffer(case.num_bytes, world))
    return lambda: dist.all_reduce(buffer, group=group)


def _all_gather(case: CollectiveCase, world: CollectiveWorld, group: dist.ProcessGroup) -> Work:
    part = _buffer(case.num_bytes / case.ranks, world)
    whole = part.repeat(case.ranks)
    call = _newest("all_gather_single", "all_gather_into_tensor")
    return lambda: call(whole, part, group)


def _reduce_scatter(case: CollectiveCase, world: CollectiveWorld, group: dist.ProcessGroup) -> Work:
    part = _buffer(case.num_bytes / case.ranks, world)
    whole = part.repeat(case.ranks)
    call = _newest("reduce_scatter_single", "reduce_scatter_tensor")
    return lambda: call(part, whole, group=group)


def _all_to_all(case: CollectiveCase, world: CollectiveWorld, group: dist.ProcessGroup) -> Work:
    sent = _buffer(case.num_bytes / case.ranks, world).repeat(case.ranks)
    received = torch.empty_like(sent)
    return lambda: dist.all_to_all_single(received, sent, group=group)


def _broadcast(case: CollectiveCase, world: CollectiveWorld, group: dist.ProcessGroup) -> Work:
    buffer = _buffer(case.num_bytes, world)
    return lambda: dist.broadcast(buffer, 0, group)


def _send_recv(case: CollectiveCase, world: CollectiveWorld, group: dist.ProcessGroup) -> Work:
    """Each of two ranks sends to the other, as in nccl-tests."""
    sent = _buffer(case.num_bytes, world)
    received = torch.empty_like(sent)
    other = 1 - world.rank

    def work() -> None:
        pair = [
            dist.P2POp(dist.isend, sent, other, group),
            dist.P2POp(dist.irecv, received, other, group),
        ]
        for request in dist.batch_isend_irecv(pair):
            request.wait()

    return work


_WORK: Mapping[str, _Maker] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    SEND_RECV: _send_recv,
}
"""How each collective is laid out and called."""
