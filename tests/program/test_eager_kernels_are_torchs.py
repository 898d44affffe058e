"""Do kernels that a framework leaves to torch move what torch's operators move?"""

from __future__ import annotations

import pytest

from simulator.described.plan.plan import Plan
from simulator.program.layer.block import microbatch_shape
from simulator.program.layer.layer_kinds import layer_kinds, model_layer
from simulator.program.layer.losses import LOSSES
from simulator.program.layer.model_ends import embedding_layer
from simulator.program.layer.pieces import Layer, MemoryBound
from tests.jobs import SIXTEEN_BIT_TORCH, small_model
from tests.program.kernels_of_torch import memory_bound, moved_bytes, size_bytes

torch = pytest.importorskip("torch")

TOKENS, HEADS, NOPE, ROPE, VALUE = 16, 64, 128, 64, 96
LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": VALUE,
}


def piece(name: str, **stack: bool) -> MemoryBound:
    model = small_model(hidden=256, heads=HEADS, kv_heads=HEADS, latent_attention=LATENT)
    plan = Plan(stack={"base": "megatron-core", **stack})
    shape = microbatch_shape(plan, 1, TOKENS)
    return memory_bound(model_layer(model, layer_kinds(model)[0], plan, shape), name)


def rotated(part, angles):
    """Even and odd columns put apart, and the halves turned by the angles."""
    kept, rest = part[..., :ROPE], part[..., ROPE:]
    kept = torch.cat((kept[..., 0::2], kept[..., 1::2]), dim=-1)
    cosine, sine = angles.cos().to(kept.dtype), angles.sin().to(kept.dtype)
    first, second = kept.chunk(2, dim=-1)
    turned = kept * cosine + torch.cat((-second, first), dim=-1) * sine
    return torch.cat((turned, rest), dim=-1)


def test_eager_kernels_of_latent_attention_move_what_torch_counts():
    def leaf(*shape: int):
        return torch.randn(TOKENS, 1, *shape, dtype=torch.bfloat16, requires_grad=True)

    query, key_value, shared = leaf(HEADS, NOPE + ROPE), leaf(HEADS, NOPE + VALUE), leaf(1, ROPE)
    angles = torch.randn(TOKENS, 1, 1, ROPE)
    outputs = []

    def forward() -> None:
        query_nope, query_rope = query.split([NOPE, ROPE], dim=-1)
        key_nope, value = key_value.split([NOPE, VALUE], dim=-1)
        one_key = rotated(shared, angles).expand(-1, -1, HEADS, -1)
        outputs.append(torch.cat([query_nope, rotated(query_rope, angles)], dim=-1))
        outputs.append(torch.cat([key_nope, one_key], dim=-1))
        outputs.append(value.contiguous())

    rotary = piece("rotary")
    # What torch does to the one key that heads share, and the angles, is left out.
    assert rotary.forward_bytes == pytest.approx(moved_bytes(forward), rel=0.03)
    gradients = [torch.randn_like(output) for output in outputs]
    backward = moved_bytes(lambda: torch.autograd.backward(outputs, gradients))
    assert rotary.backward_bytes == pytest.approx(backward, rel=0.03)


def test_a_fused_kernel_reads_and_writes_queries_and_keys_once():
    fused = piece("rotary", fused_latent_rotary=True)
    expected = 2 * 2 * TOKENS * HEADS * (NOPE + ROPE) * 2
    assert fused.forward_bytes == fused.backward_bytes == expected
    assert piece("rotary", fused_latent_rotary=True, fused_rotary=False) == piece("rotary")


@pytest.mark.parametrize(("name", "width"), [("query_latent", 32), ("key_value_latent", 16)])
def test_latents_are_normed(name: str, width: int):
    norm = piece(f"{name}_norm")
    assert norm.forward_bytes == 2 * TOKENS * width * 2
    assert norm.backward_bytes == 3 * TOKENS * width * 2


