"""Attention to a cache and the exchanges of serving, in round numbers."""

from __future__ import annotations

import math

import pytest

from simulator.cost.collectives import CollectiveKind, Group, collective_cost
from simulator.described.cluster.hardware import Provenance
from simulator.serving.kernels.cache_attention import decode_s, latent_decode_s, prefill_s
from simulator.serving.kernels.exchange import all_gather_s, all_reduce_s, all_to_all_s
from simulator.serving.kernels.parameters import DecodeFit, ExchangeFit, LatentFit, PrefillFit
from tests.jobs import network_profile

BY_HAND = Provenance(kind="assumed", reference="round numbers")
DECODE = DecodeFit(floor="1 us", memory_efficiency=0.5, head="1 ns", key="1 ns", source=BY_HAND)
LATENT = LatentFit(floor="1 us", memory_efficiency=0.5, efficiency=0.5, source=BY_HAND)
PREFILL = PrefillFit(floor="1 us", efficiency=0.5, tail=0.25, source=BY_HAND)
TB, TFLOP = 1e12, 1e12


def decoded_s(requests: float, tokens: float, **changes: float) -> float:
    given = {"kv_heads": 8, "head_bytes": 512.0, "bandwidth_bytes_per_s": TB, "sm_count": 100}
    return decode_s(DECODE, requests, tokens, **{**given, **changes})


def test_nobody_takes_no_time():
    assert decoded_s(0, 0) == 0.0
    latent = {"heads": 128, "token_bytes": 1152.0, "latent_dim": 576, "value_dim": 512}
    rates = {"peak_flop_per_s": TFLOP, "bandwidth_bytes_per_s": TB}
    assert latent_decode_s(LATENT, 0, 0, **latent, **rates) == 0.0
    assert prefilled_s([]) == 0.0


def test_a_long_cache_is_read_at_its_share_of_the_bandwidth():
    """1000 requests of 10,000 tokens: 41 GB at 0.5 TB/s; the walk of 200 units adds the rest."""
    keys = 1e7 * 8
    memory_s, walk_s = keys * 512 / (0.5 * TB), keys / 200 * 1e-9
    expected = 1e-6 + 8000 * 1e-9 + (memory_s**3 + walk_s**3) ** (1 / 3)
    assert decoded_s(1000, 1e7) == pytest.approx(expected)


def test_one_short_request_is_a_walk_of_one_unit_per_head():
    """100 keys fill no unit of 128, so eight heads are eight units."""
    memory_s, walk_s = 100 * 8 * 512 / (0.5 * TB), 100e-9
    expected = 1e-6 + 8e-9 + (memory_s**3 + walk_s**3) ** (1 / 3)
    assert decoded_s(1, 100) == pytest.approx(expected)


@pytest.mark.parametrize("sm_count", [1, 10, 1000])
def test_a_cache_is_split_over_no_more_units_than_two_per_multiprocessor(sm_count):
    """One request of 12,800 tokens is 8 heads of 100 units each."""
    units = min(2 * sm_count, 800)
    memory_s, walk_s = 12800 * 8 * 512 / (0.5 * TB), 12800 * 8 / units * 1e-9
    expected = 1e-6 + 8e-9 + (memory_s**3 + walk_s**3) ** (1 / 3)
    assert decoded_s(1, 12800, sm_count=sm_count) == pytest.approx(expected)


@pytest.mark.parametrize(("heads", "computed_heads"), [(4, 16), (16, 16), (128, 128)])
def test_latent_attention_computes_at_least_sixteen_heads_of_one_compressed_cache(
    heads, computed_heads
):
    tokens = 1e5
    memory_s = tokens * 1152 / (0.5 * TB)
    compute_s = 2 * tokens * computed_heads * (576 + 512) / (0.5 * TFLOP)
    found = latent_decode_s(
        LATENT, 10, tokens, heads=heads, token_bytes=1152.0, latent_dim=576, value_dim=512,
        peak_flop_per_s=TFLOP, bandwidth_bytes_per_s=TB,
    )  # fmt: skip
    assert found == pytest.approx(1e-6 + (memory_s**3 + compute_s**3) ** (1 / 3))


