from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost.collectives import CollectiveKind, Group
from simulator.described.job import Job
from simulator.described.model import Experts, Model
from simulator.described.plan.plan import Plan
from simulator.program.grid.rank_groups import (
    data_group,
    expert_data_group,
    expert_group,
    expert_replica_group,
    expert_shard_group,
    expert_tensor_group,
    shard_group,
)
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Category, Owner
from simulator.program.layer.block import microbatch_shape
from simulator.program.layer.experts import token_copies
from simulator.program.layer.layer_kinds import layer_kinds, layer_tensors, model_layer
from simulator.program.layer.layer_part import LayerKind
from simulator.program.layer.pieces import Axis, Exchange, GroupedGemm, Layer, Region
from simulator.program.layer.tensors import ParameterGroup
from simulator.program.price.stage_cost import StageCosts
from simulator.program.states.resident import resident_memory, slice_parameters
from simulator.program.strategies.expert_parallel import expert_parallel
from simulator.program.strategies.tensor_parallel import tensor_parallel
from simulator.results.simulation import run_step
from simulator.schedule import Phase
from tests.jobs import free_latency_profile, network_profile, small_job, small_model

HIDDEN, TOKENS, HALF = 64, 64, 2
COUNT, TOP_K, WIDTH = 8, 2, 32

EP = st.sampled_from([1, 2, 4, 8])
ETP = st.sampled_from([1, 2, 4])
KIND = LayerKind(mlp="experts")


def expert_model(**experts: Any) -> Model:
    fields = {"count": COUNT, "top_k": TOP_K, "ffn_hidden": WIDTH, **experts}
    return small_model(experts=fields)


def whole_layer(model: Model | None = None, **plan: Any) -> Layer:
    made = Plan(**plan)
    return model_layer(model or expert_model(), KIND, made, microbatch_shape(made, 1, TOKENS))


def divided(layer: Layer, *, tp: int = 1, ep: int = 1, etp: int = 1) -> Layer:
    layer = tensor_parallel(layer, tp, sequence_parallel=True, element_bytes=HALF)
    experts = Experts(count=COUNT, top_k=TOP_K, ffn_hidden=WIDTH, capacity_factor=1.0)
    return expert_parallel(layer, Group(ep, ep), etp, experts=experts, element_bytes=HALF)


def expert_job(**plan: Any) -> Job:
    model = plan.pop("model", expert_model())
    return small_job(model, **{"gpus": 8, "global_batch": 8, **plan})


def forward_flop(job: Job) -> float:
    return StageCosts(job).work(Slice(0, 1), Phase.FORWARD).flop


def grouped_flop(layer: Layer) -> float:
    products = [piece for piece in layer.pieces if isinstance(piece, GroupedGemm)]
    return sum(2.0 * p.groups * p.rows * p.n * p.k for p in products)


def exchanges(layer: Layer, axis: Axis) -> list[Exchange]:
    return [p for p in layer.pieces if isinstance(p, Exchange) and p.axis is axis]


def saved_bytes(layer: Layer, name: str) -> float:
    return next(saved.num_bytes for saved in layer.saved if saved.name == name)


def test_without_a_capacity_every_token_is_copied_for_its_top_k_experts():
    assert token_copies(Experts(count=4, top_k=2, ffn_hidden=8), 10) == 20


def test_with_a_capacity_every_expert_gets_its_ceiling():
    experts = Experts(count=4, top_k=1, ffn_hidden=8, capacity_factor=1.0)
    assert token_copies(experts, 10) == 4 * 3


def test_a_capacity_below_one_drops_tokens():
    experts = Experts(count=4, top_k=2, ffn_hidden=8, capacity_factor=0.5)
    assert token_copies(experts, 64) == 64


