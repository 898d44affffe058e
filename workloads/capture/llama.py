"""A Llama in plain torch, and what every training script needs of a command line."""

from __future__ import annotations

import argparse
import os

import torch
from torch import Tensor, nn
from torch.nn import functional

SIZES = {
    "debug": {"layers": 4, "hidden": 256, "heads": 8, "kv_heads": 4, "ffn": 512, "vocab": 1024},
    "8b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256},
    "70b": {
        "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 128256,
    },
}  # fmt: skip


class Attention(nn.Module):
    """Grouped heads in one fused kernel."""

    def __init__(self, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head_dim = hidden // heads
        self.wq = nn.Linear(hidden, hidden, bias=False)
        self.wk = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """From (b, s, h) to the same."""
        heads = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv))
        query, key, value = (t.transpose(1, 2) for t in heads)
        context = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        return self.wo(context.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """A gated MLP."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """From (b, s, h) to the same."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """A transformer layer with norms in front."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, ffn: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, kv_heads)
        self.mlp: nn.Module = FeedForward(hidden, ffn)
        self.attention_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.mlp_norm = nn.RMSNorm(hidden, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        """From (b, s, h) to the same."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    """A Llama, or the layers of one pipeline stage."""

    def __init__(
        self, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int,
        *, has_embedding: bool = True, has_head: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden) if has_embedding else None
        self.layers = nn.ModuleList(Layer(hidden, heads, kv_heads, ffn) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden, eps=1e-5) if has_head else None
        self.head = nn.Linear(hidden, vocab, bias=False) if has_head else None

    def forward(self, x: Tensor) -> Tensor:
        """From tokens (b, s) to logits (b, s, v); stages begin or end at (b, s, h)."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None or self.norm is None else self.head(self.norm(x))


def token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross-entropy of fp32 logits."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def settings(**more: int | str | tuple[str, ...]) -> argparse.Namespace:
    """The script's own arguments; ``more`` are defaults, or choices with the default first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="debug")
    for name, default in {"batch": 1, "seq-len": 1024, "steps": 10, **more}.items():
        if isinstance(default, int | str):
            parser.add_argument(f"--{name}", type=type(default), default=default)
        else:
            parser.add_argument(f"--{name}", choices=default, default=default[0])
    return parser.parse_args()


def this_gpu() -> torch.device:
    """The GPU of this rank."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def tokens_of(args: argparse.Namespace, device: torch.device) -> Tensor:
    """Sequences of one microbatch, (b, s)."""
    vocab = SIZES[args.size]["vocab"]
    return torch.randint(0, vocab, (args.batch, args.seq_len), device=device)
