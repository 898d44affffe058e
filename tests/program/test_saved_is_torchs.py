"""Activations that a layer keeps, against what torch's autograd keeps of the same layer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import (  # noqa: E402
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from simulator.program.grid.stage_layers import Slice  # noqa: E402
from simulator.program.price.stage_cost import StageCosts  # noqa: E402
from simulator.validate.torch_run.reference_model import ACTIVATIONS, RoutedExperts  # noqa: E402
from tests.jobs import SIXTEEN_BIT_TORCH, gpt_model, small_job, small_model  # noqa: E402
from tests.saved_by_torch import (  # noqa: E402
    GptLayer,
    JointAttention,
    LlamaLayer,
    Sizes,
    eager_loss,
    fake_layer_bytes,
    saved_bytes,
    tensor_parallel,
)

B, S, H, A, K, F, V = 2, 64, 64, 8, 4, 128, 1000
LAYER = Slice(1, 2)
SDPA = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
LLAMA, GPT = Sizes(H, A, K, F), Sizes(H, A, A, 4 * H)
EXPERTS = {"count": 4, "top_k": 2, "ffn_hidden": 32}
EAGER = {**SIXTEEN_BIT_TORCH, "fused_rmsnorm": True}


def saved_by_program(model=None, run: Slice = LAYER, **plan) -> float:
    job = small_job(model, micro_batch=B, seq_len=S, **plan)
    return sum(num_bytes for _, num_bytes in StageCosts(job).saved(run))


def llama_bytes(wrap=None, **options) -> int:
    build = partial(LlamaLayer, LLAMA, **options)
    return fake_layer_bytes(build, (B, S, H), torch.bfloat16, wrap=wrap)


def gpt_bytes(wrap=None, **options) -> int:
    build = partial(GptLayer, GPT, **options)
    return fake_layer_bytes(build, (B, S, H), torch.float32, wrap=wrap)


@pytest.mark.parametrize("fused_rmsnorm", [True, False])
@pytest.mark.parametrize("repeats_kv_heads", [True, False])
def test_an_eager_llama_layer_keeps_what_torch_keeps(fused_rmsnorm, repeats_kv_heads):
    facts = {"fused_rmsnorm": fused_rmsnorm, "repeats_kv_heads": repeats_kv_heads}
    assert saved_by_program(stack={**SIXTEEN_BIT_TORCH, **facts}) == llama_bytes(**facts)


@pytest.mark.parametrize(
    ("transformers", "attention", "repeats"),
    [("4.53", "flash", True), ("4.53", "unfused", True), ("5.0", "flash", False),
     ("5.0", "unfused", True)],
)  # fmt: skip
def test_models_of_transformers_repeat_grouped_heads_until_pytorch_does(
    transformers, attention, repeats
):
    """``repeat_kv``: keys and values of as many heads as queries have are kept."""
    plan = {
        "stack": "trl", "master_weights": False, "zero": 0,
        "attention": attention, "libraries": {"transformers": transformers},
    }  # fmt: skip
    grouped = saved_by_program(**plan)
    of_every_head = saved_by_program(small_model(kv_heads=A), **plan)
    more_bytes = 0 if repeats else 2 * (A - K) * (H // A) * B * S * 2
    assert of_every_head - grouped == more_bytes


def test_a_value_that_is_a_view_keeps_queries_and_keys_of_its_product_as_torch_does():
    """The product is kept once, beside rotated queries and keys."""
    sizes = replace(LLAMA, kv_heads=LLAMA.heads)

    def build():
        layer = LlamaLayer(sizes)
        layer.attention = JointAttention(sizes)
        return layer

    model = small_model(heads=sizes.heads, kv_heads=sizes.heads)
    stack = {**EAGER, "value_keeps_projection": True}
    torchs = fake_layer_bytes(build, (B, S, H), torch.bfloat16)
    assert saved_by_program(model, stack=stack) == torchs


def test_checkpointed_core_attention_keeps_the_product_that_its_value_is_a_view_of():
    """Megatron-Core's ``core_attn``; without it Transformer Engine copies the value out."""
    sizes = replace(LLAMA, kv_heads=LLAMA.heads)
    model = small_model(heads=sizes.heads, kv_heads=sizes.heads)
    stack = {**EAGER, "checkpointed_value_keeps_projection": True}
    cores = {
        "none": lambda run, *args: run(*args),
        "selective": partial(checkpoint, use_reentrant=False, preserve_rng_state=False),
    }
    for recompute, core in cores.items():

        def build(core=core):
            layer = LlamaLayer(sizes)
            layer.attention = JointAttention(sizes, core)
            return layer

        torchs = fake_layer_bytes(build, (B, S, H), torch.bfloat16)
        assert saved_by_program(model, stack=stack, recompute=recompute) == torchs