def attention_kernels(heads: int = HEADS, length: int = 128, **plan) -> list[MemoryBound]:
    model, plan = small_model(heads=heads, kv_heads=heads, hidden=64 * heads), Plan(**plan)
    layer = model_layer(model, layer_kinds(model)[0], plan, microbatch_shape(plan, 1, length))
    names = ("attention_masking", "score_mask", "softmax")
    return [each for each in layer.pieces if isinstance(each, MemoryBound) and each.name in names]


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_scores_in_full_precision_are_masked_by_kernels_of_their_own(precision: str):
    leaf = torch.randn(HEADS, 128, 128, requires_grad=True)
    mask = torch.ones(1, 1, 128, 128, dtype=torch.bool).triu(1)
    product, results = leaf.neg(), []  # stands for the product of queries and keys

    def forward() -> None:
        scores = product.view(1, HEADS, 128, 128)
        results.append(torch.softmax(scores.masked_fill_(mask, -1e4), dim=-1))

    masking, softmax = attention_kernels(precision=precision)
    expected = moved_bytes(forward)
    assert masking.forward_bytes + softmax.forward_bytes == pytest.approx(expected, rel=0.01)
    (result,), gradient = results, torch.randn(1, HEADS, 128, 128)
    negated = 2 * size_bytes(leaf)
    expected = moved_bytes(lambda: result.backward(gradient)) - negated
    assert masking.backward_bytes + softmax.backward_bytes == pytest.approx(expected, rel=0.01)


def test_the_fused_softmax_of_sixteen_bits_masks_as_it_goes():
    (softmax,) = attention_kernels(stack="megatron-lm-2021", precision="fp16")
    assert softmax.forward_bytes == 2 * HEADS * 128 * 128 * 2


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_megatrons_scores_of_six_heads_are_cast_scaled_and_masked_by_kernels_of_their_own(
    precision: str,
):
    dtype, heads = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision], 6
    leaf = torch.randn(heads, 128, 128, dtype=dtype, requires_grad=True)
    mask = torch.ones(1, 1, 128, 128, dtype=torch.bool).triu(1)
    product, results = leaf.neg(), []  # stands for the product of queries and keys

    def forward() -> None:
        scores = product.view(1, heads, 128, 128).float() * 3
        results.append(torch.softmax(scores.masked_fill_(mask, -1e4), dim=-1).to(dtype))

    mask_piece, softmax = attention_kernels(heads, stack="megatron-lm-2021", precision=precision)
    expected = moved_bytes(forward)
    assert mask_piece.forward_bytes + softmax.forward_bytes == pytest.approx(expected, rel=0.01)
    (result,), gradient = results, torch.randn(1, heads, 128, 128, dtype=dtype)
    negated, product_of_cudas_softmax = 2 * size_bytes(leaf), 3 * 4 * leaf.numel()
    expected = moved_bytes(lambda: result.backward(gradient)) - negated + product_of_cudas_softmax
    assert mask_piece.backward_bytes + softmax.backward_bytes == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("heads", "tp", "length", "is_fused"),
    [(16, 4, 2048, True), (16, 8, 2048, False), (6, 1, 2048, False), (16, 4, 2064, False)],
)
def test_megatrons_softmax_is_one_kernel_for_fours_of_heads_and_2048_tokens(
    heads: int, tp: int, length: int, is_fused: bool
):
    plan = {"stack": "megatron-lm-2021", "precision": "fp16", "tp": tp}
    assert (len(attention_kernels(heads, length, **plan)) == 1) is is_fused


def test_a_compilers_softmax_is_one_kernel_for_any_number_of_heads():
    assert len(attention_kernels(6, stack="torch", attention="unfused", compile=True)) == 1


def expert_pieces(tokens: int, **stack: bool) -> Layer:
    """A layer of four clamped experts with biases."""
    experts = {"count": 4, "top_k": 2, "ffn_hidden": 128}
    model = small_model(hidden=256, mlp_bias=True, clamped_gate=True, experts=experts)
    plan = Plan(stack={"base": "megatron-core", **stack})
    return model_layer(model, layer_kinds(model)[0], plan, microbatch_shape(plan, 1, tokens))


def test_eager_clamps_of_experts_move_what_torch_counts():
    product = torch.randn(2 * 64, 2 * 128, dtype=torch.bfloat16, requires_grad=True)
    results = []

    def forward() -> None:
        gate, factor = product.chunk(2, dim=-1)
        results.append(torch.cat((gate.clamp(max=7.0), factor.clamp(-7.0, 7.0)), dim=-1))

    clamp = memory_bound(expert_pieces(64), "expert_activation_clamp")
    assert clamp.forward_bytes == moved_bytes(forward)
    (result,) = results
    gradient = torch.randn_like(result)
    backward = moved_bytes(lambda: result.backward(gradient))
    assert clamp.backward_bytes == pytest.approx(backward, rel=1e-3)


