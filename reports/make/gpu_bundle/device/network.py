"""The model that is trained: in plain torch, or that of Hugging Face's transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from reports.make.gpu_bundle.device.training_runs import Network, TrainingRun
from simulator.calibrate.gpu.kernel_calls import UnsupportedCaseError

_ROTARY_BASE = 10_000.0


class Decoder(nn.Module):
    """Tokens (b, s) to logits (b, s, v)."""

    def __init__(self, run: TrainingRun) -> None:
        super().__init__()
        network = run.network
        self.embedding = nn.Embedding(network.vocab, network.hidden)
        learned = not network.is_llama
        self.positions = nn.Embedding(run.seq_len, network.hidden) if learned else None
        self.layers = nn.ModuleList(Layer(run) for _ in range(network.layers))
        self.norm = _norm(network)
        self.head = nn.Linear(network.hidden, network.vocab, bias=False)
        self.is_offloaded = run.is_offloaded

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of every token."""
        hidden = self.embedding(tokens)
        if self.positions is not None:
            hidden = hidden + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            if self.is_offloaded and index < last:
                pinned = tokens.device.type == "cuda"
                with torch.autograd.graph.save_on_cpu(pin_memory=pinned):
                    hidden = layer(hidden)
            else:
                hidden = layer(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross entropy in fp32 of rows of one token more than a sequence has."""
        logits = self(tokens[:, :-1]).flatten(0, 1)
        return functional.cross_entropy(logits.float(), tokens[:, 1:].flatten())


class Transformers(nn.Module):
    """The same network as transformers has it, for runs of that library.

    Raises:
        UnsupportedCaseError: transformers is not installed.
    """

    def __init__(self, run: TrainingRun) -> None:
        super().__init__()
        try:
            import transformers
        except ImportError as error:
            raise UnsupportedCaseError("transformers is not installed") from error
        self.model = _of_transformers(transformers, run)
        body = self.model.model if run.network.is_llama else self.model.transformer
        self.layers = body.layers if run.network.is_llama else body.h
        if run.recompute == "full":
            self.model.gradient_checkpointing_enable()
        self.model.train()

    def loss(self, tokens: Tensor) -> Tensor:
        """The library's own loss of whole sequences, shifted there."""
        rows = tokens[:, 1:].contiguous()
        loss: Tensor = self.model(input_ids=rows, labels=rows).loss
        return loss


def _of_transformers(transformers: Any, run: TrainingRun) -> Any:
    network = run.network
    common = {
        "vocab_size": network.vocab, "tie_word_embeddings": False, "use_cache": False,
        "attn_implementation": "eager" if run.is_unfused else "sdpa",
    }  # fmt: skip
    if not network.is_llama:
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_positions=run.seq_len, n_embd=network.hidden, n_layer=network.layers,
            n_head=network.heads, n_inner=network.ffn_hidden,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **common,
        ))  # fmt: skip
    common |= {
        "hidden_size": network.hidden, "intermediate_size": network.ffn_hidden,
        "num_hidden_layers": network.layers, "num_attention_heads": network.heads,
        "num_key_value_heads": network.kv_heads, "max_position_embeddings": run.seq_len,
    }  # fmt: skip
    if not network.experts:
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**common))
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        num_local_experts=network.experts, num_experts_per_tok=network.top_k,
        sliding_window=None, **common,
    ))  # fmt: skip


