"""What recomputation keeps, repeats and holds, by the words of the frameworks that do it."""

from __future__ import annotations

import pytest

from simulator.described.job import Job
from simulator.described.model import Model
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Memory, Owner, total_bytes
from simulator.program.layer.model_totals import model_flop_per_token
from simulator.program.price.executed_flop import hardware_flop_per_token
from simulator.program.price.stage_cost import StageCosts
from simulator.program.strategies.recompute import recomputation
from simulator.results.simulation import run_step
from simulator.schedule import Phase
from tests.jobs import SIXTEEN_BIT_TORCH, gpt_model, small_job, small_model

TOKENS, HIDDEN = 64, 64
ROW = 2 * TOKENS * HIDDEN
"""An activation as wide as the model, in 16 bits [B]."""
LAYER = Slice(1, 2)


def paxml_job(model: Model | None = None, **plan: object) -> Job:
    stack = {"base": "jax", "selective_policy": "all-but-projections"}
    return small_job(model or gpt_model(), recompute="selective", stack=stack, **plan)


def test_all_but_projections_keeps_the_input_and_what_four_products_give():
    """``SAVE_QKV_OUT_PROJ``: combined_qkv_proj and out_proj, beside what the scan carries."""
    kept = total_bytes(StageCosts(paxml_job()).saved(LAYER))
    assert kept == (1 + 3 + 1) * ROW


def test_all_but_projections_repeats_attention_and_the_first_product_of_the_mlp():
    job = paxml_job(global_batch=1)
    attention = 4 * TOKENS * TOKENS * HIDDEN / 2
    up = 2 * TOKENS * 4 * HIDDEN * HIDDEN
    costs = StageCosts(job)
    assert costs.units.of(costs.units.layers[0]).times.time.recompute.flop == pytest.approx(
        attention + up
    )
    more = hardware_flop_per_token(job) - model_flop_per_token(job.model, TOKENS)
    assert more == pytest.approx(job.model.layers * (2 * attention + up) / TOKENS)
    assert run_step(job).hfu > run_step(job).mfu


@pytest.mark.parametrize(
    ("base", "changes", "repeats_all"),
    [
        ("torchtitan@0.1", {"fused_elementwise": False}, False),
        ("torchtitan@0.2", {"fused_elementwise": False}, True),
        ("torchtitan@0.2", {"fused_elementwise": False, "repeats_last_product": False}, False),
        ("torchtitan@0.2", {}, False),
    ],
)
def test_a_checkpoint_that_does_not_stop_early_repeats_the_last_product(base, changes, repeats_all):
    """So does ``early_stop=False``; a compiler drops what nothing reads all the same."""
    job = small_job(gpt_model(), recompute="full", stack={"base": base, **changes}, zero=0)
    units = StageCosts(job).units
    times = units.of(units.layers[0]).times.time
    down = 2 * TOKENS * 4 * HIDDEN * HIDDEN
    assert times.recompute.flop == pytest.approx(times.forward.flop - (not repeats_all) * down)


NAMED_ROWS = {"query": 1, "key": 1, "value": 1, "context": 1, "output": 1, "up": 4}
"""Rows of what each named output of GPT's layer is wide."""


@pytest.mark.parametrize(
    "named",
    [(), ("query", "key", "value"), ("query", "key", "value", "context"),
     ("query", "key", "value", "output", "up")],
)  # fmt: skip
def test_a_policy_of_named_outputs_keeps_these_beside_the_input(named):
    """MaxText: full; its recipes for Llama 3.1 70B on v6e and on TPU7x; and ``minimal``."""
    stack = {"base": "jax", "selective_policy": "named-outputs", "named_outputs": named}
    job = small_job(gpt_model(), recompute="selective", stack=stack)
    log_sums = 4 * TOKENS * job.model.heads if "context" in named else 0
    rows = 1 + sum(NAMED_ROWS[name] for name in named)
    assert total_bytes(StageCosts(job).saved(LAYER)) == rows * ROW + log_sums