@given(st.integers(1, 4), st.integers(1, 8))
def test_experts_compute_as_much_as_a_dense_mlp_of_the_active_width(top_k: int, count: int):
    top_k = min(top_k, count)
    model = expert_model(count=count, top_k=top_k)
    dense = small_model(ffn_hidden=top_k * WIDTH)
    router_flop = 2.0 * TOKENS * HIDDEN * count
    expected = forward_flop(small_job(dense)) + router_flop
    assert forward_flop(small_job(model)) == pytest.approx(expected)


def test_backward_computes_twice_as_much_as_forward():
    costs = StageCosts(expert_job())
    forward, backward = (
        costs.work(Slice(0, 1), phase).flop for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    assert backward == pytest.approx(2 * forward)


@pytest.mark.parametrize(("phase", "products"), [(Phase.FORWARD, 2), (Phase.BACKWARD, 3)])
def test_one_hot_masks_pick_tokens_by_products_over_all_slots(phase: Phase, products: int):
    model = expert_model(capacity_factor=1.25)
    copied, picked = (
        StageCosts(small_job(model, stack={"base": "jax", "one_hot_dispatch": picks}))
        .work(Slice(0, model.layers), phase)
        .flop
        for picks in (False, True)
    )
    slots = 1.25 * TOKENS * TOP_K
    assert picked - copied == pytest.approx(model.layers * products * 2 * slots * TOKENS * HIDDEN)


def test_without_a_capacity_nothing_is_picked_by_one_hot_masks():
    first, second = (
        forward_flop(small_job(expert_model(), stack={"base": "jax", "one_hot_dispatch": picks}))
        for picks in (False, True)
    )
    assert first == second


def test_one_expert_for_every_token_is_as_fast_as_the_dense_mlp():
    alone = expert_model(count=1, top_k=1, ffn_hidden=128)
    costs, dense = StageCosts(small_job(alone)), StageCosts(small_job())
    parts = {p.name: p.seconds for p in costs.work(Slice(0, 1), Phase.FORWARD).parts}
    same = {p.name: p.seconds for p in dense.work(Slice(0, 1), Phase.FORWARD).parts}
    assert parts["expert_up"] == same["mlp_up"]
    assert parts["expert_down"] == same["mlp_down"]
    assert parts["expert_activation"] == same["activation"]


def test_when_every_token_visits_all_experts_each_sees_all_tokens():
    layer = whole_layer(expert_model(top_k=COUNT))
    products = [piece for piece in layer.pieces if isinstance(piece, GroupedGemm)]
    assert [(p.groups, p.rows) for p in products] == [(COUNT, TOKENS)] * 2


@given(EP, ETP, st.sampled_from([1, 2, 4]))
def test_each_rank_computes_its_share_of_the_experts_work(ep: int, etp: int, tp: int):
    whole = whole_layer()
    assert grouped_flop(divided(whole, tp=tp, ep=ep, etp=etp)) == grouped_flop(whole) / tp


@given(EP.filter(lambda ep: ep > 1), ETP, st.sampled_from([1, 2, 4]))
def test_dispatch_and_combine_move_the_copies_of_a_ranks_tokens_in_both_directions(
    ep: int, etp: int, tp: int
):
    moved = exchanges(divided(whole_layer(), tp=tp, ep=ep, etp=etp), Axis.EXPERT)
    copies_bytes = TOKENS / tp * TOP_K * HIDDEN * HALF
    assert [e.name for e in moved] == ["dispatch", "combine"]
    assert all(e.forward is e.backward is CollectiveKind.ALL_TO_ALL for e in moved)
    assert 2 * sum(e.num_bytes for e in moved) == pytest.approx(2 * 2 * copies_bytes)


def test_ranks_that_share_an_expert_gather_each_others_copies():
    gather, scatter = exchanges(divided(whole_layer(), tp=2, ep=2, etp=2), Axis.EXPERT_TENSOR)
    gathered = TOKENS * TOP_K * HIDDEN * HALF
    assert gather.forward is scatter.backward is CollectiveKind.ALL_GATHER
    assert gather.backward is scatter.forward is CollectiveKind.REDUCE_SCATTER
    assert gather.num_bytes == scatter.num_bytes == gathered


def test_copies_are_sorted_again_only_where_a_rank_has_several_experts():
    several = {piece.name for piece in divided(whole_layer(), ep=4).pieces}
    one = {piece.name for piece in divided(whole_layer(), ep=8).pieces}
    assert several - one == {"dispatch_sort", "combine_sort"}


def test_dense_layers_are_left_alone():
    plan = Plan()
    dense = model_layer(small_model(), LayerKind(), plan, microbatch_shape(plan, 1, TOKENS))
    group = Group(4, 4)
    assert expert_parallel(dense, group, 2, experts=None, element_bytes=HALF) is dense


@given(EP, ETP)
def test_a_rank_keeps_the_inputs_of_its_experts_for_backward(ep: int, etp: int):
    layer = divided(whole_layer(), ep=ep, etp=etp)
    copies = TOKENS * TOP_K
    assert saved_bytes(layer, "expert_input") == copies * HIDDEN * HALF * etp
    assert saved_bytes(layer, "expert_activation_input") == copies * 2 * WIDTH * HALF
    assert saved_bytes(layer, "expert_down_input") == copies * WIDTH * HALF


@pytest.mark.parametrize("is_before", [True, False])
def test_copies_that_are_weighed_in_fp32_are_kept_so_as_torch_does(is_before):
    torch = pytest.importorskip("torch")
    copies = torch.zeros(8, 64, dtype=torch.bfloat16, requires_grad=True)
    scores = torch.zeros(8, requires_grad=True)
    expert = torch.nn.Linear(64, 64, dtype=torch.bfloat16)
    kept: dict[int, int] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.setdefault(tensor.data_ptr(), tensor.nbytes) and tensor, lambda t: t
    ):
        rows = copies if is_before else expert(copies)
        weighed = (rows.to(torch.float32) * scores.reshape(-1, 1)).to(torch.bfloat16)
        if is_before:
            expert(weighed)
    assert 8 * 64 * 4 in kept.values()
    plain, wide = (
        whole_layer(stack={"base": "torchtitan", "weighs_copies_in_fp32": each})
        for each in (False, True)
    )
    more = sum(saved.num_bytes for saved in wide.saved) - sum(
        saved.num_bytes for saved in plain.saved
    )
    assert more == 2 * saved_bytes(plain, "expert_input")