def prefilled_s(chunks: list[tuple[int, float]], sm_count: int = 64) -> float:
    return prefill_s(
        PREFILL, chunks, heads=32, kv_heads=8, head_dim=128, head_bytes=512.0,
        peak_flop_per_s=TFLOP, bandwidth_bytes_per_s=math.inf, sm_count=sm_count,
    )  # fmt: skip


def test_a_prompt_attends_to_half_of_itself_and_half_a_tile_more():
    """1024 tokens: 1024 x (1024 + 128) / 2 pairs, 4 x 128 FLOP per pair and head, 32 x 8 tiles."""
    flop = 4 * 32 * 128 * 1024 * (1024 + 128) / 2
    tail = 1 + 0.25 * 64 / (32 * 8)
    assert prefilled_s([(1024, 0)]) == pytest.approx(1e-6 + flop / (0.5 * TFLOP) * tail)


def test_a_chunk_attends_to_all_before_it_too():
    alone, behind = prefilled_s([(1024, 0)]), prefilled_s([(1024, 4096)])
    tail = 1 + 0.25 * 64 / (32 * 8)
    more = 4 * 32 * 128 * 1024 * 4096 / (0.5 * TFLOP) * tail
    assert behind - alone == pytest.approx(more)


def test_a_prompt_in_two_chunks_computes_the_pairs_of_the_whole_and_a_tile_more():
    """Without the tail, and in one launch each."""

    def work_s(chunks: list[tuple[int, float]]) -> float:
        return sum(prefilled_s([chunk], sm_count=0) - 1e-6 for chunk in chunks)

    assert work_s([(512, 0), (512, 512)]) == pytest.approx(work_s([(1024, 0)]))


def test_chunks_of_several_requests_are_one_launch_with_all_their_tiles():
    one, both = prefilled_s([(256, 0)], sm_count=0), prefilled_s([(256, 0)] * 2, sm_count=0)
    assert both - 1e-6 == pytest.approx(2 * (one - 1e-6))


NETWORK = network_profile({"latency": "10 us", "bulk_latency": "10 us"}).network
"""Four GPUs of 1 GB/s in a node, whose library takes 10 us a hop."""


def reduced_s(ranks: int, message_bytes: float, **fit: object) -> float:
    given = {"floor": "1 us", "rank": "1 us", "efficiency": 0.5, "source": BY_HAND, **fit}
    return all_reduce_s(ExchangeFit(**given), NETWORK, ranks, message_bytes)


def library_s(kind: CollectiveKind, ranks: int, message_bytes: float) -> float:
    return collective_cost(kind, message_bytes, Group(ranks, min(ranks, 4)), NETWORK).seconds


@pytest.mark.parametrize(("ranks", "message_bytes"), [(1, 1e6), (4, 0.0)])
def test_one_rank_or_no_bytes_are_exchanged_in_no_time(ranks, message_bytes):
    assert reduced_s(ranks, message_bytes) == 0.0
    assert all_to_all_s(NETWORK, ranks, message_bytes) == 0.0
    assert all_gather_s(NETWORK, ranks, message_bytes) == 0.0


def test_a_small_message_is_read_from_all_others_in_one_shot():
    """Four ranks: 1 us and 1 us for each further one, three messages of 100 B at 0.5 GB/s."""
    assert reduced_s(4, 100.0) == pytest.approx(4e-6 + 3 * 100 / 0.5e9)


def test_a_large_message_takes_two_shots_or_the_librarys_time():
    two_shots_s = 2 * 4e-6 + 2 * 3 / 4 * 1e6 / 0.5e9
    by_library_s = library_s(CollectiveKind.ALL_REDUCE, 4, 1e6)
    assert reduced_s(4, 1e6) == pytest.approx(min(two_shots_s, by_library_s))
    assert reduced_s(4, 1e6, efficiency=0.9) <= reduced_s(4, 1e6)


def test_an_engines_own_kernel_does_not_leave_the_node():
    assert reduced_s(8, 100.0) == library_s(CollectiveKind.ALL_REDUCE, 8, 100.0)


def test_other_exchanges_are_the_librarys():
    assert all_to_all_s(NETWORK, 4, 1e6) == library_s(CollectiveKind.ALL_TO_ALL, 4, 1e6)
    assert all_gather_s(NETWORK, 8, 1e6) == library_s(CollectiveKind.ALL_GATHER, 8, 1e6)