@pytest.mark.parametrize(
    ("named", "kept_products"),
    [((), ()), (("query", "key", "value", "context"), ("qkv", "attention")),
     (("query", "key", "value", "output", "up"), ("qkv", "output", "up"))],
)  # fmt: skip
def test_a_policy_of_named_outputs_repeats_what_gives_all_others(named, kept_products):
    """The last product's output is read by no backward, so it is never repeated."""
    products = {
        "qkv": 2 * TOKENS * 3 * HIDDEN**2, "output": 2 * TOKENS * HIDDEN**2,
        "up": 2 * TOKENS * 4 * HIDDEN**2, "attention": 4 * TOKENS * TOKENS * HIDDEN / 2,
    }  # fmt: skip
    stack = {"base": "jax", "selective_policy": "named-outputs", "named_outputs": named}
    costs = StageCosts(small_job(gpt_model(), recompute="selective", stack=stack, global_batch=1))
    again = sum(flop for name, flop in products.items() if name not in kept_products)
    time = costs.units.of(costs.units.layers[0]).times.time
    assert time.recompute.flop == pytest.approx(again)


def test_what_the_last_product_of_experts_gives_may_be_named():
    """``mlpwo`` of MaxText: a row for each of two copies, and a product that is not repeated."""
    kept, repeated = [], []
    for named in ((), ("down",)):
        stack = {"base": "jax", "selective_policy": "named-outputs", "named_outputs": named}
        model = small_model(experts={"count": 4, "top_k": 2, "ffn_hidden": 32})
        job = small_job(model, recompute="selective", stack=stack, global_batch=1)
        costs = StageCosts(job)
        kept.append(total_bytes(costs.saved(LAYER)))
        repeated.append(costs.units.of(costs.units.layers[0]).times.time.recompute.flop)
    assert kept[1] - kept[0] == 2 * ROW
    assert repeated[0] - repeated[1] == pytest.approx(2 * 2 * TOKENS * HIDDEN * 32)


def test_half_of_a_gated_mlp_may_be_named():
    stack = {"base": "jax", "selective_policy": "named-outputs"}
    kept = [
        total_bytes(
            StageCosts(
                small_job(small_model(), recompute="selective", stack={**stack, **names})
            ).saved(LAYER)
        )
        for names in ({}, {"named_outputs": ["gate"]}, {"named_outputs": ["gate", "up"]})
    ]
    width_bytes = 2 * TOKENS * small_model().ffn_hidden
    assert [kept[1] - kept[0], kept[2] - kept[1]] == [width_bytes, width_bytes]


def again(memory: Memory) -> float:
    return sum(size for owner, size in memory if owner is Owner.RECOMPUTE)


@pytest.mark.parametrize("stack", ["megatron-core", "deepspeed", "internevo"])
def test_a_checkpoint_function_holds_the_output(stack):
    """``CheckpointFunction.backward``; without reentrant autograd there is no such function.

    The output's gradient is there anyway while the MLP runs, which is the fullest moment.
    """
    plans = ({"base": stack, "recompute_stops_early": stops} for stops in (False, True))
    with_function, without = (
        StageCosts(small_job(gpt_model(), recompute="full", stack=plan)).working_bytes(LAYER)
        for plan in plans
    )
    assert with_function - without == ROW


def test_what_was_computed_again_goes_piece_by_piece():
    """The MLP keeps 4 h twice, its input, and its norm's; attention all else, and 5 a s^2 b.

    Long sequences are fullest where probabilities meet their gradients, short ones while the last
    product runs.
    """
    plan = {"stack": "deepspeed", "recompute": "full", "attention": "fused-softmax"}
    long, short = (
        StageCosts(small_job(gpt_model(max_positions=seq), seq_len=seq, **plan)).backward(LAYER)
        for seq in (512, 8)
    )
    heads, row, norms, mask = 8, 2 * HIDDEN, 8, HIDDEN

    def of_attention(seq: int) -> float:
        """Its norm's statistics, input of qkv, and qkv; the layer's input is kept."""
        return seq * (norms + row + 3 * row) + 5 * heads * seq * seq

    def between(seq: int) -> float:
        """Context, mask, the norm's input and statistics, input of the product, 4 h twice."""
        return seq * (row + mask + row + norms + row + 2 * 4 * row)

    assert again(long.holds) == of_attention(512)
    assert again(short.holds) == of_attention(8) + between(8)


def repeated_flop(**plan: object) -> float:
    """What backward of a layer computes beyond its gradients [FLOP]."""
    whole, plain = (
        StageCosts(small_job(gpt_model(causal=False), attention="unfused", **each))
        for each in (plan, {**plan, "recompute": "none"})
    )
    return whole.work(LAYER, Phase.BACKWARD).flop - plain.work(LAYER, Phase.BACKWARD).flop