def test_biases_of_experts_added_in_fp32_move_what_torch_counts():
    experts, hidden, tokens = 4, 256, 256
    copies = 2 * tokens
    output = torch.randn(copies, hidden, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.rand(copies, 1, requires_grad=True)
    each = copies // experts
    biases = [torch.randn(hidden).bfloat16().requires_grad_() for _ in range(experts)]
    results = []

    def forward() -> None:
        parts = zip(output.split(each), biases, weights.split(each), strict=True)
        joined = torch.cat([part + bias * weight for part, bias, weight in parts])
        results.append(joined.to(output.dtype))

    added = memory_bound(expert_pieces(tokens), "expert_bias")
    assert added.forward_bytes == pytest.approx(moved_bytes(forward), rel=0.03)
    (result,) = results
    gradient = torch.randn_like(result)
    assert added.backward_bytes == pytest.approx(
        moved_bytes(lambda: result.backward(gradient)), rel=0.03
    )


def test_where_they_are_fused_clamps_and_biases_of_experts_are_no_kernels():
    names = {piece.name for piece in expert_pieces(16, fused_expert_extras=True).pieces}
    assert not names & {"expert_activation_clamp", "expert_bias"}


@pytest.mark.parametrize(("gated", "forward", "backward"), [(False, 2, 3), (True, 3, 5)])
def test_a_fused_activation_moves_each_of_its_rows_once(gated, forward, backward):
    """Backward reads what forward read, and the gradient, and writes a gradient for each.

    Without a gate that is what torch's kernels do; with one they are two where the fused one is
    one: gate, up and gradient in, two gradients out.
    """
    model = small_model(gated_mlp=gated, activation="silu" if gated else "gelu")
    plan = Plan()
    layer = model_layer(model, layer_kinds(model)[0], plan, microbatch_shape(plan, 1, TOKENS))
    row_bytes = 2 * TOKENS * model.ffn_hidden
    moved = memory_bound(layer, "activation")
    assert moved.forward_bytes == forward * row_bytes
    assert moved.backward_bytes == backward * row_bytes
    if not gated:
        given = torch.ones(TOKENS, model.ffn_hidden, dtype=torch.bfloat16)
        ops = torch.ops.aten
        assert moved_bytes(lambda: ops.gelu(given)) == moved.forward_bytes
        assert moved_bytes(lambda: ops.gelu_backward(given, given)) == moved.backward_bytes


@pytest.mark.parametrize("joined", [False, True])
def test_an_eager_gate_moves_what_torch_counts(joined: bool):
    model = small_model(gated_mlp=True, activation="silu")
    plan = Plan(stack={**SIXTEEN_BIT_TORCH, "fused_projections": joined})
    layer = model_layer(model, layer_kinds(model)[0], plan, microbatch_shape(plan, 1, TOKENS))
    width = model.ffn_hidden
    product = torch.randn(TOKENS, 2 * width, dtype=torch.bfloat16, requires_grad=True)
    halves = [torch.randn(TOKENS, width, dtype=torch.bfloat16, requires_grad=True) for _ in "ab"]
    results = []

    def forward() -> None:
        gate, up = product.chunk(2, dim=-1) if joined else halves
        results.append(torch.nn.functional.silu(gate) * up)

    activation = memory_bound(layer, "activation")
    assert activation.forward_bytes == moved_bytes(forward)
    (result,) = results
    gradient = torch.randn_like(result)
    assert activation.backward_bytes == moved_bytes(lambda: result.backward(gradient))


def test_an_eager_residual_is_one_addition():
    model, plan = small_model(), Plan(stack=SIXTEEN_BIT_TORCH)
    layer = model_layer(model, layer_kinds(model)[0], plan, microbatch_shape(plan, 1, TOKENS))
    branch, stream = (torch.randn(TOKENS, model.hidden, dtype=torch.bfloat16) for _ in "ab")
    residual = memory_bound(layer, "mlp_residual")
    assert residual.forward_bytes == moved_bytes(lambda: branch + stream)
    assert residual.kernels == 1


def test_under_autocast_a_residual_adds_16_bit_branches_to_an_fp32_stream():
    """Forward as torch counts it. Backward adds two fp32 gradients up and casts one of them.

    That is 3 x 4 bytes and 4 + 2 for each number of the stream.
    """
    model = small_model()
    plan = Plan(stack={"base": "torch", "keeps_half_weights": False}, master_weights=True)
    assert plan.autocasts
    layer = model_layer(model, layer_kinds(model)[0], plan, microbatch_shape(plan, 1, TOKENS))
    branch = torch.randn(TOKENS, model.hidden, dtype=torch.bfloat16, requires_grad=True)
    stream = torch.randn(TOKENS, model.hidden, requires_grad=True)
    results = []
    residual = memory_bound(layer, "mlp_residual")
    assert residual.forward_bytes == moved_bytes(lambda: results.append(stream + branch))
    (result,) = results
    gradient = torch.randn_like(result)
    copied_bytes = moved_bytes(gradient.clone)  # Torch copies what the leaf of a graph gets.
    cast_bytes = moved_bytes(lambda: result.backward(gradient)) - copied_bytes
    added_bytes = moved_bytes(lambda: gradient + stream.detach())
    assert residual.backward_bytes == cast_bytes + added_bytes == 18 * TOKENS * model.hidden


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_norm_written_out_moves_what_torch_counts(precision: str):
    stack = {**SIXTEEN_BIT_TORCH, "fused_rmsnorm": False}
    model, plan = small_model(hidden=4096), Plan(stack=stack, precision=precision)
    layer = model_layer(model, layer_kinds(model)[0], plan, microbatch_shape(plan, 1, 64))
    norm, results = memory_bound(layer, "mlp_norm"), []
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    stream = torch.randn(64, 4096, dtype=dtype, requires_grad=True)
    weight = torch.ones(4096, dtype=dtype, requires_grad=True)

    def forward() -> None:
        full = stream.to(torch.float32)
        scale = torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + 1e-6)
        results.append(weight * (full * scale).to(dtype))

    assert norm.forward_bytes == pytest.approx(moved_bytes(forward), rel=0.01)
    (result,) = results
    gradient = torch.randn_like(result)
    backward = moved_bytes(lambda: result.backward(gradient))
    assert norm.backward_bytes == pytest.approx(backward, rel=0.01)