def test_a_shared_expert_is_a_dense_mlp_that_every_token_passes():
    plain, shared = expert_model(), expert_model(shared_ffn_hidden=96)
    extra = forward_flop(small_job(shared)) - forward_flop(small_job(plain))
    assert extra == pytest.approx(2.0 * TOKENS * 3 * HIDDEN * 96)


def test_a_gate_weighs_the_shared_expert():
    names = {
        p.name for p in whole_layer(expert_model(shared_ffn_hidden=32, shared_gate=True)).pieces
    }
    assert {"shared_gate", "shared_gate_product"} <= names


def test_dense_layers_between_keep_the_dense_mlp():
    model = expert_model(first_dense_layers=1, every=2)
    with_experts = [kind.mlp == "experts" for kind in layer_kinds(model)]
    assert with_experts == [False, True, False, True]
    costs = StageCosts(small_job(model))
    names = [
        {part.name for part in costs.work(Slice(i, i + 1), Phase.FORWARD).parts} for i in range(4)
    ]
    assert ["expert_up" in parts for parts in names] == with_experts
    assert ["mlp_up" in parts for parts in names] == [not experts for experts in with_experts]


def test_without_a_grouped_kernel_every_local_expert_has_its_own():
    single = divided(whole_layer(stack={"grouped_experts": False}), ep=2)
    grouped = divided(whole_layer(stack={"grouped_experts": True}), ep=2)
    launches = [
        [p.launches for p in layer.pieces if isinstance(p, GroupedGemm)]
        for layer in (single, grouped)
    ]
    assert launches == [[COUNT // 2] * 2, [1] * 2]


@pytest.mark.parametrize(("each", "calls"), [(True, COUNT // 2), (False, 1)])
def test_a_grouped_product_holds_the_host_for_as_many_calls_as_its_library_makes(each, calls):
    layer = divided(whole_layer(stack={"grouped_experts": True, "calls_each_expert": each}), ep=2)
    products = [p for p in layer.pieces if isinstance(p, GroupedGemm)]
    assert [(p.launches, p.calls) for p in products] == [(1, calls)] * 2


def test_experts_in_one_kernel_share_its_waves():
    apart = expert_job(gpus=1, stack={"grouped_experts": False})
    together = expert_job(gpus=1, stack={"grouped_experts": True})
    seconds = [
        sum(
            part.seconds
            for part in StageCosts(job).work(Slice(0, 1), Phase.FORWARD).parts
            if part.name in {"expert_up", "expert_down"}
        )
        for job in (apart, together)
    ]
    # A grouped kernel runs at 0.83 of a dense one's rate; beyond that it has fewer waves.
    assert 0.83 * seconds[1] < seconds[0]


@pytest.mark.parametrize("grouped", [False, True])
def test_experts_whose_rows_are_no_whole_vectors_are_slow_although_they_are_narrower(grouped):
    """Rows of 16-bit elements are aligned where they are a multiple of 8 (16 bytes)."""
    jobs = [
        expert_job(
            model=small_model(hidden=1024, ffn_hidden=1024, experts={
                "count": COUNT, "top_k": TOP_K, "ffn_hidden": width,
            }),
            gpus=1, seq_len=8192, stack={"grouped_experts": grouped},
        )
        for width in (1020, 1024)
    ]  # fmt: skip
    seconds = [
        sum(
            part.seconds
            for part in StageCosts(job).work(Slice(0, 1), Phase.FORWARD).parts
            if part.name in {"expert_up", "expert_down"}
        )
        for job in jobs
    ]
    assert seconds[0] > 1.02 * seconds[1]


def test_casts_to_eight_bits_are_launched_for_every_expert():
    layer = divided(whole_layer(precision="fp8"), ep=2)
    casts = {
        p.name: p.kernels for p in layer.pieces if p.name.startswith("expert") and "cast" in p.name
    }
    names = [f"expert_{which}_cast" for which in ("up", "up_gradient", "down", "down_gradient")]
    assert casts == dict.fromkeys(names, COUNT // 2)


def test_ranks_that_share_an_expert_cast_all_of_its_rows_but_their_share_of_its_width():
    alone, shared = (
        {p.name: p for p in divided(whole_layer(precision="fp8"), ep=2, etp=etp).pieces}
        for etp in (1, 2)
    )

    def ratio(name: str) -> float:
        moved = [p[name].forward_bytes + p[name].backward_bytes for p in (alone, shared)]
        return moved[1] / moved[0]

    # Each of the two ranks brings as many tokens as the one did.
    assert ratio("expert_up_cast") == ratio("expert_down_gradient_cast") == 2
    assert ratio("expert_down_cast") == ratio("expert_up_gradient_cast") == 1


@given(EP, ETP)
def test_all_ranks_together_hold_every_expert_as_often_as_it_is_copied(ep: int, etp: int):
    job = expert_job(gpus=32, global_batch=32, ep=ep, etp=etp)
    tensors = layer_tensors(job.model, 0)
    experts = sum(t.numel for t in tensors if t.group is ParameterGroup.EXPERT)
    dense = sum(t.numel for t in tensors if t.group is not ParameterGroup.EXPERT)
    held = slice_parameters(job, Slice(0, 1))
    assert held.expert * 32 == experts * expert_data_group(job).ranks
    assert held.dense == dense


@given(EP, ETP, st.sampled_from([1, 2]), st.sampled_from([1, 2]))
def test_the_expert_grid_covers_the_ranks_of_a_stage(ep: int, etp: int, tp: int, cp: int):
    job = expert_job(gpus=64, global_batch=64, ep=ep, etp=etp, tp=tp, cp=cp, pp=2)
    grid = expert_group(job).ranks * expert_tensor_group(job).ranks * expert_data_group(job).ranks
    assert grid == tp * data_group(job).ranks == 32


def test_expert_ranks_are_neighbours():
    """Four GPUs per node: four ranks of one node, or two apart with two on each node."""
    assert expert_group(expert_job(ep=4)).nodes == 1
    assert expert_group(expert_job(ep=4, etp=2)).nodes == 2


def test_states_of_experts_are_sharded_over_the_ranks_that_hold_them():
    job = expert_job(ep=4, zero=1)
    held = slice_parameters(job, Slice(0, 1))
    memory = dict(resident_memory(job, held))
    assert (shard_group(job).ranks, expert_shard_group(job).ranks) == (8, 2)
    assert memory[Owner.OPTIMIZER_STATES] == 8 * (held.dense / 8 + held.expert / 2)
    assert memory[Owner.GRADIENTS] == 4 * held.total


def test_experts_that_are_not_sharded_are_whole_with_their_states_on_each_rank_that_has_them():
    stack = {"base": "megatron-core", "shards_experts": False}
    job = expert_job(ep=4, zero=1, stack=stack)
    held = slice_parameters(job, Slice(0, 1))
    memory = dict(resident_memory(job, held))
    assert (expert_shard_group(job).ranks, expert_replica_group(job).ranks) == (1, 2)
    assert memory[Owner.OPTIMIZER_STATES] == 8 * (held.dense / 8 + held.expert)


def test_a_partial_shard_group_spans_the_same_part_of_the_experts_copies():
    job = expert_job(ep=2, zero=1, zero_group=4)
    assert expert_data_group(job).ranks == 4
    assert expert_shard_group(job).ranks == 2


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_experts_are_whole_where_ep_reaches_tp_and_else_split_like_the_layer(ep: int, tp: int):
    assert Plan(tp=tp, ep=ep).expert_tp == (1 if ep >= tp else tp)
    assert Plan(tp=tp, ep=ep, etp=2).expert_tp == 2


def test_spreading_experts_costs_exchanges_and_saves_memory():
    alone, spread = expert_job(), expert_job(ep=8)
    results = [run_step(job, "replay") for job in (alone, spread)]
    exposed = [r.breakdown_s.get(Category.EXPERT_PARALLEL, 0.0) for r in results]
    assert exposed[0] == 0 < exposed[1]
    peaks = [max(m.peak_allocated_bytes for m in r.memory) for r in results]
    assert peaks[1] < peaks[0]


def test_an_exchange_takes_its_bytes_over_the_links():
    """Four ranks of one node: 3/4 of 64 x 2 x 64 x 2 bytes leave each over 1 GB/s."""
    job = expert_job(gpus=4, ep=4, global_batch=4, profile=free_latency_profile())
    parts = StageCosts(job).work(Slice(0, 1), Phase.FORWARD).parts
    seconds = {
        part.name: part.seconds for part in parts if part.category is Category.EXPERT_PARALLEL
    }
    expected = pytest.approx(3 / 4 * TOKENS * TOP_K * HIDDEN * HALF / 1e9)
    counts = pytest.approx(3 / 4 * 8 * 8 / 1e9)
    weights = pytest.approx(3 / 4 * TOKENS * TOP_K * 4 / 1e9)
    assert seconds == {
        "expert_counts": counts, "dispatch": expected, "dispatch_weights": weights,
        "combine": expected,
    }  # fmt: skip


def test_full_recomputation_dispatches_again():
    work = StageCosts(expert_job(ep=8, recompute="full")).work(Slice(0, 1), Phase.BACKWARD)
    once = StageCosts(expert_job(ep=8)).work(Slice(0, 1), Phase.BACKWARD)
    repeats = [
        {part.name: part.repeats for part in w.parts if part.category is Category.EXPERT_PARALLEL}
        for w in (work, once)
    ]
    assert repeats[1] == {"dispatch": 1, "dispatch_weights": 1, "combine": 1}
    total = sum(p.seconds for p in work.parts if p.name == "dispatch")
    assert total == pytest.approx(2 * sum(p.seconds for p in once.parts if p.name == "dispatch"))


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([0, 1, 2, 3]))
def test_both_engines_agree_on_a_job_with_experts(ep: int, tp: int, zero: int):
    job = expert_job(ep=ep, tp=tp, zero=zero, profile=network_profile())
    replayed, simulated = run_step(job, "replay"), run_step(job, "des")
    assert replayed.step_time_s <= simulated.step_time_s * (1 + 1e-9)


def test_faster_links_never_slow_a_job_with_experts():
    slow = run_step(expert_job(ep=8, profile=network_profile({"bandwidth": "10 MB/s"})), "replay")
    fast = run_step(expert_job(ep=8), "replay")
    assert fast.step_time_s < slow.step_time_s


def test_uneven_copies_are_rounded_up_only_in_time():
    """65 tokens, two of three experts each: 43.3 rows, computed as 44."""
    model = expert_model(count=3)
    plan = Plan()
    layer = model_layer(model, KIND, plan, microbatch_shape(plan, 1, 65))
    product = next(p for p in layer.pieces if isinstance(p, GroupedGemm))
    assert product.rows == pytest.approx(130 / 3)
    costs = StageCosts(small_job(model))
    exact = replace(product, rows=float(math.ceil(product.rows)))
    assert costs.units.timer.gemm_s(product) == costs.units.timer.gemm_s(exact)


def test_routed_copies_belong_to_the_sequence_until_experts_are_shared():
    layer = whole_layer()
    routed = [saved.name for saved in layer.saved if saved.region is Region.ROUTED]
    assert routed == ["expert_input"]
    assert saved_bytes(divided(layer, tp=4), "expert_input") == TOKENS // 4 * TOP_K * HIDDEN * HALF


def layer_launches(*, router_bias: bool = False, mlp_bias: bool = False, **facts: object) -> int:
    """Kernels that the host launches in the forward of one layer of two ranks of experts."""
    experts = {"count": 4, "top_k": 2, "ffn_hidden": 64, "router_bias": router_bias}
    model = small_model(layers=1, mlp_bias=mlp_bias, experts=experts)
    stack = {"base": "torch-fsdp", **facts}
    costs = StageCosts(small_job(model, gpus=2, ep=2, global_batch=2, stack=stack))
    return costs.units.of(costs.units.layers[0]).times.time.forward.kernels


@pytest.mark.parametrize("mlp_bias", [False, True])
def test_biases_that_balance_experts_take_more_kernels_than_trained_ones(mlp_bias):
    plain = layer_launches(router_bias=True, mlp_bias=mlp_bias, router_kernels=9)
    balanced = layer_launches(
        router_bias=True, mlp_bias=mlp_bias, router_kernels=9, biased_router_kernels=20
    )
    assert balanced - plain == (0 if mlp_bias else 20 - 9)


def test_a_router_without_biases_has_kernels_of_its_own():
    assert layer_launches(biased_router_kernels=20) == layer_launches()


def test_counting_copies_of_tokens_launches_kernels_of_its_own():
    assert layer_launches(expert_count_kernels=10) == layer_launches() + 10


def test_a_shared_expert_reads_the_input_that_the_router_keeps():
    """So the copy stays as long as one of these matrices is trained, and no routed one keeps it."""
    with_shared, without = (
        next(saved for saved in whole_layer(model).saved if saved.name == "router_input")
        for model in (expert_model(shared_ffn_hidden=WIDTH), expert_model())
    )
    assert without.weights == ("router",)
    assert with_shared.weights == ("router", "shared_expert.gate", "shared_expert.up")
    assert with_shared.num_bytes == without.num_bytes