def test_products_that_copy_their_input_keep_five_where_others_keep_two():
    """Query, key and value, and gate and up; one rank alone divides no columns, and copies none."""
    copies = {**EAGER, "fused_projections": False, "copies_column_inputs": True}
    shares = {**copies, "copies_column_inputs": False}
    kept = {tp: saved_by_program(tp=tp, gpus=tp, stack=copies) for tp in (1, 2)}
    others = {tp: saved_by_program(tp=tp, gpus=tp, stack=shares) for tp in (1, 2)}
    assert kept[2] - others[2] == 3 * B * S * H * torch.bfloat16.itemsize
    assert kept[1] == others[1]


@pytest.mark.parametrize("dropout", [True, False])
def test_an_eager_gpt_layer_keeps_what_torch_keeps(dropout):
    stack = {**SIXTEEN_BIT_TORCH, "dropout": dropout, "fused_softmax": True}
    plan = {"precision": "fp32", "attention": "unfused", "stack": stack}
    torchs = gpt_bytes(dropout=0.1 if dropout else 0.0)
    assert saved_by_program(gpt_model(), **plan) == torchs


@pytest.mark.parametrize("name", ["gelu", "gelu-new", "relu", "squared-relu"])
def test_an_activation_keeps_its_input_unless_its_output_says_enough(name):
    """The gradient of a rectifier follows from its output, which the next product keeps anyway."""
    stack = {**SIXTEEN_BIT_TORCH, "fused_softmax": True}
    plan = {"precision": "fp32", "attention": "unfused", "stack": stack}
    torchs = gpt_bytes(dropout=0.0, activation=ACTIVATIONS[name])
    assert saved_by_program(gpt_model(activation=name), **plan) == torchs


def test_dropout_that_spares_attention_keeps_neither_its_mask_nor_a_second_copy():
    stack = {**SIXTEEN_BIT_TORCH, "dropout": True, "fused_softmax": True}
    plan = {"precision": "fp32", "attention": "unfused", "stack": stack}
    with_it = saved_by_program(gpt_model(), **plan)
    without = saved_by_program(gpt_model(attention_dropout=False), **plan)
    assert with_it - without == A * S * S * B * (1 + 4)


def shared_expert_bytes_of_torch(gated: bool) -> int:
    """What a shared expert keeps beside the routed ones; the same tokens go to the same experts."""
    model = small_model(experts={**EXPERTS, "shared_ffn_hidden": F, "shared_gate": gated})
    layer = RoutedExperts(model, model.experts).bfloat16()
    x = torch.randn(B, S, H, dtype=torch.bfloat16, requires_grad=True)
    with_it = saved_bytes(lambda: layer(x), layer.parameters())
    layer.shared = None
    return with_it - saved_bytes(lambda: layer(x), layer.parameters())


@pytest.mark.parametrize("gated", [True, False])
def test_a_shared_expert_keeps_no_second_copy_of_the_routers_input(gated):
    shared = {"shared_ffn_hidden": F, "shared_gate": gated}
    kept = [
        saved_by_program(small_model(experts=EXPERTS | fields), stack=SIXTEEN_BIT_TORCH)
        for fields in ({}, shared)
    ]
    assert kept[1] - kept[0] == shared_expert_bytes_of_torch(gated)


@pytest.mark.parametrize("stack", [SIXTEEN_BIT_TORCH, "megatron-core"])
def test_a_shared_expert_and_the_router_share_their_input_on_tensor_parallel_ranks(stack):
    """Torch's ranks keep the sequence as it was gathered, Megatron-Core's their part of it."""
    plan = {"gpus": 2, "tp": 2, "sequence_parallel": True, "stack": stack}
    kept = [
        saved_by_program(small_model(experts=EXPERTS | fields), **plan)
        for fields in ({}, {"shared_ffn_hidden": F})
    ]
    branches, inner = 2, B * S * F / 2 * 2
    activations = inner * (branches + (2 if stack == SIXTEEN_BIT_TORCH else 1))
    gathered = B * S * H * 2 * (1 - 1 / 2) if stack == SIXTEEN_BIT_TORCH else 0
    assert kept[1] - kept[0] == activations + gathered