def test_an_eager_loss_reads_its_rows_three_times_and_its_gradients_twice():
    """Beyond what torch counts, where every operator reads what it is given once.

    Of the log-probabilities the loss reads one number per row.
    """
    logits = torch.randn(TOKENS, 1000, dtype=torch.bfloat16, requires_grad=True)
    labels, results = torch.arange(TOKENS), []
    copy_bytes, kernel = 4 * logits.numel(), LOSSES["eager"]

    def forward() -> None:
        results.append(torch.nn.functional.cross_entropy(logits.float(), labels))

    small = {"rel": 1e-3}
    counted = moved_bytes(forward) + (2 - 1) * copy_bytes
    assert kernel.forward.num_bytes(logits.numel(), 2) == pytest.approx(counted, **small)
    (loss,) = results
    counted = moved_bytes(loss.backward) + (1 - 1) * copy_bytes
    assert kernel.backward.num_bytes(logits.numel(), 2) == pytest.approx(counted, **small)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("eager-shifted", torch.float32), ("eager-16bit", torch.bfloat16)]
)
def test_a_loss_of_shifted_logits_copies_them_and_puts_their_gradient_into_zeros(kind, dtype):
    """Transformers before 4.49 shifts fp32 logits; else as the loss of logits that stay."""
    logits = torch.randn(2, 512, 1000, dtype=torch.bfloat16, requires_grad=True)
    labels, results = torch.zeros(2 * 511, dtype=torch.int64), []
    row_bytes, kernel = dtype.itemsize * logits.numel(), LOSSES[kind]

    def forward() -> None:
        shifted = logits.to(dtype)[:, :-1].contiguous().view(-1, 1000)
        results.append(torch.nn.functional.cross_entropy(shifted, labels))

    all_but_one = {"rel": 1 / 256}
    counted = moved_bytes(forward) + (2 - 1) * row_bytes
    assert kernel.forward.num_bytes(logits.numel(), 2) == pytest.approx(counted, **all_but_one)
    counted = moved_bytes(results[0].backward) + (1 - 1) * row_bytes
    assert kernel.backward.num_bytes(logits.numel(), 2) == pytest.approx(counted, **all_but_one)


def test_the_gradient_of_an_embedding_is_as_large_as_its_table():
    model, plan = small_model(), Plan(stack=SIXTEEN_BIT_TORCH)
    layer = embedding_layer(model, plan, microbatch_shape(plan, 1, TOKENS), model.vocab)
    table = torch.randn(model.vocab, model.hidden, dtype=torch.bfloat16, requires_grad=True)
    torch.nn.functional.embedding(torch.arange(TOKENS), table).sum().backward()
    zeros = memory_bound(layer, "embedding_zeros")
    assert zeros.backward_bytes == size_bytes(table.grad)
    assert not zeros.forward_bytes


