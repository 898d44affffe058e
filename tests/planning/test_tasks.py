"""Does every task get its result, or its own failure, whatever happens to the workers?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from pathlib import Path

import pytest

from simulator.planning.executors import (
    WorkerDiedError,
    run_on_executor,
    run_on_processes,
    worker_pool,
)

DEADLY, FAULTY = 3, 5


def square(number: int) -> int:
    """Its square; 3 kills its worker as the kernel does when memory is out, 5 is refused."""
    if number == DEADLY:
        os._exit(137)
    if number == FAULTY:
        raise ValueError("five")
    return number * number


def dies_once(marker: Path) -> str:
    """Kills its first worker and is done by the second."""
    if not marker.exists():
        marker.touch()
        os._exit(1)
    return "done"


def check_squares(outcomes: dict[int, object]) -> None:
    assert sorted(outcomes) == list(range(8))
    assert isinstance(outcomes[DEADLY], WorkerDiedError)
    assert isinstance(outcomes[FAULTY], ValueError)
    others = set(range(8)) - {DEADLY, FAULTY}
    assert {number: outcomes[number] for number in others} == {n: n * n for n in others}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies_costs_only_its_own_task(workers):
    check_squares(dict(run_on_processes(square, range(8), workers)))


def test_a_pool_of_the_caller_that_breaks_costs_only_the_guilty_task():
    with ProcessPoolExecutor(2) as executor:
        check_squares(dict(run_on_executor(square, range(8), executor)))


def test_a_task_whose_worker_was_killed_by_chance_is_done_by_another(tmp_path):
    assert dict(run_on_processes(dies_once, [tmp_path / "marker"], 2)) == {0: "done"}


def test_an_interrupted_worker_prints_no_traceback(capfd):
    """The terminal sends Ctrl-C to every process; the command says what there is to say."""
    with worker_pool(2) as (executor, _):
        assert executor is not None
        worker = executor.submit(os.getpid).result()
        os.kill(worker, signal.SIGINT)
        with pytest.raises(BrokenExecutor):
            executor.submit(time.sleep, 60).result()
    assert capfd.readouterr().err == ""


ORPHANS = """
import os, sys, time
from pathlib import Path
from simulator.planning.executors import run_on_processes

def sleep(folder):
    (folder / str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    list(run_on_processes(sleep, [Path(sys.argv[1])] * 4, 2))
"""


def is_running(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux who runs")
def test_workers_end_with_the_process_that_started_them_even_if_it_is_killed(tmp_path):
    script = tmp_path / "pool.py"
    script.write_text(ORPHANS, encoding="utf-8")
    marks = tmp_path / "workers"
    marks.mkdir()
    main = subprocess.Popen([sys.executable, str(script), str(marks)])
    deadline = time.monotonic() + 600
    while len(list(marks.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    main.kill()
    main.wait()
    workers = [int(mark.name) for mark in marks.iterdir()]
    assert len(workers) == 2
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, workers))


def test_results_come_as_they_finish_and_carry_their_number():
    class Backwards(Executor):
        """Finishes the last task first."""

        def __init__(self):
            self.futures: list[Future] = []

        def submit(self, function, item):
            future = Future()
            future.set_result(function(item))
            self.futures.append(future)
            return future

    assert dict(run_on_executor(abs, [-1, -2, -3], Backwards())) == {0: 1, 1: 2, 2: 3}
    with ThreadPoolExecutor(2) as executor:
        assert dict(run_on_executor(abs, [-1, -2, -3], executor)) == {0: 1, 1: 2, 2: 3}


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_to_do_is_done_at_once(workers):
    assert list(run_on_processes(square, [], workers)) == []