def test_attention_and_mlp_behind_one_norm_keep_its_output_once():
    class ParallelLayer(LlamaLayer):
        def forward(self, x):
            normed = self.attention_norm(x)
            return x + self.attention(normed) + self.mlp(normed)

    torchs = fake_layer_bytes(partial(ParallelLayer, LLAMA), (B, S, H), torch.bfloat16)
    model = small_model(parallel_block=True, norms_per_layer=1)
    assert saved_by_program(model, stack=EAGER) == torchs


def test_full_recompute_keeps_the_input_that_torchs_checkpoint_keeps():
    run = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    assert saved_by_program(stack=EAGER, recompute="full") == llama_bytes(wrap=run)


def test_selective_recompute_keeps_what_torch_keeps_around_a_checkpointed_core():
    core = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    stack = {**SIXTEEN_BIT_TORCH, "dropout": True, "fused_softmax": True}
    plan = {"precision": "fp32", "attention": "unfused", "stack": stack}
    kept = saved_by_program(gpt_model(), recompute="selective", **plan)
    assert kept == gpt_bytes(core=core)


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("knows", [True, False])
def test_per_op_selective_recompute_keeps_the_outputs_that_torch_caches(repeats, knows):
    """The policy of torchtitan: attention if it knows the operator, and every other product.

    Values are those of the product, before they are repeated for every head.
    """
    products, kept = 0, []

    def keep(context, op, *args, **kwargs):
        nonlocal products
        is_product = op is torch.ops.aten.mm.default
        products += is_product
        if not ((knows and op is SDPA) or (is_product and products % 2)):
            return CheckpointPolicy.PREFER_RECOMPUTE
        kept.extend(torch.utils._pytree.tree_leaves(context.op_output))
        return CheckpointPolicy.MUST_SAVE

    run = partial(
        checkpoint,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=partial(create_selective_checkpoint_contexts, keep),
    )
    inputs = llama_bytes(wrap=run, repeats_kv_heads=repeats)
    cached = sum(tensor.untyped_storage().nbytes() for tensor in kept)
    policy = {"selective_policy": "alternate-products", "repeats_kv_heads": repeats}
    kernel = {"flash_kernel": "best", "repeats_cudnn_attention": not knows}
    stack = {**EAGER, **policy, **kernel}
    assert saved_by_program(stack=stack, recompute="selective") == inputs + cached


def test_an_eager_loss_keeps_fp32_log_probabilities_as_torch_does():
    def build():
        return torch.nn.Sequential(torch.nn.LayerNorm(H), torch.nn.Linear(H, V, bias=False))

    def run(head, x):
        targets = torch.zeros(B, S, dtype=torch.int64)
        return eager_loss(head(x), targets), targets

    targets_bytes = 8 * B * S
    torchs = fake_layer_bytes(build, (B, S, H), torch.float32, wrap=run) - targets_bytes
    head = Slice(4, 4, has_head=True, has_loss=True)
    model = gpt_model(vocab=V)
    assert saved_by_program(model, head, precision="fp32", stack=SIXTEEN_BIT_TORCH) == torchs


@pytest.fixture
def fake_ranks():
    """One rank of a world whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def start(ranks: int):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        return torch.distributed.init_device_mesh("cpu", (ranks,))

    yield start
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("sequence_parallel", [True, False])
@pytest.mark.parametrize("tp", [2, 4])
def test_a_tensor_parallel_rank_keeps_what_torchs_local_shards_take(
    fake_ranks, tp, sequence_parallel
):
    layer = LlamaLayer(LLAMA).bfloat16()
    tensor_parallel(layer, fake_ranks(tp), sequence_parallel=sequence_parallel)
    rows = S // tp if sequence_parallel else S
    x = torch.randn(B, rows, H, dtype=torch.bfloat16, requires_grad=True)
    plan = {"gpus": tp, "tp": tp, "stack": EAGER, "sequence_parallel": sequence_parallel}
    assert saved_by_program(**plan) == saved_bytes(lambda: layer(x), layer.parameters())
