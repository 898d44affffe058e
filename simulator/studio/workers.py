"""How do several people ask at once, and nobody waits for an answer that nobody wants?

Every worker is a process with one question at a time. A visitor has one question of each kind:
a newer one takes the place of an older one that still waits, and ends the process of one that
takes long. A process that ends is started anew.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from simulator.errors import Fault
from simulator.studio.job_answers import SEARCHES, answered, fault_data, too_deep, warm_up

GRACE_S = 1.0
"""How long a question that nobody waits for may go on before its process is ended: about as long
as a new process takes to start."""
LONGEST_S = 60.0
"""How long one question may take [s]."""
MOST_BYTES = 4 * 1024**3
"""Memory of a process beyond what its code takes; a question that needs more is refused."""
_KEPT_ANSWERS = 32
"""Answers to the last questions about a step, of about a megabyte each: sliders go back, too."""
_NEW_OBJECTS_PER_COLLECTION = 100_000
"""As for the command line: looking for garbage more often is a tenth of a short answer."""

Ticket = tuple[str, str]
"""Visitor and kind of question."""


class StaleError(Exception):
    """The visitor has asked something newer."""


class Worker:
    """A process that answers one question at a time."""

    def __init__(self) -> None:
        self._process: SpawnProcess | None = None

    def start(self) -> None:
        """Start the process; it loads what it needs while it waits."""
        # A forked copy of a process with threads may hang.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_answer_all, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, name: str, asked: dict[str, Any]) -> bytes:
        """The answer.

        Raises:
            EOFError: The process ended before it had one.
        """
        if self._process is None:
            self.start()
        try:
            self._pipe.send((name, asked))
            return self._pipe.recv_bytes()
        except RecursionError:
            return too_deep()
        except OSError as error:
            raise EOFError from error

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.join()


def _answer_all(pipe: Connection) -> None:
    limit_memory(MOST_BYTES)
    gc.set_threshold(_NEW_OBJECTS_PER_COLLECTION)
    with suppress(EOFError, KeyboardInterrupt):  # whoever asks has gone
        warm_up()
        while True:
            pipe.send_bytes(answered(*pipe.recv()))


def limit_memory(most_bytes: int) -> None:
    """Let this process take no more data than that, where the system can hold it to it."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most))


class Workers:
    """Some workers for steps, others for searches, so that no search delays a step.

    To be used within one event loop.
    """

    def __init__(self, count: int) -> None:
        """Start ``count`` workers of each kind; those for searches when they are first needed."""
        self._all = [Worker() for _ in range(2 * count)]
        for worker in self._all[::2]:
            worker.start()
        self._threads = ThreadPoolExecutor(len(self._all))
        self._free: dict[bool, asyncio.Queue[Worker]] = {}
        for is_search in (False, True):
            queue = self._free[is_search] = asyncio.Queue()
            for worker in self._all[is_search::2]:
                queue.put_nowait(worker)
        self._newest: dict[Ticket, _Request] = {}
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    async def answer(self, visitor: str, name: str, asked: dict[str, Any]) -> bytes:
        """The answer as JSON.

        Raises:
            StaleError: The visitor asked something newer meanwhile.
        """
        try:
            question = json.dumps([name, asked.get("state"), asked.get("timeline")], sort_keys=True)
        except RecursionError:
            return too_deep()
        ticket, request = (visitor, name), _Request()
        older = self._newest.get(ticket)
        if older is not None:
            older.drop()
        self._newest[ticket] = request
        if question in self._kept:
            del self._newest[ticket]
            self._kept.move_to_end(question)
            return self._kept[question]
        free = self._free[name in SEARCHES]
        try:
            worker = await free.get()
            try:
                if request.is_stale:
                    raise StaleError
                found = await self._asked(worker, request, name, asked)
                if name == "step":
                    self._keep(question, found)
                return found
            finally:
                free.put_nowait(worker)
        finally:
            if self._newest.get(ticket) is request:
                del self._newest[ticket]

    def _keep(self, question: str, answer: bytes) -> None:
        """Keep the answer to a step; of the same state it is always the same."""
        if answer.startswith(b'{"title"'):
            self._kept[question] = answer
            while len(self._kept) > _KEPT_ANSWERS:
                self._kept.popitem(last=False)

    async def _asked(
        self, worker: Worker, request: _Request, name: str, asked: dict[str, Any]
    ) -> bytes:
        loop = asyncio.get_running_loop()
        request.started(worker.end)
        limit = loop.call_later(LONGEST_S, worker.end)
        try:
            found = await loop.run_in_executor(self._threads, worker.ask, name, asked)
        except EOFError:
            await loop.run_in_executor(self._threads, worker.start)
            if request.is_stale:
                raise StaleError from None
            return _too_long()
        finally:
            limit.cancel()
            request.ended()
        return found

    def close(self) -> None:
        """End all processes."""
        for worker in self._all:
            worker.end()
        self._threads.shutdown(cancel_futures=True)


class _Request:
    """A question under way, and whether anyone still wants its answer."""

    def __init__(self) -> None:
        self.is_stale = False
        self._end: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def started(self, end: Callable[[], None]) -> None:
        self._end = end

    def ended(self) -> None:
        self._end = None
        if self._timer is not None:
            self._timer.cancel()

    def drop(self) -> None:
        self.is_stale = True
        if self._end is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GRACE_S, self._end)


def _too_long() -> bytes:
    rule = f"did not finish within {LONGEST_S:.0f} s, or ran out of this machine's memory"
    hint = "use fewer microbatches or stages, or clustersim run, which has no time limit"
    return json.dumps({"faults": [fault_data(Fault("", rule, hint=hint))]}).encode()