def test_recomputation_without_reentry_repeats_the_flop_that_torch_repeats():
    """All of a layer but its last product, whose output nobody keeps."""
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint
    from torch.utils.flop_counter import FlopCounterMode

    heads, length = 8, TOKENS
    widths = {"qkv": (64, 192), "out": (64, 64), "up": (64, 256), "down": (256, 64)}
    weights = {name: torch.ones(*sizes, requires_grad=True) for name, sizes in widths.items()}

    def layer(rows):
        query, key, value = (rows @ weights["qkv"]).view(length, 3 * heads, 8).chunk(3, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query, key).softmax(dim=-1)
        context = torch.einsum("hqk,khd->qhd", scores, value).reshape(length, 64)
        rows = rows + context @ weights["out"]
        return rows + torch.nn.functional.gelu(rows @ weights["up"]) @ weights["down"]

    def counted(run) -> int:
        with FlopCounterMode(display=False) as counter:
            run(torch.ones(length, 64, requires_grad=True)).sum().backward()
        return counter.get_total_flops()

    repeated = counted(lambda rows: checkpoint(layer, rows, use_reentrant=False)) - counted(layer)
    assert repeated_flop(stack="torch", recompute="full") == repeated
    last_product = 2 * length * 256 * 64
    assert repeated_flop(stack="megatron-core", recompute="full") == repeated + last_product
    executed, needed = (
        hardware_flop_per_token(small_job(gpt_model(), stack="torch", recompute=recompute))
        for recompute in ("full", "none")
    )
    assert length * (executed - needed) == gpt_model().layers * repeated


def test_a_recomputed_layer_that_returns_keys_and_values_keeps_them_beside_its_input():
    """Transformers' ``use_cache`` under checkpoints of others; whole heads, before repetition."""
    kept = [
        total_bytes(StageCosts(small_job(model, recompute="full", stack=stack)).saved(LAYER))
        for model in (gpt_model(), gpt_model(heads=4, kv_heads=2))
        for stack in (
            {**SIXTEEN_BIT_TORCH, "repeats_kv_heads": True, "hands_out_key_values": hands_out}
            for hands_out in (False, True)
        )
    ]
    assert kept == [ROW, ROW + 2 * ROW, ROW, ROW + 2 * ROW / 2]


PARTS = {**SIXTEEN_BIT_TORCH, "recomputes_parts": True}


def test_parts_that_are_checkpoints_of_their_own_keep_an_input_each():
    """NeMo AutoModel's wrappers around two norms, attention and the MLP of each layer."""
    kept = [
        total_bytes(StageCosts(small_job(gpt_model(), recompute="full", stack=stack)).saved(LAYER))
        for stack in (SIXTEEN_BIT_TORCH, PARTS)
    ]
    assert kept == [ROW, 4 * ROW]


def test_parts_that_are_checkpoints_of_their_own_repeat_neither_of_their_last_products():
    """Nobody keeps what attention's output product gives, nor the down product."""
    whole, parts = (
        repeated_flop(stack=stack, recompute="full") for stack in (SIXTEEN_BIT_TORCH, PARTS)
    )
    assert whole - parts == 2 * TOKENS * HIDDEN**2


def test_what_one_part_made_again_is_gone_before_the_other():
    """Long sequences are fullest where probabilities meet their gradients, and no MLP is there."""
    job = small_job(gpt_model(causal=False), recompute="full", attention="unfused", stack=PARTS)
    whole = small_job(job.model, recompute="full", attention="unfused", stack=SIXTEEN_BIT_TORCH)
    parts, together = (again(StageCosts(each).backward(LAYER).holds) for each in (job, whole))
    assert parts < together


@pytest.mark.parametrize(("knows", "rows"), [(False, 2), (True, 2 + 3)])
def test_a_policy_that_does_not_know_products_keeps_attention_alone(knows, rows):
    """Beside a layer's input; where it knows them also query, value and half of the gated MLP.

    torchtitan's list of operators and nvfp4.
    """
    model = small_model(kv_heads=8, ffn_hidden=HIDDEN)
    units = StageCosts(small_job(model, stack="torchtitan")).units
    layer = units.divided(units.layers[0])
    outcome = recomputation(layer, "selective", "alternate-products", knows_products=knows)
    log_sums = 4 * TOKENS * model.heads
    assert sum(outcome.kept_bytes) == rows * ROW + log_sums
    repeated = {"qkv", "attention_output", "mlp_up"} <= {
        n for n, s in outcome.repeated.items() if s == 1
    }
    assert repeated is not knows
