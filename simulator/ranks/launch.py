"""How are ranks started on this machine, and over which network does their answer come back?

Each rank is a process of its own, which finds its place in the environment variables that torchrun
sets, too. All run the same function; what one of them returns (rank 0, by convention) is the
answer. As a module this file is such a process::

    python -m simulator.ranks.launch FOLDER

Ranks talk over the loopback device, or over a network of a given rate: then every rank is in a
network namespace of its own with one full-duplex link to a switch (a bridge in one more namespace),
which a token bucket limits in both directions. Collectives meet real sockets, queues and congestion
control, and the time of their bytes is known. That needs Linux, root, and the commands ``ip`` and
``tc``, and says nothing of latency (virtual links have nearly none, and processes wait for cores)
nor of NCCL.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from simulator.described.job import Job
from simulator.errors import ClustersimError, InputError
from simulator.files import whole_file
from simulator.units import format_quantity

Count = Callable[[], None]
Answer = TypeVar("Answer")

_TASK, _ANSWER, _PROGRESS, _FAULT = "task.pickle", "answer.pickle", "progress", "fault.pickle"
_LINES_SHOWN = 12
_POLL_S = 0.1

_PREFIX = "clustersim"

_SUBNET = "10.77.0"

_MOST_RANKS = 250

_DEVICE = "eth0"

_BURST, _QUEUE = "64kb", "4mb"
"""The bucket holds one of the largest packets that the kernel hands down; the queue is longer
than any window."""

_GOODPUT_SHARE = 1448 / 1514
"""Payload of a TCP segment over its Ethernet frame (52 bytes of IP and TCP headers with
timestamps, 14 of Ethernet, which the bucket counts)."""


class RankFailedError(ClustersimError):
    """A rank ended before its work was done."""


@dataclass(frozen=True)
class Place:
    """Where the processes of all ranks run.

    Attributes:
        address: Of rank 0, for the others.
        prefixes: Words before the command of each rank, such as ``ip netns exec NAME``.
        variables: Environment variables that all need.
    """

    address: str
    prefixes: Sequence[Sequence[str]]
    variables: Mapping[str, str]


def loopback(ranks: int) -> Place:
    """All ranks on this machine, over its loopback device."""
    return Place("127.0.0.1", [()] * ranks, {"GLOO_SOCKET_IFNAME": "lo"})


def run_ranks(
    task: Callable[[Count], Answer | None], place: Place, on_count: Count = lambda: None
) -> Answer:
    """Run a task as every rank, and return what one of them returns.

    Args:
        task: A function that can be pickled; it gets a function to count its progress with.
        place: Where the ranks run.
        on_count: Called here whenever rank 0 counts.

    Raises:
        ClustersimError: What stopped a rank.
    """
    with tempfile.TemporaryDirectory(prefix="clustersim-") as name:
        folder = Path(name)
        (folder / _TASK).write_bytes(pickle.dumps(task))
        processes = _start(folder, place)
        try:
            _wait(processes, folder, on_count)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        answer: Answer = pickle.loads((folder / _ANSWER).read_bytes())  # our own
        return answer


def _start(folder: Path, place: Place) -> list[subprocess.Popen[bytes]]:
    ranks = len(place.prefixes)
    package = str(Path(__file__).resolve().parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    common = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        **place.variables,
        "PYTHONPATH": os.pathsep.join(paths),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(_free_port()),
    }
    processes = []
    for rank, prefix in enumerate(place.prefixes):
        command = [*prefix, sys.executable, "-m", __name__, str(folder)]
        variables = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        with (folder / f"rank-{rank}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, env=variables, stdout=log, stderr=log))
    return processes


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path, on_count: Count) -> None:
    seen = 0
    while any(process.poll() is None for process in processes):
        seen = _count(folder, seen, on_count)
        _raise_fault(processes, folder)
        time.sleep(_POLL_S)
    _count(folder, seen, on_count)
    _raise_fault(processes, folder)


def _count(folder: Path, seen: int, on_count: Count) -> int:
    path = folder / _PROGRESS
    done = path.stat().st_size if path.exists() else 0
    for _ in range(done - seen):
        on_count()
    return done


def _raise_fault(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    failed = [rank for rank, process in enumerate(processes) if process.poll()]
    if not failed:
        return
    fault = folder / _FAULT
    if fault.exists():
        error = pickle.loads(fault.read_bytes())  # our own
        if isinstance(error, ClustersimError):
            raise error
    log = (folder / f"rank-{failed[0]}.log").read_text(encoding="utf-8", errors="replace")
    last = "\n".join(log.strip().splitlines()[-_LINES_SHOWN:])
    raise RankFailedError(f"rank {failed[0]} failed; its last output:\n{last}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    """A rank ends with the process that started it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Be one rank, as the environment and the task in the given folder say."""
    _end_with_parent()
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    task = pickle.loads((folder / _TASK).read_bytes())  # our own

    def count() -> None:
        if rank == "0":
            with (folder / _PROGRESS).open("ab") as file:
                file.write(b".")

    try:
        answer = task(count)
    except ClustersimError as error:
        with whole_file(folder / _FAULT) as draft:
            draft.write_bytes(pickle.dumps(error))
        sys.exit(1)
    if answer is not None:
        (folder / _ANSWER).write_bytes(pickle.dumps(answer))


if __name__ == "__main__":
    main()


def why_not_shaped() -> str:
    """What this machine lacks for a shaped network; empty if nothing."""
    if sys.platform != "linux":
        return "network namespaces exist on Linux only"
    for command in ("ip", "tc"):
        if shutil.which(command) is None:
            return f"the command {command} is missing (package iproute2)"
    if os.geteuid() != 0:
        return "only root may create network namespaces"
    name = f"{_PREFIX}-{os.getpid()}-probe"
    try:
        _run("ip", "netns", "add", name)
        try:
            _run("ip", "-n", name, "link", "add", "probe", "type", "veth")
            _shape(name, "probe", 1e6)
        finally:
            _run("ip", "netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    return ""


def on_shaped_links(job: Job, bytes_per_s: float) -> Job:
    """The job on a cluster of one GPU per node, whose links have that rate."""
    changes: dict[str, Any] = {
        "cluster.network.gpus_per_node": 1,
        "cluster.network.scale_up.gpus": 1,
        "cluster.network.fabric.nics_per_node": 1,
        "cluster.network.fabric.nic": format_quantity(bytes_per_s, "bytes_per_s"),
        "cluster.network.fabric.efficiency": _GOODPUT_SHARE,
    }
    return job.replace(changes)


@contextlib.contextmanager
def shaped_network(ranks: int, bytes_per_s: float) -> Iterator[Place]:
    """A place for so many ranks, each with a link of that rate to the others.

    Raises:
        InputError: This machine cannot make one.
    """
    reason = why_not_shaped()
    if reason:
        hint = "remove the option, or run as root on Linux with iproute2"
        raise InputError.single("--shaped", f"is not possible here: {reason}", hint=hint)
    if ranks > _MOST_RANKS:
        raise InputError.single("cluster.gpus", f"at most {_MOST_RANKS} ranks fit", ranks)
    _remove_left_over()
    names = [f"{_PREFIX}-{os.getpid()}-{rank}" for rank in range(ranks)]
    switch = f"{_PREFIX}-{os.getpid()}-switch"
    try:
        _add_switch(switch)
        for rank, name in enumerate(names):
            _add_rank(name, rank, switch, bytes_per_s)
        prefixes: Sequence[Sequence[str]] = [("ip", "netns", "exec", name) for name in names]
        yield Place(f"{_SUBNET}.1", prefixes, {"GLOO_SOCKET_IFNAME": _DEVICE})
    finally:
        for name in (*names, switch):
            _remove(name)


def _remove_left_over() -> None:
    """Namespaces of processes that were killed before they could clean up."""
    listed = subprocess.run(
        ("ip", "netns", "list"), check=True, capture_output=True, text=True
    ).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line):
        prefix, _, rest = name.partition("-")
        owner = rest.partition("-")[0]
        if prefix == _PREFIX and owner.isdecimal() and not os.path.exists(f"/proc/{owner}"):
            _remove(name)


def _remove(name: str) -> None:
    with contextlib.suppress(subprocess.CalledProcessError):
        _run("ip", "netns", "del", name)


def _add_switch(switch: str) -> None:
    _run("ip", "netns", "add", switch)
    _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
    _run("ip", "-n", switch, "link", "set", "bridge", "up")


def _add_rank(name: str, rank: int, switch: str, bytes_per_s: float) -> None:
    port = f"port{rank}"
    _run("ip", "netns", "add", name)
    _run(
        "ip", "-n", switch, "link", "add", port, "type", "veth",
        "peer", "name", _DEVICE, "netns", name,
    )  # fmt: skip
    _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
    _run("ip", "-n", name, "address", "add", f"{_SUBNET}.{rank + 1}/24", "dev", _DEVICE)
    for device in ("lo", _DEVICE):
        _run("ip", "-n", name, "link", "set", device, "up")
    # A loss-based control fills a shaped link evenly; others probe for its rate.
    with contextlib.suppress(subprocess.CalledProcessError):
        _run(
            "ip", "-n", name, "route", "replace", f"{_SUBNET}.0/24", "dev", _DEVICE,
            "congctl", "cubic",
        )  # fmt: skip
    _shape(name, _DEVICE, bytes_per_s)
    _shape(switch, port, bytes_per_s)


def _shape(namespace: str, device: str, bytes_per_s: float) -> None:
    rate = f"{round(8 * bytes_per_s)}bit"
    _run(
        "ip", "netns", "exec", namespace, "tc", "qdisc", "replace", "dev", device, "root",
        "tbf", "rate", rate, "burst", _BURST, "limit", _QUEUE,
    )  # fmt: skip


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
