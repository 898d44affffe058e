"""How do many independent tasks run on workers that may die?

Any ``concurrent.futures`` executor does the work. A pool of processes breaks as a whole when
one of its processes dies (``os._exit``, out of memory, a signal): all running tasks are lost,
and nothing says which one was the cause. So they are run again, one at a time; the one that breaks
its worker again is given up, and the others lose only the time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    as_completed,
    wait,
)
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for_any
from threading import Thread
from typing import Any, TypeVar

from simulator.processor import core_count

T = TypeVar("T")
R = TypeVar("R")

_QUEUED_PER_WORKER = 2
"""Tasks handed to a pool at a time: one that runs and one that waits behind it."""


class WorkerDiedError(Exception):
    """A task whose worker died while it was the only one under way."""


@contextmanager
def worker_pool(workers: int | None) -> Iterator[tuple[Executor | None, int]]:
    """The processes and how many they are; no executor where this process is enough.

    Args:
        workers: How many; by default one per core.
    """
    processes = workers or core_count()
    if processes == 1:
        yield None, 1
        return
    with _process_pool(processes) as executor:
        yield executor, processes


def _process_pool(workers: int) -> ProcessPoolExecutor:
    """Processes of this machine that end with the process that started them, however it ends."""
    return ProcessPoolExecutor(workers, initializer=_end_in_silence)


def _end_in_silence() -> None:
    """Let an interrupt and the end of the parent end this process without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    wait_for_any([sentinel])
    os._exit(1)  # nobody is left who waits for a result


def run_on_executor(
    function: Callable[[T], R], items: Sequence[T], executor: Executor
) -> Iterator[tuple[int, R | Exception]]:
    """(index, result) of every item, in the order in which they finish.

    A task that fails yields its exception. If the executor itself breaks, what is left runs
    on processes of this machine.

    The executor stays open. Function and items must be picklable.
    """
    futures: dict[Future[R], int] = {}
    for index, item in enumerate(items):
        futures[executor.submit(function, item)] = index
    left: list[int] = []
    try:
        for future in as_completed(futures):
            if isinstance(future.exception(), BrokenExecutor):
                left.append(futures[future])
            else:
                yield futures[future], _outcome(future)
    finally:
        for future in futures:
            future.cancel()
    again = run_on_processes(function, [items[index] for index in left], core_count())
    for position, outcome in again:
        yield left[position], outcome


def run_on_processes(
    function: Callable[[T], R], items: Sequence[T], workers: int
) -> Iterator[tuple[int, R | Exception]]:
    """The same on a pool of processes that is replaced whenever one of them dies.

    Returns:
        (index, result) pairs; :class:`WorkerDiedError` in place of the result of a task
        that breaks its worker when it runs alone.
    """
    waiting = deque(range(len(items)))
    while waiting:
        suspects = yield from _until_broken(function, items, waiting, workers)
        for index in suspects:
            yield index, _alone(function, items[index])


def _until_broken(
    function: Callable[[T], R], items: Sequence[T], waiting: deque[int], workers: int
) -> Generator[tuple[int, R | Exception], None, list[int]]:
    """Take tasks from ``waiting`` until all are done; returns what was under way at a break."""
    under_way: dict[Future[R], int] = {}
    pool = _process_pool(min(workers, len(waiting)))
    try:
        while waiting or under_way:
            while waiting and len(under_way) < _QUEUED_PER_WORKER * workers:
                future = pool.submit(function, items[waiting[0]])
                under_way[future] = waiting.popleft()
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                if not isinstance(future.exception(), BrokenExecutor):
                    yield under_way.pop(future), _outcome(future)
            if any(future in under_way for future in done):
                break
    except BrokenExecutor:  # the pool broke before it took the next task
        pass
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return sorted(under_way.values())


def _alone(function: Callable[[T], R], item: T) -> R | Exception:
    with _process_pool(1) as pool:
        future: Future[R] = pool.submit(function, item)
        if isinstance(future.exception(), BrokenExecutor):
            return WorkerDiedError("its worker process died: killed, or out of memory")
        outcome: R | Exception = _outcome(future)
        return outcome


def _outcome(future: Future[Any]) -> Any:
    try:
        return future.result()
    except Exception as error:
        return error
