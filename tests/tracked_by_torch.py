"""How much memory does torch hold at most in a step of one rank of many, and for whom?

Llama-like models under fake tensors and a fake process group, whose second step torch's
``MemTracker``, or ``FSDPMemTracker``, watches: eager layers, one fused kernel for attention and for
each norm, repeated key and value heads, cross-entropy of fp32 logits. Sequence parallelism beside
tensor parallelism; every rank gathers all logits. Stages of pipelines run in
``torch.distributed.pipelining``, which hands no outputs on to the caller.

``python -m tests.tracked_by_torch`` measures all of ``torch_memory_trackers.csv`` again: large
cases, which have names, and a grid of small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import InferenceMode, get_schedule_class
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.csv_files import read_rows, write_rows
from tests.saved_by_torch import LlamaLayer, RmsNorm, Sizes, eager_loss, tensor_parallel
from tests.torch_traffic import fake_ranks

CASES = Path(__file__).parent / "results" / "oracles" / "torch_memory_trackers.csv"

GROUPS = {
    "parameters": ("Parameter", "Sharded Param"),
    "optimizer_states": ("Optstate", "OptState"),
    "gathered": ("Unsharded Param",),
    "gradients": ("Gradient", "Sharded Grad", "Unsharded Grad"),
}
"""What torch's trackers call it; all else is made on the way."""


@dataclass(frozen=True)
class Case:
    """One rank of a run.

    Attributes:
        case: Its name.
        layers, hidden, heads, kv_heads, ffn_hidden, vocab, tied, experts, top_k: The model.
        micro_batch, seq_len, microbatches: The batch.
        fsdp: Ranks of FSDP2 with all copies; 0 is none, and weights of 16 bits.
        replicas: Copies of what they shard.
        reshards: Whether weights are gathered again for backward.
        tp: Tensor-parallel ranks.
        recompute: ``full`` or ``none``.
        optimizer: ``adam``, ``sgd`` or ``sgd-momentum``.
        fused: Whether its update is one kernel.
        pp, stage, schedule: Stages of a pipeline, which of them it is, and their order.
    """

    case: str = ""
    layers: int = 2
    hidden: int = 2048
    heads: int = 16
    kv_heads: int = 4
    ffn_hidden: int = 8192
    vocab: int = 32000
    tied: bool = False
    micro_batch: int = 2
    seq_len: int = 4096
    microbatches: int = 1
    fsdp: int = 0
    replicas: int = 1
    reshards: bool = True
    tp: int = 1
    recompute: str = "none"
    optimizer: str = "adam"
    fused: bool = True
    pp: int = 1
    stage: int = 0
    schedule: str = ""
    experts: int = 0
    top_k: int = 0


