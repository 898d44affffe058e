"""Do preempted requests move to the host and back as in vLLM's first engine, at PCIe's speed?"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.load import load_model, load_profile
from simulator.errors import DoesNotFitError, InputError
from simulator.serving.block_cache import BlockCache
from simulator.serving.cluster import serve
from simulator.serving.described import Deployment
from simulator.serving.requests import Request
from simulator.serving.schedulers.scheduler import Batch, Limits
from simulator.serving.schedulers.vllm import VllmV0
from simulator.serving.step_time import StepTime
from simulator.serving.workload import Lengths, Workload
from tests.serving.workloads import run_all


def scheduler_of(blocks, host_blocks, **limits):
    cache = BlockCache(blocks, 4, keeps_prefixes=False, host_blocks=host_blocks)
    return VllmV0(Limits(8, 64, 120, **limits), cache)


def deployment_of(**settings):
    return Deployment(
        model=load_model("llama2-7b"),
        profile=load_profile("a100-sxm-80gb"),
        gpus=1,
        **{"version": "0.6.0", "swap_bytes": "4 GiB", **settings},
    )


@settings(max_examples=60)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=30),
    is_ahead=st.booleans(),
)
def test_nothing_is_computed_twice_and_every_block_comes_back_on_both_sides(lengths, is_ahead):
    scheduler = scheduler_of(40, 400, plans_ahead=is_ahead)
    requests = [Request(n, 0.0, prompt, answer) for n, (prompt, answer) in enumerate(lengths)]
    batches = run_all(scheduler, requests)
    assert all(request.generated == request.output_tokens for request in requests)
    prompts = sum(chunk.tokens for batch in batches for chunk in batch.chunks)
    assert prompts == sum(request.prompt_tokens for request in requests)
    decodes = sum(batch.decodes for batch in batches)
    assert decodes == sum(request.output_tokens - 1 for request in requests)
    assert scheduler.cache.free_blocks == 40
    assert not scheduler.cache.on_host
    assert scheduler.load == 0


def test_the_last_admitted_moves_out_comes_back_and_nobody_is_admitted_meanwhile():
    """Step for step by vLLM 0.6.0, ``_schedule_default`` and ``can_swap_in``."""
    # Prompts of 7 fill two of the five blocks each; the ninth tokens take the fifth and a sixth.
    scheduler = scheduler_of(5, 10)
    first, second, third = Request(0, 0.0, 7, 6), Request(1, 0.0, 7, 5), Request(2, 0.0, 7, 2)
    batches = run_all(scheduler, [first, second, third])
    steps = [
        (
            [chunk.request.number for chunk in batch.chunks],
            batch.decodes,
            [request.number for request in batch.preempted],
            batch.swapped_blocks,
        )
        for batch in batches
    ]
    assert steps == [
        ([0, 1], 0, [], 0),
        ([], 2, [], 0),
        ([], 1, [1], 2),  # the first takes the fifth block, and the second leaves two
        ([], 1, [], 0),  # two are free, but one more must be
        ([], 1, [], 0),
        ([], 1, [], 0),  # the last token of the first, whose blocks are free afterwards
        ([], 1, [], 2),
        ([2], 0, [], 0),  # nobody is on the host any more, so prompts are first again
        ([], 2, [], 0),
        ([], 1, [], 0),
    ]


@pytest.mark.parametrize(("blocks", "back"), [(6, 2), (5, 1)])
def test_nobody_comes_back_without_the_block_more_that_each_needs(blocks, back):
    # Two wait with two full blocks each, and need a third one at once.
    scheduler = scheduler_of(blocks, 10)
    requests = [Request(n, 0.0, 7, 5, computed=8, generated=2) for n in range(2)]
    scheduler.cache.on_host.update(dict.fromkeys(requests, 2))
    (batch,) = run_all(scheduler, [], most_steps=1)
    assert (batch.decodes, batch.swapped_blocks, batch.preempted) == (back, 2 * back, [])
    assert scheduler.cache.free_blocks == blocks - 3 * back


def test_a_host_without_room_ends_the_run_as_it_ends_vllm():
    with pytest.raises(DoesNotFitError, match="host memory"):
        run_all(scheduler_of(5, 1), [Request(n, 0.0, 7, 6) for n in range(2)])


def test_blocks_move_at_the_rate_of_pcie_and_small_ones_slower():
    """Kwon et al. (arXiv 2309.06180), section 7.3: small blocks suffer most from swapping."""
    seconds = {}
    for block_tokens in (4, 16, 1024):
        time = StepTime(deployment_of(block_tokens=block_tokens))
        still = Batch(8, 8 * 1024.0)
        moving = Batch(8, 8 * 1024.0, swapped_blocks=1024 // block_tokens)
        seconds[block_tokens] = time(moving).device_s - time(still).device_s
    # Keys and values of 1,024 tokens, 32 layers of 32 heads of 128, in 16 bits.
    rate = load_profile("a100-sxm-80gb").host.pcie_bytes_per_s
    assert seconds[1024] == pytest.approx(1024 * 2 * 32 * 4096 * 2 / rate, rel=0.1)
    assert seconds[4] > 2 * seconds[16] > 2 * seconds[1024]


def test_serving_from_too_small_a_cache_swaps_and_ends():
    workload = Workload(requests=60, prompt=Lengths(mean=100), answer=Lengths(mean=200))
    swapping = serve(deployment_of(kv_blocks=200), workload, record=True)
    anew = serve(deployment_of(kv_blocks=200, swap_bytes="0 B"), workload, record=True)
    assert all(request.generated == 200 for request in swapping.requests)
    computed = [sum(s.prompt_tokens for s in run.steps[0]) for run in (swapping, anew)]
    assert computed[0] == 60 * 100 < computed[1]
    assert swapping.replicas[0].preemptions > 0


@pytest.mark.parametrize(
    ("settings", "rule"),
    [({"version": "0.33.0"}, "is not modelled for vllm-v1"), ({"swap_bytes": "1 PB"}, "too much")],
)
def test_swap_that_the_engine_does_not_know_or_the_host_cannot_hold_is_refused(settings, rule):
    with pytest.raises(InputError, match=rule):
        serve(deployment_of(**settings), Workload(requests=1))
