"""Do prompts of groups of ranks wait for each other as TensorRT-LLM has it, and no longer?"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.serving.requests import Request
from tests.serving.workloads import run_all, scheduler_of

WAIT_STEPS = 10


def balanced(name="trtllm", groups=2):
    return scheduler_of(
        name,
        blocks=400,
        block_tokens=4,
        max_tokens=400,
        groups=groups,
        prompt_wait_steps=WAIT_STEPS,
    )


def answering(scheduler, count):
    """So many requests whose prompts are done and whose answers are long."""
    for number in range(count):
        scheduler.arrive(Request(number, 0.0, 8, 80))
    assert len(scheduler.schedule().chunks) == count


def steps_until_prompts(scheduler):
    return next(step for step in range(100) if scheduler.schedule().chunks)


def test_prompts_start_at_once_while_a_group_has_nothing_to_answer():
    scheduler = balanced()
    answering(scheduler, 1)
    scheduler.arrive(Request(1, 0.0, 8, 80))
    assert steps_until_prompts(scheduler) == 0


def test_prompts_wait_until_each_group_has_one():
    scheduler = balanced()
    answering(scheduler, 2)
    scheduler.arrive(Request(2, 0.0, 8, 80))
    assert not any(scheduler.schedule().chunks for _ in range(3))
    scheduler.arrive(Request(3, 0.0, 8, 80))
    assert len(scheduler.schedule().chunks) == 2


@pytest.mark.parametrize("idle_steps", [0, 4, 13])
def test_steps_are_counted_from_the_last_start_on_whether_or_not_somebody_waits(idle_steps):
    scheduler = balanced()
    answering(scheduler, 2)
    for _ in range(idle_steps):
        scheduler.schedule()
    scheduler.arrive(Request(2, 0.0, 8, 80))
    assert steps_until_prompts(scheduler) == (WAIT_STEPS - 1 - idle_steps) % WAIT_STEPS


def test_steps_taken_at_once_end_where_prompts_start():
    scheduler = balanced()
    answering(scheduler, 2)
    scheduler.arrive(Request(2, 0.0, 8, 80))
    batch = scheduler.schedule()
    assert scheduler.repeat(batch, 50) == WAIT_STEPS - 2
    assert scheduler.schedule().chunks


@pytest.mark.parametrize("name", ["trtllm", "trtllm-max-utilisation"])
@settings(max_examples=30)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=20),
    groups=st.integers(2, 4),
)
def test_who_waits_gets_all_tokens_nevertheless(name, lengths, groups):
    scheduler = balanced(name, groups)
    requests = [Request(n, 0.0, prompt, answer) for n, (prompt, answer) in enumerate(lengths)]
    run_all(scheduler, requests)
    assert all(request.generated == request.output_tokens for request in requests)
    assert scheduler.cache.free_blocks == scheduler.cache.blocks
