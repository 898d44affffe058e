"""How much memory does torch hold at most in a step that trains adapters, or some of the weights?

Small models of :mod:`tests.saved_by_torch` under fake tensors, whose second step torch's
``MemTracker`` watches. Weights of 4 or 8 bits are stand-ins of the right size, which a function
turns into a matrix wherever a product reads one, forward and backward.

``python -m tests.finetuned_by_torch`` measures all cases of ``finetuning_peaks.csv`` again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.csv_files import read_rows, write_rows
from tests.saved_by_torch import Attention, LlamaLayer, RmsNorm, Sizes, eager_loss

TARGETS = {
    "attention.wq": "query",
    "attention.wk": "key",
    "attention.wv": "value",
    "attention.wo": "output",
    "mlp.gate": "gate",
    "mlp.up": "up",
    "mlp.down": "down",
}
"""Linear layers by what a plan calls their matrices."""


CASES = Path(__file__).parent / "results" / "oracles" / "finetuning_peaks.csv"

BASE_BYTES = {"nf4": 0.5 + (1 + 4 / 256) / 64, "int8": 1.0}
"""Per element of a quantised matrix; 4-bit ones with constants that are quantised, too."""


SMALL = Sizes(256, 8, 4, 768)


@dataclass(frozen=True)
class Case:
    """What is trained, and how.

    Attributes:
        layers, vocab, sizes, micro_batch, seq_len: Sizes of model and batch.
        rank, targets, dropout: Of adapters; rank 0 is none, or ``ia3``.
        is_ia3: Whether adapters are factors of outputs, or of the inputs of ``down``.
        prefix: Learned keys and values in front of every sequence.
        base_bytes: Bytes per element of frozen matrices of layers; None is 16-bit.
        frozen: Patterns of names of parameters that are not trained.
        recomputes: Whether every layer is computed again.
        optimizer: ``adam``, ``sgd`` or ``sgd-momentum``.
        is_fused: Whether the optimizer is one kernel.
        fused_norms: Whether norms are.
    """

    layers: int = 2
    vocab: int = 2048
    sizes: Sizes = SMALL
    micro_batch: int = 2
    seq_len: int = 256
    rank: int = 0
    is_ia3: bool = False
    prefix: int = 0
    targets: tuple[str, ...] = tuple(TARGETS.values())
    dropout: float = 0.0
    base_bytes: float | None = None
    frozen: tuple[str, ...] = ()
    recomputes: bool = False
    optimizer: str = "adam"
    is_fused: bool = True
    fused_norms: bool = True


class Dequantised(torch.autograd.Function):
    """A product with a weight that is made of ``packed`` before every use."""

    @staticmethod
    def forward(ctx, x: Tensor, packed: Tensor, shape: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.shape = shape
        return functional.linear(x, packed.new_empty(shape, dtype=x.dtype))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        (packed,) = ctx.saved_tensors
        return gradient @ packed.new_empty(ctx.shape, dtype=gradient.dtype), None, None


class Adapted(nn.Module):
    """A linear layer with frozen, perhaps quantised, weights, and an adapter or none."""

    def __init__(self, linear: nn.Linear, case: Case, *, name: str) -> None:
        super().__init__()
        self.shape = tuple(linear.weight.shape)
        self.weight = linear.weight
        if case.base_bytes is not None:
            packed = torch.empty(math.ceil(linear.weight.numel() * case.base_bytes)).byte()
            self.weight = nn.Parameter(packed, requires_grad=False)
        self.is_quantised = case.base_bytes is not None
        self.dropout = case.dropout
        outputs, inputs = self.shape
        self.adapter = self.factors = None
        self.scales_inputs = name == "down"
        if case.is_ia3 and name in case.targets:
            self.factors = nn.Parameter(torch.ones(inputs if self.scales_inputs else outputs))
        elif name in case.targets:
            down = nn.Linear(inputs, case.rank, bias=False)
            self.adapter = nn.Sequential(down, nn.Linear(case.rank, outputs, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        if self.factors is not None and self.scales_inputs:
            x = x * self.factors
        if self.is_quantised:
            result = Dequantised.apply(x, self.weight, self.shape)
        else:
            result = functional.linear(x, self.weight)
        if self.factors is not None and not self.scales_inputs:
            result = result * self.factors
        if self.adapter is None:
            return result
        kept = x
        if self.dropout:
            kept = torch.ops.aten.native_dropout(x, self.dropout, True)[0]
        return result + self.adapter(kept) * 2.0


class Prefixed(nn.Module):
    """The attention of a layer, with learned keys and values in front of its own."""

    def __init__(self, attention: Attention, case: Case) -> None:
        super().__init__()
        self.attention = attention
        shape = (2, 1, case.sizes.kv_heads, case.prefix, attention.head_dim)
        self.prefix = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        of, before = self.attention, self.prefix.expand(-1, len(x), -1, -1, -1)
        query, key, value = (of.heads_of(w(x)) for w in (of.wq, of.wk, of.wv))
        key, value = (torch.cat(each, 2) for each in zip(before, (key, value), strict=True))
        grouped = query.shape[1] != key.shape[1]
        context = functional.scaled_dot_product_attention(query, key, value, enable_gqa=grouped)
        return of.wo(context.transpose(1, 2).reshape(*x.shape[:2], -1))


class Net(nn.Module):
    """A small Llama; with adapters the input of its layers has a gradient, that of one number."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        sizes = case.sizes
        self.case = case
        self.anchor = nn.Parameter(torch.zeros(()))
        self.embedding = nn.Embedding(case.vocab, sizes.hidden)
        self.layers = nn.ModuleList(
            LlamaLayer(sizes, fused_rmsnorm=case.fused_norms) for _ in range(case.layers)
        )
        self.norm = RmsNorm(sizes.hidden, fused=case.fused_norms)
        self.head = nn.Linear(sizes.hidden, case.vocab, bias=False)
        if case.rank or case.is_ia3:
            for layer in self.layers:
                for path, name in TARGETS.items():
                    parent = layer.get_submodule(path.rpartition(".")[0])
                    linear = layer.get_submodule(path)
                    adapted = Adapted(linear, case, name=name)
                    setattr(parent, path.rpartition(".")[2], adapted)
        for layer in self.layers if case.prefix else ():
            layer.attention = Prefixed(layer.attention, case)
        for name, _ in list(self.named_parameters()):
            is_added = (
                name == "anchor" or ".adapter." in name or name.endswith((".factors", ".prefix"))
            )
            if not is_added and any(fnmatchcase(name, each) for each in case.frozen):
                _freeze(self.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.case.rank or self.case.is_ia3:
            x = x + self.anchor
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.case.recomputes else layer(x)
        return self.head(self.norm(x))


def _freeze(module: nn.Module, name: str) -> None:
    """Make a parameter a buffer: trackers hang a hook for its gradient on every parameter."""
    weight = getattr(module, name)
    delattr(module, name)
    module.register_buffer(name, weight.detach())


def _optimizer(net: nn.Module, case: Case) -> torch.optim.Optimizer:
    trained = [each for each in net.parameters() if each.requires_grad]
    if case.optimizer == "adam":
        return torch.optim.AdamW(trained, fused=case.is_fused, foreach=not case.is_fused)
    momentum = 0.9 if case.optimizer == "sgd-momentum" else 0.0
    return torch.optim.SGD(trained, lr=0.1, momentum=momentum, fused=case.is_fused)


def peak_bytes(case: Case) -> int:
    """The most that torch holds in the second step, inputs left out [B]."""
    before = torch.get_default_dtype()
    with FakeTensorMode():
        torch.set_default_dtype(torch.bfloat16)
        try:
            net = Net(case)
        finally:
            torch.set_default_dtype(before)
        optimizer = _optimizer(net, case)
        shape = (case.micro_batch, case.seq_len)
        tokens, targets = (torch.randint(0, case.vocab, shape) for _ in range(2))
        tracker = MemTracker()
        tracker.track_external(net, optimizer, tokens, targets)
        with tracker:
            for step in range(2):
                if step:
                    tracker.reset_mod_stats()
                loss = eager_loss(net(tokens), targets)
                loss.backward()
                del loss
                optimizer.step()
                optimizer.zero_grad()
        peaks = tracker.get_tracker_snapshot("peak")
    (of_cpu,) = peaks.values()
    inputs = sum(each.untyped_storage().nbytes() for each in (tokens, targets))
    return next(size for kind, size in of_cpu.items() if str(kind).endswith("Total")) - inputs


def rows() -> list[dict[str, str]]:
    """What was measured."""
    return read_rows(CASES)


def case_of(row: dict[str, str]) -> Case:
    """What a row was measured of."""
    whole: dict[str, Any] = {
        name: int(row[name]) for name in ("layers", "vocab", "micro_batch", "seq_len", "rank")
    }
    sizes = (int(row[name]) for name in ("hidden", "heads", "kv_heads", "ffn_hidden"))
    return Case(
        **whole,
        sizes=Sizes(*sizes),
        is_ia3=row["kind"] == "ia3",
        prefix=int(row["prefix"]),
        targets=tuple(row["targets"].split()) or tuple(TARGETS.values()),
        dropout=float(row["dropout"]),
        base_bytes=BASE_BYTES.get(row["base"]),
        frozen=tuple(row["frozen"].split()),
        recomputes=row["recompute"] == "full",
        optimizer=row["optimizer"],
        is_fused=row["fused"] == "true",
        fused_norms=row["fused_norms"] == "true",
    )


def main() -> None:
    """Measure every row again."""
    measured = [{**row, "peak_bytes": str(peak_bytes(case_of(row)))} for row in rows()]
    write_rows(measured, CASES)


if __name__ == "__main__":
    main()
