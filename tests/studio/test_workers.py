"""Nobody waits for an answer that nobody wants, nor for somebody else's search."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from simulator.studio import workers as module
from simulator.studio.workers import StaleError, Workers

QUICK = {
    "state": {
        "model": "llama3.2-1b", "cluster.profile": "h100-sxm-80gb", "cluster.gpus": 8,
        "batch.global": 8, "batch.seq_len": 2048,
    },
}  # fmt: skip
ENDLESS = {"state": {**QUICK["state"], "batch.global": 2**15, "plan.pp": 8}}
"""32,768 microbatches."""


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch):
    """How long a question may take is no matter of most tests."""
    monkeypatch.setattr(module, "LONGEST_S", 600.0)


@contextmanager
def pool() -> Iterator[Workers]:
    started = Workers(1)
    try:
        yield started
    finally:
        started.close()


async def step(workers: Workers, visitor: str, asked: dict) -> float:
    return json.loads(await workers.answer(visitor, "step", asked))["step_time_s"]


def test_a_newer_question_ends_an_older_one_that_takes_long(monkeypatch):
    monkeypatch.setattr(module, "GRACE_S", 0.0)

    async def story() -> None:
        with pool() as workers:
            endless = asyncio.create_task(step(workers, "ann", ENDLESS))
            await asyncio.sleep(0.1)
            assert await step(workers, "ann", QUICK) > 0
            with pytest.raises(StaleError):
                await endless

    asyncio.run(story())


def test_of_questions_that_wait_only_the_newest_of_each_visitor_is_answered():
    async def story() -> list[object]:
        with pool() as workers:
            asked = [step(workers, visitor, QUICK) for visitor in ("ann", "ben", "ben", "ben")]
            return await asyncio.gather(*asked, return_exceptions=True)

    ann, *older, newest = asyncio.run(story())
    assert ann == newest
    assert all(isinstance(each, StaleError) for each in older)


def test_a_question_without_end_is_answered_with_the_way_out(monkeypatch):
    monkeypatch.setattr(module, "LONGEST_S", 0.5)

    async def story() -> None:
        with pool() as workers:
            (fault,) = json.loads(await workers.answer("ann", "step", ENDLESS))["faults"]
            assert "clustersim run" in fault["hint"]
            monkeypatch.setattr(module, "LONGEST_S", 600.0)
            assert await step(workers, "ann", QUICK) > 0

    asyncio.run(story())


def test_a_question_too_deep_to_be_sent_is_a_fault():
    deep: list = []
    for _ in range(2000):
        deep = [deep]

    async def story() -> None:
        with pool() as workers:
            answer = json.loads(await workers.answer("ann", "step", {"state": {"model": deep}}))
            assert answer["faults"][0]["rule"] == "is nested too deeply"

    asyncio.run(story())


def test_a_question_that_was_answered_before_is_not_simulated_again(monkeypatch):
    async def story() -> None:
        with pool() as workers:
            first = await workers.answer("ann", "step", QUICK)
            for worker in workers._all:
                monkeypatch.setattr(worker, "ask", lambda *_: pytest.fail("asked again"))
            assert await workers.answer("ben", "step", QUICK) == first

    asyncio.run(story())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to it")
def test_a_question_that_needs_too_much_memory_is_a_fault_and_no_bug():
    code = f"""
import resource
from simulator.studio.job_answers import answered, warm_up
from simulator.studio.workers import limit_memory
warm_up()
taken = [line for line in open("/proc/self/status") if line.startswith("VmData")]
limit_memory(1024 * int(taken[0].split()[1]) + 2**26)
print(answered("step", {ENDLESS!r}).decode())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    (fault,) = json.loads(done.stdout)["faults"]
    assert "more memory" in fault["rule"]
