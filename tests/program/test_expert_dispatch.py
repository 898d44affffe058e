"""How tokens travel to their experts: bytes of each dispatcher, by eye and by counting."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

import pytest
from pydantic import ValidationError

from simulator.described.job import Job
from simulator.described.load import load_profile
from simulator.described.model import Experts
from simulator.engine.replay import replay
from simulator.errors import InputError
from simulator.program.build import build_program
from simulator.program.grid.expert_tokens import parts_reached
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Collective, Kind
from simulator.program.price.stage_cost import StageCosts
from simulator.results.traffic import rank_collectives
from simulator.schedule.slots import Phase
from tests.jobs import NO_LATENCY, network_profile, small_job, small_model

TOKENS, HIDDEN, HALF, TOP_K = 64, 64, 2, 4


def experts(**fields: Any) -> Experts:
    return Experts(**{"count": 16, "top_k": TOP_K, "ffn_hidden": 32, **fields})


def job(dispatcher: str, *, gpus: int = 16, ep: int = 16, **fields: Any) -> Job:
    """Four nodes of four GPUs, 64 tokens per rank, links ten times as fast inside."""
    model = small_model(layers=1, experts=experts(**fields))
    return small_job(
        model, gpus=gpus, ep=ep, global_batch=gpus, seq_len=TOKENS, ep_dispatch=dispatcher,
        profile=network_profile(
            {**NO_LATENCY, "launch": "0 s", "bandwidth": "10 GB/s"}, NO_LATENCY
        ),
    )  # fmt: skip


def issued(job: Job, name: str) -> list[Collective]:
    return [each for each in rank_collectives(build_program(job)) if each.name == name]


def counted(experts: Experts, parts: int) -> float:
    """The same expectation by going through all that a token may pick."""
    of_group, of_part = experts.count // experts.groups, experts.count // parts
    found = [
        len({expert // of_part for expert in choice})
        for picked in combinations(range(experts.groups), experts.picked_groups)
        for choice in combinations(
            [group * of_group + i for group in picked for i in range(of_group)], experts.top_k
        )
    ]
    return sum(found) / len(found)


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize(("groups", "top_groups"), [(1, 0), (2, 1), (4, 2), (4, 3), (8, 4)])
@pytest.mark.parametrize("top_k", [1, 3])
def test_parts_reached_are_what_counting_all_choices_gives(groups, top_groups, top_k, parts):
    routed = Experts(count=8, top_k=top_k, ffn_hidden=8, groups=groups, top_groups=top_groups)
    assert parts_reached(routed, parts) == pytest.approx(counted(routed, parts))


def test_deepseek_v3_reaches_at_most_four_of_eight_nodes():
    limited = Experts(count=256, top_k=8, ffn_hidden=8, groups=8, top_groups=4)
    free = limited.model_copy(update={"top_groups": 0})
    assert parts_reached(limited, 8) == pytest.approx(4 * (1 - comb(96, 8) / comb(128, 8)))
    assert 3.5 < parts_reached(limited, 8) < 4 < parts_reached(free, 8) < 6


@pytest.mark.parametrize("top_groups", [0, 1, 2, 3])
def test_a_token_crosses_the_fabric_once_per_node_that_it_reaches(top_groups):
    """Of four nodes one is its own; four copies of it cross by all_to_all as three in four."""
    limited = {"groups": 4, "top_groups": top_groups}
    (straight, *_), (hierarchical, *_) = (
        issued(job(name, **limited), "dispatch") for name in ("all_to_all", "hierarchical")
    )
    token_bytes, elsewhere = HIDDEN * HALF, 3 / 4
    assert straight.port_bytes["fabric"] == TOKENS * TOP_K * elsewhere * token_bytes
    nodes = parts_reached(experts(**limited), 4)
    assert nodes <= (top_groups or 4)
    assert hierarchical.port_bytes["fabric"] == pytest.approx(
        TOKENS * nodes * elsewhere * token_bytes
    )
    ranks = parts_reached(experts(**limited), 16)
    assert hierarchical.port_bytes["scale_up"] == pytest.approx(
        TOKENS * ranks * elsewhere * token_bytes
    )


def exchanging_s(job: Job) -> float:
    parts = StageCosts(job).work(Slice(0, 1), Phase.FORWARD).parts
    return sum(part.seconds for part in parts if part.name in ("dispatch", "combine"))


def test_the_fewer_nodes_a_token_may_reach_the_shorter_are_exchange_and_step():
    limited = [job("hierarchical", groups=4, top_groups=most) for most in (1, 2, 3, 4)]
    steps = [replay(build_program(each)).step_time_s for each in limited]
    exchanges = [exchanging_s(each) for each in limited]
    assert steps == pytest.approx(sorted(steps), rel=1e-12)
    assert exchanges == sorted(exchanges)
    assert exchanges[-1] < exchanging_s(job("all_to_all"))
    # The fabric is the bottleneck, so time falls as the bytes on it do.
    nodes = [parts_reached(experts(groups=4, top_groups=most), 4) for most in (1, 4)]
    assert exchanges[0] / exchanges[-1] == pytest.approx(nodes[0] / nodes[1])


def test_routing_limits_change_nothing_for_whoever_sends_every_copy_by_itself():
    free, limited = (
        replay(build_program(job("all_to_all", groups=4, top_groups=most))).step_time_s
        for most in (4, 1)
    )
    assert free == limited


def test_inside_a_node_nothing_crosses_the_fabric():
    (dispatch, *_) = issued(job("hierarchical", gpus=4, ep=4), "dispatch")
    assert dispatch.port_bytes["fabric"] == 0
    assert dispatch.port_bytes["scale_up"] > 0


def with_rates(job: Job, **rates: float) -> Job:
    """The job on devices whose multiprocessors pass so many bytes per second."""
    profile = job.cluster.profile
    kernels = profile.kernels.model_copy(update=rates)
    changed = profile.model_copy(update={"kernels": kernels})
    cluster = job.cluster.model_copy(update={"profile": changed})
    return job.model_copy(update={"cluster": cluster})


def test_multiprocessors_bound_what_four_ranks_pass_at_half_the_rate_of_eight():
    """All that a rank takes in counts, what it sends to itself, too; links are quicker here."""
    inside = job("hierarchical", gpus=4, ep=4)
    slow = with_rates(inside, deepep_bytes_per_s=1e9)
    taken_in = TOKENS * HIDDEN * HALF * parts_reached(experts(), 4)
    assert exchanging_s(slow) == pytest.approx(2 * taken_in / 0.5e9)
    assert exchanging_s(with_rates(inside, deepep_bytes_per_s=1e15)) == exchanging_s(inside)


def test_hybridep_has_a_rate_of_its_own():
    deep = with_rates(
        job("hierarchical", gpus=4, ep=4), deepep_bytes_per_s=1e9, hybridep_bytes_per_s=2e9
    )
    stack = deep.plan.stack.model_copy(update={"expert_exchange": "hybridep"})
    hybrid = deep.model_copy(update={"plan": deep.plan.model_copy(update={"stack": stack})})
    assert exchanging_s(deep) == pytest.approx(2 * exchanging_s(hybrid))


def test_between_nodes_the_fabric_sets_the_pace_of_a_dispatcher():
    across = job("hierarchical")
    assert exchanging_s(with_rates(across, deepep_bytes_per_s=1.0)) == exchanging_s(across)


def test_copies_sent_straight_know_no_rate_of_a_dispatcher():
    straight = job("all_to_all", gpus=4, ep=4)
    assert exchanging_s(with_rates(straight, deepep_bytes_per_s=1.0)) == exchanging_s(straight)


def test_eight_b200_pass_tokens_by_deepep_as_fast_as_was_measured():
    """DeepEP, 4,096 tokens of 7,168 bf16 numbers to 8 of 64 experts on 8 B200: 421 and 361 GB/s."""
    routed = Experts(count=64, top_k=8, ffn_hidden=64)
    model = small_model(layers=1, hidden=7168, heads=56, kv_heads=56, experts=routed)
    measured = small_job(
        model, gpus=8, ep=8, global_batch=8, seq_len=4096, ep_dispatch="hierarchical",
        profile=load_profile("b200-sxm-180gb"),
    )  # fmt: skip
    taken_in = 4096 * 7168 * 2 * parts_reached(routed, 8)
    expected_s = taken_in / 421e9 + taken_in / 361e9
    assert exchanging_s(measured) == pytest.approx(expected_s, rel=0.05)


def test_all_gather_gives_every_rank_all_tokens_with_their_maps_and_weights():
    """Forward tokens are gathered and results scattered, backward the other way round."""
    gathered = job("all_gather")
    sizes = {
        "dispatch": 16 * TOKENS * HIDDEN * HALF,
        "dispatch_map": 16 * TOKENS * 16,
        "dispatch_weights": 16 * TOKENS * 16 * 4,
        "combine": 16 * TOKENS * HIDDEN * HALF,
    }
    for name, num_bytes in sizes.items():
        assert {each.num_bytes for each in issued(gathered, name)} == {num_bytes}
    kinds = {name: [each.kind for each in issued(gathered, name)] for name in sizes}
    assert kinds["dispatch"] == [Kind.ALL_GATHER, Kind.REDUCE_SCATTER]
    assert kinds["combine"] == [Kind.REDUCE_SCATTER, Kind.ALL_GATHER]
    assert kinds["dispatch_map"] == [Kind.ALL_GATHER]
    assert not issued(gathered, "expert_counts")


@pytest.mark.parametrize("etp", [1, 2])
def test_experts_compute_the_same_however_tokens_travel(etp):
    model = small_model(layers=1, experts=experts())
    made = (
        small_job(model, gpus=8, ep=4, etp=etp, ep_dispatch=dispatcher)
        for dispatcher in ("all_to_all", "all_gather", "hierarchical")
    )
    assert len({StageCosts(each).work(Slice(0, 1), Phase.FORWARD).flop for each in made}) == 1


def test_a_hot_expert_does_not_change_what_is_gathered():
    model = small_model(layers=1, experts=experts())
    even, hot = (
        issued(
            small_job(model, gpus=4, ep=4, ep_dispatch="all_gather", expert_load=load), "dispatch"
        )[0].num_bytes
        for load in (None, {"hot": 2.0})
    )
    assert even == hot


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"groups": 3}, "must divide the 16 experts"),
        ({"groups": 4, "top_groups": 5}, "more than all 4 groups"),
        ({"groups": 8, "top_groups": 1}, "fewer than the 4 that a token uses"),
    ],
)
def test_impossible_limits_are_refused(fields, words):
    with pytest.raises(ValidationError, match=words):
        experts(**fields)


def test_dense_models_dispatch_nothing():
    with pytest.raises(InputError, match=r"plan\.ep_dispatch.*needs a model with experts"):
        small_job(ep_dispatch="hierarchical")


@pytest.mark.parametrize("etp", [2, 4])
def test_experts_cut_in_parts_gather_what_nodes_were_sent_and_scatter_what_they_return(etp):
    """A rank passes on what reached it, 64 tokens' rows of 128 bytes for each rank reached."""
    model = small_model(layers=1, experts=experts())
    cut = small_job(
        model, gpus=16, ep=16 // etp, etp=etp, tp=etp, sequence_parallel=True, seq_len=TOKENS,
        ep_dispatch="hierarchical", profile=network_profile(),
    )  # fmt: skip
    (gathered, *_), (scattered, *_) = (
        issued(cut, name) for name in ("dispatch_gather", "combine_scatter")
    )
    assert gathered.kind.value == "all_gather"
    assert scattered.kind.value == "reduce_scatter"
    assert gathered.num_bytes == scattered.num_bytes
    whole = job("hierarchical")
    assert not issued(whole, "dispatch_gather")
    assert not issued(whole, "combine_scatter")