def written_gelu(*, autocast: bool) -> MemoryBound:
    model = small_model(hidden=64, ffn_hidden=256, gated_mlp=False, activation="gelu-new")
    plan = Plan(zero=0, stack={"base": "torch", "keeps_half_weights": not autocast})
    shape = microbatch_shape(plan, 1, TOKENS)
    return memory_bound(model_layer(model, layer_kinds(model)[0], plan, shape), "activation")


@pytest.mark.parametrize("autocast", [False, True])
def test_a_written_out_gelu_moves_what_torch_counts(autocast):
    """Autocast takes the power in fp32, and casts the result where a product reads it."""
    x = torch.randn(TOKENS, 256, dtype=torch.bfloat16, requires_grad=True)
    outputs = []

    def forward() -> None:
        cube = torch.pow(x.float() if autocast else x, 3.0)
        bent = torch.tanh(0.8 * (x + 0.044715 * cube))
        outputs.append((0.5 * x * (1.0 + bent)).bfloat16())

    gelu = written_gelu(autocast=autocast)
    assert gelu.forward_bytes == moved_bytes(forward)
    gradients = [torch.randn_like(output) for output in outputs]
    backward = moved_bytes(lambda: torch.autograd.backward(outputs, gradients))
    assert gelu.backward_bytes == backward


@pytest.mark.parametrize("is_wide", [False, True])
def test_halves_are_rotated_by_the_kernels_that_torch_dispatches(is_wide):
    """As transformers' models/llama does, ten passes over queries and keys, 15 backward.

    With fp32 tables, which stand for the streams that they follow under autocast, results are fp32,
    and attention casts them.
    """
    heads, dim, tokens = 4, 64, 128
    model = small_model(heads=heads, kv_heads=heads, hidden=heads * dim)
    facts = {"fused_rotary": False, "rotates_halves": True, "rotary_follows_stream": is_wide}
    plan = Plan(zero=0, stack={"base": "torch", "keeps_half_weights": False, **facts})
    dtype = torch.float32 if is_wide else torch.bfloat16
    layer = model_layer(model, layer_kinds(model)[0], plan, microbatch_shape(plan, 1, tokens))
    rotary, results = memory_bound(layer, "rotary"), []
    leaves = [
        torch.randn(1, tokens, heads * dim, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(2)
    ]
    cosine, sine = (torch.randn(1, 1, tokens, dim, dtype=dtype) for _ in range(2))
    # Tables of one row per position, which all heads read, are left out.
    tables = len(leaves) * (size_bytes(cosine) + size_bytes(sine))

    def forward() -> None:
        for leaf in leaves:
            split = leaf.view(1, tokens, heads, dim).transpose(1, 2)
            first, second = split[..., : dim // 2], split[..., dim // 2 :]
            rotated = split * cosine + torch.cat((-second, first), dim=-1) * sine
            results.append(rotated.to(torch.bfloat16))

    assert rotary.forward_bytes == moved_bytes(forward) - tables
    gradients = [torch.randn_like(result) for result in results]
    backward = moved_bytes(lambda: torch.autograd.backward(results, gradients))
    assert rotary.backward_bytes == backward - tables


def test_pairs_are_rotated_by_the_kernels_that_torch_dispatches():
    """As torchtune does, in fp32: 24 passes over queries and keys, 50 backward."""
    heads, dim, tokens = 4, 64, 128
    model = small_model(heads=heads, kv_heads=heads, hidden=heads * dim)
    plan = Plan(stack="torchtune")
    layer = model_layer(model, layer_kinds(model)[0], plan, microbatch_shape(plan, 1, tokens))
    rotary, results = memory_bound(layer, "rotary"), []
    leaves = [
        torch.randn(1, tokens, heads * dim, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(2)
    ]
    cosine, sine = (torch.randn(1, tokens, 1, dim // 2) for _ in range(2))
    # Tables of one row per position, which all heads read twice, are left out.
    tables = 2 * len(leaves) * (size_bytes(cosine) + size_bytes(sine))

    def forward() -> None:
        for leaf in leaves:
            pairs = leaf.view(1, tokens, heads, dim).float().reshape(1, tokens, heads, -1, 2)
            turned = [
                pairs[..., 0] * cosine - pairs[..., 1] * sine,
                pairs[..., 1] * cosine + pairs[..., 0] * sine,
            ]
            results.append(torch.stack(turned, dim=-1).flatten(3).to(torch.bfloat16))

    assert rotary.forward_bytes == moved_bytes(forward) - tables
    gradients = [torch.randn_like(result) for result in results]
    backward = moved_bytes(lambda: torch.autograd.backward(results, gradients))
    assert rotary.backward_bytes == backward - tables