class Net(nn.Module):
    """Embedding, layers, norm and head, which may be the embedding; or what a stage has of them."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        sizes = Sizes(
            case.hidden, case.heads, case.kv_heads, case.ffn_hidden, case.experts, case.top_k
        )
        is_first, is_last = case.stage == 0, case.stage == case.pp - 1
        self.embedding = nn.Embedding(case.vocab, case.hidden) if is_first else nn.Identity()
        self.layers = nn.ModuleList(
            LlamaLayer(sizes, repeats_kv_heads=True) for _ in range(case.layers // case.pp)
        )
        self.norm = RmsNorm(case.hidden, fused=True) if is_last else nn.Identity()
        head = nn.Linear(case.hidden, case.vocab, bias=False) if is_last else nn.Identity()
        self.head = head
        if case.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def _mesh(shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    return _without_fakes(lambda: init_device_mesh("cpu", shape, mesh_dim_names=names))


def _cut(net: Net, mesh: DeviceMesh) -> None:
    parallelize_module(
        net,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(use_local_output=True),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for layer in net.layers:
        tensor_parallel(layer, mesh, sequence_parallel=True)


def _parallel(case: Case, net: Net) -> None:
    """Cut, checkpoint and shard a model in place."""
    meshes: dict[str, DeviceMesh] = {}
    if case.tp > 1 and case.fsdp:
        both = _mesh((case.fsdp, case.tp), ("data", "tensor"))
        meshes = {"tensor": both["tensor"], "data": both["data"]}
    elif case.tp > 1:
        meshes = {"tensor": _mesh((case.tp,), ("tensor",))}
    elif case.replicas > 1:
        shape = (case.replicas, case.fsdp // case.replicas)
        meshes = {"data": _mesh(shape, ("replicas", "shards"))}
    elif case.fsdp:
        meshes = {"data": _mesh((case.fsdp,), ("data",))}
    if "tensor" in meshes:
        _cut(net, meshes["tensor"])
    if case.recompute == "full":
        for number, layer in enumerate(net.layers):
            net.layers[number] = checkpoint_wrapper(layer, CheckpointImpl.NO_REENTRANT)
    if "data" in meshes:
        concatenate = DeviceMesh._concatenate
        with_numbers = staticmethod(lambda meshes: _without_fakes(concatenate, meshes))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        with mock.patch.object(DeviceMesh, "_concatenate", with_numbers):
            for module in (*net.layers, net):
                # A root that is first and last in forward stays until backward, as torch says.
                is_tied_root = module is net and case.tied
                fully_shard(
                    module, mesh=meshes["data"], mp_policy=policy,
                    reshard_after_forward=None if is_tied_root else case.reshards,
                )  # fmt: skip


def _without_fakes(function: Callable[..., Any], *arguments: Any) -> Any:
    """Its result on real tensors: meshes look for ranks by their numbers."""
    with unset_fake_temporarily():
        return function(*arguments)


def _optimizer(case: Case, net: Net) -> torch.optim.Optimizer:
    kernels = {"fused": case.fused, "foreach": False}
    if case.optimizer == "adam":
        return torch.optim.AdamW(net.parameters(), **kernels)
    momentum = 0.9 if case.optimizer == "sgd-momentum" else 0.0
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum, **kernels)


def _pipelined(case: Case, net: Net, tokens: Tensor, targets: Tensor) -> Callable[..., None]:
    """Passes of all microbatches through a stage, which may be told what to forget before each."""
    is_first, is_last = case.stage == 0, case.stage == case.pp - 1
    row = torch.empty(case.micro_batch, case.seq_len, case.hidden, dtype=torch.bfloat16)
    logits = torch.empty(case.micro_batch, case.seq_len, case.vocab, dtype=torch.bfloat16)
    gradient = (torch.empty_like(row),)
    row.requires_grad_()
    stage = PipelineStage(
        net, case.stage, case.pp, torch.device("cpu"),
        input_args=tokens[: case.micro_batch] if is_first else row,
        output_args=logits.requires_grad_() if is_last else row,
        input_grads=None if is_first else gradient, output_grads=None if is_last else gradient,
    )  # fmt: skip
    order = get_schedule_class(case.schedule)(stage, case.microbatches, loss_fn=eager_loss)
    # Ranks vote on whether all know their shapes by a number that fake ranks do not send.
    stage._inference_mode = InferenceMode.STATIC
    order._warmup_p2p = lambda *_: None
    forward = stage.forward_one_chunk

    def passes(forget: Callable[[], None]) -> None:
        def forgotten(*arguments: Any, **named: Any) -> Any:
            forget()
            return forward(*arguments, **named)

        stage.forward_one_chunk = forgotten
        inputs = (tokens,) if is_first else ()
        of_loss = {"target": targets, "losses": []} if is_last else {}
        order.step(*inputs, **of_loss, return_outputs=False)

    return passes


def tracked_bytes(case: Case) -> dict[str, int]:
    """The most that torch holds in the second step, inputs left out, and for whom [B]."""
    ranks = max(2, max(1, case.fsdp) * case.tp, case.pp)
    with fake_ranks(ranks, case.stage), FakeTensorMode(allow_non_fake_inputs=True):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32 if case.fsdp else torch.bfloat16)
        try:
            net = Net(case)
        finally:
            torch.set_default_dtype(before)
        _parallel(case, net)
        optimizer = _optimizer(case, net)
        at_once = case.microbatches if case.pp > 1 else 1
        shape = (case.micro_batch * at_once, case.seq_len)
        inputs = tokens, targets = [torch.randint(0, case.vocab, shape) for _ in range(2)]
        pipelined = _pipelined(case, net, tokens, targets) if case.pp > 1 else None

        def step(forget: Callable[[], None] = lambda: None) -> None:
            if pipelined:
                pipelined(forget)
            for _ in range(0 if pipelined else case.microbatches):
                forget()
                logits = net(tokens)
                loss = eager_loss(logits, targets)
                del logits
                loss.backward()
                del loss
            optimizer.step()
            optimizer.zero_grad()

        if case.tp > 1 or case.fused:
            # DTensor tries operators on whole shapes once, in the same fake mode.
            step()
        if case.fsdp:
            tracker: Any = FSDPMemTracker(net, optimizer)
            tracker.track_inputs(tuple(inputs))
        else:
            tracker = MemTracker()
            tracker.track_external(net, optimizer, *inputs)
        with tracker:
            for _ in range(2):
                step(tracker.reset_mod_stats)
        (of_cpu,) = tracker.get_tracker_snapshot("peak").values()
    held = {str(getattr(kind, "value", kind)): size for kind, size in of_cpu.items()}
    total = held["Total"] - sum(each.untyped_storage().nbytes() for each in inputs)
    kept = {name: sum(held.get(kind, 0) for kind in kinds) for name, kinds in GROUPS.items()}
    return {**kept, "made": total - sum(kept.values()), "peak": total}


WIDE: dict[str, Any] = {
    "layers": 3, "hidden": 3072, "heads": 24, "kv_heads": 24, "ffn_hidden": 8192, "vocab": 8192,
    "micro_batch": 1, "seq_len": 8192,
}  # fmt: skip
BROAD: dict[str, Any] = {
    "layers": 4, "hidden": 1024, "kv_heads": 16, "ffn_hidden": 4096, "vocab": 50304,
    "seq_len": 2048,
}  # fmt: skip
ROUTED: dict[str, Any] = {
    "hidden": 1024, "heads": 8, "ffn_hidden": 1024, "seq_len": 2048, "experts": 16, "top_k": 4,
}  # fmt: skip
SHARDED: Sequence[dict[str, Any]] = (
    {"fsdp": 8}, {"fsdp": 8, "reshards": False}, {"fsdp": 8, "replicas": 2},
    {"fsdp": 32, "microbatches": 2}, {"fsdp": 4, "tp": 2},
)  # fmt: skip


def grid() -> Iterator[Case]:
    """Small runs of every kind."""
    yield from dense_grid()
    yield from routed_grid()


def routed_grid() -> Iterator[Case]:
    """Mixtures of experts, many small ones and few large ones."""
    few = {"layers": 4, "ffn_hidden": 4096, "experts": 8, "top_k": 2}
    for sizes, recompute in product((ROUTED, {**ROUTED, **few}), ("none", "full")):
        kind: dict[str, Any] = {**sizes, "recompute": recompute}
        for optimizer, microbatches in product(("adam", "sgd-momentum"), (1, 3)):
            yield _named(optimizer=optimizer, microbatches=microbatches, **kind)
        for sharded in SHARDED[:3]:
            yield _named(**sharded, **kind)
        for stage in (0, 3):
            pipeline = {"pp": 4, "stage": stage, "schedule": "1F1B", "microbatches": 8}
            yield _named(**{**kind, "layers": 4, "micro_batch": 1, **pipeline})


def dense_grid() -> Iterator[Case]:
    """Layers with one MLP."""
    for sizes, recompute in product(({}, WIDE, BROAD), ("none", "full")):
        kind: dict[str, Any] = {**sizes, "recompute": recompute}
        optimizers = ("adam", "sgd", "sgd-momentum")
        for optimizer, microbatches in product(optimizers, (1, 3)):
            yield _named(optimizer=optimizer, microbatches=microbatches, **kind)
        for tp in (2, 4):
            yield _named(tp=tp, **kind)
        yield _named(tied=True, **kind)
        for sharded in SHARDED:
            yield _named(**sharded, **kind)
            yield _named(optimizer="sgd-momentum", **sharded, **{**kind, "fused": False})
        yield _named(tied=True, fsdp=8, **kind)
        yield _named(fsdp=8, **{**kind, "micro_batch": 4})
        for schedule, stage in (("1F1B", 0), ("1F1B", 1), ("1F1B", 3), ("GPipe", 1), ("GPipe", 3)):
            pipeline = {"pp": 4, "stage": stage, "schedule": schedule, "microbatches": 8}
            yield _named(**{**kind, "layers": 4, "micro_batch": 1, **pipeline})


def _named(**fields: Any) -> Case:
    """A case by what it differs in from the first one."""
    case, usual = Case(**fields), asdict(Case())
    words = [f"{name}={value}" for name, value in asdict(case).items() if value != usual[name]]
    return replace(case, case=" ".join(words) or "plain")


def case_of(row: Mapping[str, str]) -> Case:
    """What a row was measured of."""
    usual = asdict(Case())
    read = {bool: lambda text: text == "true", int: int, str: str}
    return Case(**{name: read[type(value)](row[name]) for name, value in usual.items()})


def row_of(case: Case) -> dict[str, str]:
    """The row of a case, measured now."""
    fields = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in asdict(case).items()
    }
    return fields | {f"{name}_bytes": str(size) for name, size in tracked_bytes(case).items()}


def rows() -> list[dict[str, str]]:
    """What was measured."""
    return read_rows(CASES)


def main() -> None:
    """Measure every case again, those of the grid as it is now."""
    known = [case for case in map(case_of, rows()) if "=" not in case.case]
    measured = [row_of(case) for case in (*known, *grid())]
    write_rows(measured, CASES)


if __name__ == "__main__":
    main()
