"""How are ranks started on this machine, and how does their answer come back?

Each rank is a process of its own, which finds its place in the environment variables that
torchrun sets, too. All run the same function; what one of them returns (rank 0, by
convention) is the answer. As a module this file is such a process::

    python -m simulator.ranks.launch FOLDER
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from simulator.errors import ClustersimError
from simulator.files import whole_file

Count = Callable[[], None]
Answer = TypeVar("Answer")

_TASK, _ANSWER, _PROGRESS, _FAULT = "task.pickle", "answer.pickle", "progress", "fault.pickle"
_LINES_SHOWN = 12
_POLL_S = 0.1


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
    """Until all have ended well; counts along with rank 0."""
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
    raise RankFailedError(f"rank {failed[0]} failed; its last words:\n{last}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    """A rank without the process that started it has nobody to answer."""
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