class Layer(nn.Module):
    """Attention, then an MLP or experts, each behind a norm and beside a residual."""

    def __init__(self, run: TrainingRun) -> None:
        super().__init__()
        network = run.network
        self.attention_norm, self.mlp_norm = _norm(network), _norm(network)
        self.attention = Attention(network)
        experts = GroupedExperts if run.is_grouped else Experts
        self.mlp: nn.Module = experts(network) if network.experts else Mlp(network)

    def forward(self, hidden: Tensor) -> Tensor:
        """The hidden state (b, s, h) after the layer."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        result: Tensor = hidden + self.mlp(self.mlp_norm(hidden))
        return result


class Attention(nn.Module):
    """Grouped-query attention by torch's best fused kernel."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.head_dim = network.hidden // network.heads
        self.is_rotary, biased = network.is_llama, not network.is_llama
        keys = network.kv_heads * self.head_dim
        self.query = nn.Linear(network.hidden, network.hidden, bias=biased)
        self.key = nn.Linear(network.hidden, keys, bias=biased)
        self.value = nn.Linear(network.hidden, keys, bias=biased)
        self.output = nn.Linear(network.hidden, network.hidden, bias=biased)

    def forward(self, hidden: Tensor) -> Tensor:
        """What attention adds to the hidden state (b, s, h)."""
        query, key, value = (
            product(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for product in (self.query, self.key, self.value)
        )
        if self.is_rotary:
            query, key = _rotated(query), _rotated(key)
        context = self.core(query, key, value)
        added: Tensor = self.output(context.transpose(1, 2).flatten(2))
        return added

    def core(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Core attention of heads (b, heads, s, d)."""
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )


class Mlp(nn.Module):
    """Up (and gate), activation, down."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        width, biased = network.ffn_hidden, not network.is_llama
        self.gate = None if biased else nn.Linear(network.hidden, width, bias=False)
        self.up = nn.Linear(network.hidden, width, bias=biased)
        self.down = nn.Linear(width, network.hidden, bias=biased)

    def forward(self, hidden: Tensor) -> Tensor:
        """What the MLP adds to the hidden state."""
        if self.gate is None:
            inner = functional.gelu(self.up(hidden))
        else:
            inner = functional.silu(self.gate(hidden)) * self.up(hidden)
        added: Tensor = self.down(inner)
        return added


class Experts(nn.Module):
    """Every token passes its ``top_k`` experts, one after the other, weighted by the router."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.top_k = network.top_k
        self.router = nn.Linear(network.hidden, network.experts, bias=False)
        self.experts = nn.ModuleList(Mlp(network) for _ in range(network.experts))

    def forward(self, hidden: Tensor) -> Tensor:
        """What the experts add to the hidden state (b, s, h)."""
        rows = hidden.flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).topk(self.top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        result = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            row, rank = (chosen == number).nonzero(as_tuple=True)
            output = expert(rows[row]) * weights[row, rank, None]
            result = result.index_add(0, row, output.to(result.dtype))
        return result.view_as(hidden)


class GroupedExperts(nn.Module):
    """The same, with one product for all experts, as torchtitan's GroupedExperts has them.

    Nothing asks the device for counts. Weights are cast in each pass, as their copies are no
    business of autocast's.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.top_k, self.number = network.top_k, network.experts
        self.router = nn.Linear(network.hidden, network.experts, bias=False)
        wide = (network.experts, network.hidden, network.ffn_hidden)
        narrow = (network.experts, network.ffn_hidden, network.hidden)
        self.gate, self.up, self.down = (
            nn.Parameter(nn.init.normal_(torch.empty(*shape), std=0.02))
            for shape in (wide, wide, narrow)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """What the experts add to the hidden state (b, s, h)."""
        rows = hidden.flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).topk(self.top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.number)
        ends = counts.cumsum(0, dtype=torch.int32)
        sources = order // self.top_k
        gathered = rows[sources].to(torch.bfloat16)
        inner = functional.silu(_grouped(gathered, self.gate, ends))
        inner = inner * _grouped(gathered, self.up, ends)
        outputs = _grouped(inner, self.down, ends) * weights.flatten()[order, None]
        result = torch.zeros_like(rows).index_add(0, sources, outputs.to(rows.dtype))
        return result.view_as(hidden)


def _grouped(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows (T, k), sorted by group, by a weight (groups, k, n); groups end at ``ends``."""
    product: Tensor = torch._grouped_mm(
        rows.to(torch.bfloat16), weight.to(torch.bfloat16), offs=ends
    )
    return product


class Adapted(nn.Module):
    """A frozen linear layer with an adapter beside it (LoRA, arXiv 2106.09685)."""

    def __init__(self, plain: nn.Linear, rank: int) -> None:
        super().__init__()
        self.plain = plain.requires_grad_(False)
        weight = plain.weight
        self.down = nn.Linear(plain.in_features, rank, bias=False).to(weight)
        self.up = nn.Linear(rank, plain.out_features, bias=False).to(weight)
        nn.init.zeros_(self.up.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """The frozen product and the adapter's."""
        added: Tensor = self.plain(hidden) + self.up(self.down(hidden))
        return added


class Float8Linear(nn.Module):
    """A linear layer whose three products run in 8 bits, one scale per operand."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = plain.weight, plain.bias

    def forward(self, hidden: Tensor) -> Tensor:
        """The product in 16 bits."""
        rows = hidden.to(torch.bfloat16).flatten(0, -2)
        product: Any = _Product.apply  # untyped in torch
        output: Tensor = product(rows, self.weight.to(torch.bfloat16))
        output = output if self.bias is None else output + self.bias.to(output.dtype)
        return output.view(*hidden.shape[:-1], -1)


class _Product(torch.autograd.Function):
    """Rows (T, k) by the transpose of a weight (n, k); e4m3, gradients e5m2 (arXiv 2209.05433)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _scaled(rows, weight, torch.float8_e4m3fn)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        rows, weight = ctx.saved_tensors
        of_rows = _scaled(gradient, weight.t(), torch.float8_e5m2)
        of_weight = _scaled(gradient.t(), rows.t(), torch.float8_e5m2)
        return of_rows, of_weight


def _scaled(left: Tensor, right: Tensor, left_format: torch.dtype) -> Tensor:
    """Left (m, k) by the transpose of right (n, k), in 8 bits."""
    first, scale = _in_8_bits(left, left_format)
    second, other = _in_8_bits(right, torch.float8_e4m3fn)
    return torch._scaled_mm(
        first, second.t(), scale_a=scale, scale_b=other, out_dtype=torch.bfloat16
    )


def _in_8_bits(matrix: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    scale = matrix.abs().amax().float().clamp(min=1e-12) / torch.finfo(kind).max
    most = torch.finfo(kind).max
    return (matrix / scale).clamp(-most, most).to(kind).contiguous(), scale


def build_network(run: TrainingRun, device: torch.device) -> Decoder | Transformers:
    """The model of a run on a device, recomputed, adapted, in 8 bits or compiled as it says."""
    before = torch.get_default_dtype()
    keeps_wide = run.precision in ("fp32", "tf32") or (run.has_master_weights and not run.lora_rank)
    torch.set_default_dtype(torch.float32 if keeps_wide else torch.bfloat16)
    try:
        with torch.device(device):
            model = Transformers(run) if run.is_transformers else Decoder(run)
            if run.lora_rank:
                model.requires_grad_(False)
                _replace_linear(model.layers, partial(Adapted, rank=run.lora_rank))
    finally:
        torch.set_default_dtype(before)
    if run.precision == "fp8":
        _replace_linear(model.layers, Float8Linear)
    if isinstance(model, Decoder):
        for layer in model.layers:
            _prepare(layer, run)
    return model


def _prepare(layer: Any, run: TrainingRun) -> None:
    again = partial(checkpoint, use_reentrant=False)
    if run.recompute == "selective":
        layer.attention.core = partial(again, layer.attention.core)
    if run.is_compiled:
        layer.forward = torch.compile(layer.forward, dynamic=False)
    if run.recompute == "full":
        # The checkpoint is around the compiled layer, as trainers put it.
        layer.forward = partial(again, layer.forward)


def _replace_linear(module: nn.Module, make: Any) -> None:
    for name, child in module.named_children():
        if type(child) is nn.Linear and name != "router":
            setattr(module, name, make(child))
        else:
            _replace_linear(child, make)


def _norm(network: Network) -> nn.Module:
    if network.is_llama:
        return nn.RMSNorm(network.hidden, eps=1e-5)
    return nn.LayerNorm(network.hidden, eps=1e-5)


def _rotated(heads: Tensor) -> Tensor:
    """Rotary position embedding of (b, heads, s, d), in halves (arXiv 2104.09864)."""
    length, half = heads.shape[2], heads.shape[3] // 2
    angle = torch.arange(length, device=heads.device)[:, None] * _ROTARY_BASE ** (
        -torch.arange(half, device=heads.device) / half
    )
    cosine, sine = angle.cos().to(heads.dtype), angle.sin().to(heads.dtype)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
