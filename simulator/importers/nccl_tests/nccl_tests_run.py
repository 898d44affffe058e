"""Which measured collectives does one run of nccl-tests or rccl-tests hold?

Text and JSON output are read into the same :class:`Run`; here its entries become rows, or
are left out with the reason. What contradicts itself is refused: a table whose bus
bandwidth does not belong to its collective and ranks was put together by hand.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from simulator.errors import InputError
from simulator.importers.nccl_tests.measured_collective import (
    KIND_OF_NAME,
    CollectiveRow,
    bus_share,
    calls_per_gpu,
)

PROGRAMS = (
    "all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv",
    "gather", "scatter", "hypercube", "alltoallv",
)  # fmt: skip
"""Collectives of nccl-tests, by its own names."""

SAY = "say what ran: --collective all_reduce --ranks 16 --nodes 2"
"""How a command is told what an excerpt does not say."""
_VENDOR_WORDS = re.compile(r"^(?:NVIDIA|AMD|Tesla|GeForce|Instinct)\s+", re.IGNORECASE)
_PRINTED_DIGITS = 0.02
"""Relative error of rates that are printed with three digits, and a margin."""

_LEGIBLE_GB_PER_S = 1.0
"""Rates from here on are printed with three digits."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """Measured rows that are left out.

    Attributes:
        place: Where they stand in the file: a line, or an entry of a JSON list.
        reason: Why.
        rows: How many.
    """

    place: str
    reason: str
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Device:
    """The GPU of one rank; ``process`` is the same for ranks of one process."""

    rank: int
    group: int
    host: str
    process: str
    gpu: str


_MOST_RANKS = 2**18
"""More than any cluster has."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What ran, where people pasted a table without the lines above it, or without some of them.

    Attributes:
        program: Collective as nccl-tests spells it.
        ranks: How many took part, one process each; None where the lines above the table list them.
        nodes: On how many hosts, as many ranks on each.
    """

    program: str
    ranks: int | None = None
    nodes: int = 1

    def __post_init__(self) -> None:
        if self.program not in PROGRAMS:
            hint = f"known: {', '.join(PROGRAMS)}"
            raise InputError.single("--collective", "is not known", self.program, hint)
        if self.ranks is None:
            if self.nodes != 1:
                raise InputError.single("--ranks", "is needed beside --nodes", hint=SAY)
            return
        if self.ranks > _MOST_RANKS:
            rule = f"must be at most {_MOST_RANKS:,}"
            raise InputError.single("--ranks", rule, self.ranks)
        if self.nodes < 1 or self.ranks % self.nodes:
            rule = f"must divide the {self.ranks} ranks"
            raise InputError.single("--nodes", rule, self.nodes)

    def devices(self) -> list[Device]:
        """One per rank, on hosts without names; none where nobody says how many."""
        ranks = self.ranks or 0
        per_node = ranks // self.nodes
        return [
            Device(rank, 0, f"node {rank // per_node}", f"process {rank}", "")
            for rank in range(ranks)
        ]


@dataclass(frozen=True, slots=True)
class Entry:
    """One message size, out of place.

    Attributes:
        place: Where it stands in the file.
        num_bytes: Message size [B].
        time_us: Time of one collective [us]; None if there is no number.
        alg_bw, bus_bw: The two bandwidths [GB/s]; None if there is no number.
        wrong: Wrong elements in the result; None if nobody looked.
        algorithm: Key of our algorithms that was used; empty if unstated.
    """

    place: str
    num_bytes: int
    time_us: float | None
    alg_bw: float | None
    bus_bw: float | None
    wrong: float | None
    algorithm: str = ""


@dataclass(slots=True)
class Run:
    """One run of one program.

    Attributes:
        place: Where it begins.
        program: Collective as nccl-tests spells it; empty if the file does not say.
        threads: Threads of each process.
        operations: Collectives that share one measurement (``agg iters``).
        devices: One per rank.
        entries: One per message size.
        excluded: Rows that could not be read.
        library: Name and version of the library; empty if unstated.
        algorithm: The only algorithm allowed, a key of ours; empty if any.
        cpu_time: Whether times are those of the CPU.
        unlocated_errors: Wrong results that no row owns up to.
    """

    place: str
    program: str = ""
    threads: int = 1
    operations: int = 1
    devices: list[Device] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)
    library: str = ""
    algorithm: str = ""
    cpu_time: bool = False
    unlocated_errors: int = 0


@dataclass(frozen=True, slots=True)
class CollectiveFile:
    """What a file of measured collectives holds.

    Attributes:
        name: Name of the file.
        rows: What was measured.
        excluded: What is left out, and why.
        assumed: Sentences on what was taken for granted.
        libraries: Names and versions of the libraries measured.
        date: Day of the measurement, or of the file where it does not say.
        is_collection: Whether its rows come from several systems.
    """

    name: str
    rows: tuple[CollectiveRow, ...]
    excluded: tuple[Excluded, ...] = ()
    assumed: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    date: str = ""
    is_collection: bool = False


def file_of_runs(
    runs: Sequence[Run], name: str, assumed: Sequence[str], date: str
) -> CollectiveFile:
    """The rows of all runs of a file.

    Raises:
        InputError: A run does not say what was measured on which GPUs, or contradicts itself.
    """
    rows: list[CollectiveRow] = []
    excluded: list[Excluded] = []
    said = list(assumed)
    for run in runs:
        _check(run, name)
        reason = next(_reasons_against(run), "")
        excluded += run.excluded
        if reason:
            excluded.append(Excluded(run.place, reason, len(run.entries)))
            continue
        hosts = Counter(device.host for device in run.devices)
        for entry in run.entries:
            wrong = _reason_against_entry(entry)
            if wrong:
                excluded.append(Excluded(entry.place, wrong))
            else:
                rows.append(_row(run, entry, hosts, name))
        said += _assumed_of(run, len(hosts))
    libraries = tuple(dict.fromkeys(run.library for run in runs if run.library))
    return CollectiveFile(
        name, tuple(rows), tuple(excluded), tuple(dict.fromkeys(said)), libraries, date
    )


def library_name(code: int) -> str:
    """Name and version of NCCL from its version code (22803 is 2.28.3).

    Source: NCCL_VERSION in nccl.h, which gave minor versions one digit up to 2.8.
    """
    major = 10000 if code >= 10000 else 1000
    return f"NCCL {code // major}.{code % major // 100}.{code % 100}"


def number(text: object) -> float | None:
    """A finite number, or None for whatever else stands in its place ("N/A", "nan")."""
    try:
        value = float(str(text))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _check(run: Run, file: str) -> None:
    ranks = sorted({device.rank for device in run.devices})
    if not ranks:
        rule = "names no GPUs, so ranks and nodes are unknown"
        hint = f"keep the lines '# Rank 0 ... on HOST device 0 ...' above the table, or {SAY}"
        raise InputError.single(run.place, rule, hint=hint, file=file)
    missing = next((number for number, rank in enumerate(ranks) if rank > number), None)
    if missing is not None:
        rule = f"names {len(ranks)} ranks up to {ranks[-1]}, but not rank {missing}"
        hint = "keep the whole list of ranks, from which the number of nodes follows"
        raise InputError.single(run.place, rule, hint=hint, file=file)
    if not run.program:
        rule = "does not say which collective was measured"
        hint = (
            "keep the command line above it, name the file after it: all_reduce.txt, "
            "or say --collective all_reduce"
        )
        raise InputError.single(run.place, rule, hint=hint, file=file)
    _check_bus_bandwidth(run, file)


def _check_bus_bandwidth(run: Run, file: str) -> None:
    kind = KIND_OF_NAME.get(run.program, run.program)
    groups = len({device.group for device in run.devices})
    wanted = bus_share(kind, len(run.devices) // groups)
    shares = [
        entry.bus_bw / entry.alg_bw
        for entry in run.entries
        if entry.bus_bw and entry.alg_bw and min(entry.bus_bw, entry.alg_bw) >= _LEGIBLE_GB_PER_S
    ]
    if wanted is None or not shares:
        return
    found = statistics.median(shares)
    if abs(found - wanted) > _PRINTED_DIGITS * wanted:
        ranks = len(run.devices) // groups
        rule = (
            f"has busbw / algbw = {found:.3f}, but {run.program} of {ranks} ranks has {wanted:.3f}"
        )
        hint = "the table is of another collective or of other ranks than those named above it"
        raise InputError.single(run.place, rule, hint=hint, file=file)


def _reasons_against(run: Run) -> Iterator[str]:
    """Why no entry of a run is the time of one collective alone."""
    hosts = Counter(device.host for device in run.devices)
    models = sorted({device.gpu for device in run.devices})
    groups = len({device.group for device in run.devices})
    if run.cpu_time:
        yield "times of the CPU, not of the collective (-C)"
    if run.operations > 1:
        yield f"{run.operations} operations share one launch (-m), so none can be timed alone"
    if groups > 1:
        yield f"{groups} groups ran at the same time and shared their links (NCCL_TESTS_SPLIT)"
    if len(run.devices) == 1:
        yield "a single rank does not communicate"
    if len(models) > 1:
        yield f"GPUs of different kinds took part: {', '.join(models)}"
    if len(set(hosts.values())) > 1:
        counts = ", ".join(str(count) for count in sorted(hosts.values(), reverse=True))
        yield f"the ranks are spread unevenly over the hosts: {counts}"
    if run.unlocated_errors:
        yield f"{run.unlocated_errors} results were wrong, and the rows do not state which"


def _reason_against_entry(entry: Entry) -> str:
    if entry.num_bytes == 0:
        return "a message of zero bytes"
    if entry.time_us is None:
        return "no out-of-place time"
    if entry.time_us <= 0:
        return f"a time of {entry.time_us:g} us"
    if entry.wrong:
        return f"{entry.wrong:g} wrong elements (#wrong)"
    printed = entry.num_bytes / entry.time_us * 1e-3
    if (
        entry.alg_bw is not None
        and entry.alg_bw >= _LEGIBLE_GB_PER_S
        and abs(entry.alg_bw - printed) > _PRINTED_DIGITS * printed
    ):
        return f"algbw {entry.alg_bw:g} GB/s is not size / time, {printed:.3g} GB/s"
    return ""


def _assumed_of(run: Run, hosts: int) -> list[str]:
    sentences = []
    used = [entry for entry in run.entries if not _reason_against_entry(entry)]
    unchecked = sum(entry.wrong is None for entry in used)
    if unchecked:
        sentences.append(
            f"{run.place}: results assumed correct in {unchecked} rows, which did "
            "not check them (N/A)"
        )
    processes = len({device.process for device in run.devices})
    if 1 < hosts == processes < len(run.devices) and run.threads == 1:
        sentences.append(
            f"{run.place}: launch delays ignored, although each process launches on "
            f"{len(run.devices) // processes} GPUs in turn"
        )
    return sentences


def _row(run: Run, entry: Entry, hosts: Counter[str], file: str) -> CollectiveRow:
    ranks = len(run.devices)
    kind = KIND_OF_NAME.get(run.program, run.program)
    processes = {device.process for device in run.devices}
    algorithm = entry.algorithm or run.algorithm
    return CollectiveRow(
        id=f"{file}: {entry.place}",
        gpu=_without_vendor(run.devices[0].gpu),
        kind=kind,
        num_bytes=float(entry.num_bytes),
        ranks=ranks,
        nodes=len(hosts),
        gpus_per_node=ranks // len(hosts),
        nics_per_node=None,
        nic_bytes_per_s=None,
        fabric=None,
        # Only all-reduce has a choice; for the others NCCL falls back to the ring.
        algorithm=algorithm if kind == "all_reduce" else "",
        one_process=len(processes) == 1 and run.threads == 1,
        calls=calls_per_gpu(kind, ranks, run.library),
        links="",
        seconds=(entry.time_us or 0.0) * 1e-6,
    )


def _without_vendor(gpu: str) -> str:
    """The name without its maker's words ("AMD Instinct MI300X" is "MI300X")."""
    shorter = _VENDOR_WORDS.sub("", gpu)
    return gpu if shorter == gpu else _without_vendor(shorter)
