"""Do schedulers keep to the rules of their engines, whatever the workload?"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.load import load_model, load_profile
from simulator.serving.defaults import engine_defaults, scheduler_name
from simulator.serving.described import Deployment
from simulator.serving.requests import Request
from simulator.serving.schedulers.by_name import SCHEDULERS
from tests.serving.workloads import run_all, scheduler_of

LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=30)


def requests_of(lengths):
    return [Request(n, 0.0, prompt, answer) for n, (prompt, answer) in enumerate(lengths)]


@pytest.mark.parametrize("name", SCHEDULERS)
@settings(max_examples=30)
@given(lengths=LENGTHS, keeps=st.booleans())
def test_every_request_gets_all_its_tokens_and_every_block_comes_back(name, lengths, keeps):
    scheduler = scheduler_of(name, blocks=40, block_tokens=4, keeps_prefixes=keeps, max_tokens=64)
    requests = requests_of(lengths)
    batches = run_all(scheduler, requests)
    assert all(request.generated == request.output_tokens for request in requests)
    assert all(request.last_token_s >= request.first_token_s > 0 for request in requests)
    assert sum(len(batch.finished) for batch in batches) == len(requests)
    assert scheduler.cache.free_blocks == scheduler.cache.blocks
    assert scheduler.used_share == 0
    assert not scheduler.running
    assert scheduler.decodes.count == 0


@pytest.mark.parametrize("name", SCHEDULERS)
@settings(max_examples=30)
@given(lengths=LENGTHS)
def test_tokens_computed_are_those_of_the_workload_where_nobody_is_preempted(name, lengths):
    scheduler = scheduler_of(name, blocks=4000, block_tokens=4, max_tokens=64)
    requests = requests_of(lengths)
    batches = run_all(scheduler, requests)
    assert not any(batch.preempted for batch in batches)
    if name != "static":  # pads prompts, and goes on for those who are done
        prompts = sum(chunk.tokens for batch in batches for chunk in batch.chunks)
        assert prompts == sum(request.prompt_tokens for request in requests)
        decodes = sum(batch.decodes for batch in batches)
        assert decodes == sum(request.output_tokens - 1 for request in requests)


@pytest.mark.parametrize("name", SCHEDULERS)
@settings(max_examples=30)
@given(lengths=LENGTHS)
def test_nobody_is_admitted_before_somebody_who_came_earlier(name, lengths):
    scheduler = scheduler_of(name, blocks=4000, block_tokens=4, max_tokens=64)
    requests = requests_of(lengths)
    run_all(scheduler, requests)
    orders = [request.order for request in requests]
    assert orders == sorted(orders)


@settings(max_examples=30)
@given(lengths=LENGTHS)
def test_a_step_of_vllm_never_exceeds_its_budget(lengths):
    scheduler = scheduler_of("vllm-v1", blocks=60, block_tokens=4, max_tokens=16)
    batches = run_all(scheduler, requests_of(lengths))
    assert max(batch.tokens for batch in batches) <= 16


def test_vllm_fills_the_budget_that_answers_leave_with_a_cut_prompt():
    scheduler = scheduler_of("vllm-v1", max_tokens=16)
    batches = run_all(scheduler, [Request(0, 0.0, 10, 4), Request(1, 0.0, 20, 2)])
    chunks = [[(c.request.number, c.tokens) for c in batch.chunks] for batch in batches]
    assert chunks[:3] == [[(0, 10), (1, 6)], [(1, 14)], []]
    assert [batch.decodes for batch in batches] == [0, 1, 2, 1]


def test_vllm_preempts_the_last_admitted_and_admits_nobody_in_that_step():
    # Four blocks of 4 tokens: two prompts of 7 fill them, and the 9th token needs a fifth.
    scheduler = scheduler_of("vllm-v1", blocks=4, block_tokens=4, max_tokens=64)
    first, second = Request(0, 0.0, 7, 6), Request(1, 0.0, 7, 6)
    batches = run_all(scheduler, [first, second])
    assert (first.preemptions, second.preemptions) == (0, 1)
    step = next(batch for batch in batches if batch.preempted)
    assert step.preempted == [second]
    assert not step.chunks


def test_a_preempted_request_of_vllm_finds_its_own_blocks_again():
    scheduler = scheduler_of(
        "vllm-v1", blocks=4, block_tokens=4, max_tokens=64, keeps_prefixes=True
    )
    first, second = Request(0, 0.0, 7, 4), Request(1, 0.0, 7, 4)
    batches = run_all(scheduler, [first, second])
    again = [c for batch in batches[1:] for c in batch.chunks if c.request is second]
    assert again
    assert again[0].context == 4


def test_sglang_computes_prompts_in_steps_of_their_own():
    scheduler = scheduler_of("sglang", max_tokens=64)
    batches = run_all(scheduler, requests_of([(10, 5), (20, 5), (60, 5), (30, 5)]))
    assert not any(batch.chunks and batch.decodes for batch in batches)


def test_sglang_retracts_the_request_with_the_shortest_answer():
    scheduler = scheduler_of("sglang", blocks=10, block_tokens=4, max_tokens=8)
    requests = requests_of([(8, 20), (8, 20)])
    run_all(scheduler, requests)
    assert [request.preemptions for request in requests] == [0, 1] or not any(
        request.preemptions for request in requests
    )


def test_trtllm_without_eviction_holds_the_whole_answer_from_the_beginning():
    # 10 blocks of 4: each request reserves 5, so the third waits for an end.
    scheduler = scheduler_of("trtllm", blocks=10, block_tokens=4)
    batches = run_all(scheduler, requests_of([(8, 12)] * 3))
    assert [len(batch.chunks) for batch in batches[:2]] == [2, 0]
    assert sum(len(batch.preempted) for batch in batches) == 0
    assert max(batch.decodes for batch in batches) == 2


def test_all_who_come_to_turbomind_together_have_their_first_tokens_together():
    requests = [Request(n, 0.0, prompt_tokens=60, output_tokens=3) for n in range(4)]
    first, *later = run_all(scheduler_of("turbomind", max_tokens=64), requests)
    assert sum(chunk.tokens for chunk in first.chunks) == 4 * 60
    assert [batch.decodes for batch in later] == [4, 4]
    counting = run_all(
        scheduler_of("trtllm-max-utilisation", max_tokens=64), requests_of([(60, 3)] * 4)
    )
    assert len(counting) > 1 + len(later)


def test_a_static_batch_goes_on_for_its_longest_answer():
    scheduler = scheduler_of("static", max_requests=2)
    batches = run_all(scheduler, requests_of([(8, 2), (6, 5), (8, 1)]))
    assert [batch.decodes for batch in batches] == [0, 2, 2, 2, 2, 0]
    assert [chunk.tokens for chunk in batches[0].chunks] == [8, 8]


def test_orca_reserves_the_longest_answer_that_the_engine_allows():
    scheduler = scheduler_of("orca", blocks=10, block_tokens=4, max_model_tokens=40)
    batches = run_all(scheduler, requests_of([(4, 4), (4, 4)]))
    assert max(batch.decodes for batch in batches) == 1


@settings(max_examples=30)
@given(lengths=LENGTHS, keeps=st.booleans())
def test_quiet_steps_taken_at_once_are_the_steps_one_by_one(lengths, keeps):
    ends = []
    for most in (0, 50):
        scheduler = scheduler_of("vllm-v1", blocks=40, block_tokens=4, keeps_prefixes=keeps)
        requests = requests_of(lengths)
        for request in requests:
            scheduler.arrive(request)
        step = 0
        while (batch := scheduler.schedule()) is not None:
            step += 1 + scheduler.repeat(batch, most)
            scheduler.complete(batch, float(step))
        ends.append([(r.first_token_s, r.last_token_s, r.preemptions) for r in requests])
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("name", "places"), [("orca", 128), ("orca-pow2", 64), ("orca-oracle", 32)]
)
def test_orca_reserves_the_longest_the_next_power_of_two_or_the_answer_itself(name, places):
    # 9 tokens of prompt and 17 of answer: 26, 9 + 32 = 41, or all 128, each a power of two.
    scheduler = scheduler_of(name, max_model_tokens=128)
    assert scheduler.reserved_tokens(Request(0, 0.0, 9, 17)) == places


def test_paged_memory_holds_more_than_twice_as_many_requests_as_contiguous():
    """Kwon et al., arXiv 2309.06180, section 6.2: 2.7 to 8 times the rate of Orca (max)."""
    held = {}
    for name in ("orca", "vllm-v1"):
        scheduler = scheduler_of(
            name, blocks=128, max_requests=256, max_tokens=2048, max_model_tokens=2048
        )
        batches = run_all(scheduler, [Request(n, 0.0, 160, 340) for n in range(40)])
        held[name] = max(batch.decodes for batch in batches)
    assert 2.7 <= held["vllm-v1"] / held["orca"] <= 12


def test_atom_computes_prompts_before_answers_and_whole():
    profile = load_profile("mi355x")
    served = Deployment(model=load_model("llama3.1-8b"), profile=profile, gpus=1, engine="atom")
    assert scheduler_name(served) == "vllm-v0"
    assert not engine_defaults(served).chunked_prefill
