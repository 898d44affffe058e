"""Small training steps in plain torch, as users write them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

VOCAB, WIDTH, LAYERS, SEQ = 96, 64, 2, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = (
            t.view(*x.shape[:2], 4, -1).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1)
        )
        context = scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(context.transpose(1, 2).reshape(x.shape))
        hidden = self.mlp_norm(x)
        return x + self.down(silu(self.gate(hidden)) * self.up(hidden))


class Model(nn.Module):
    def __init__(self, *, recompute: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.recompute = recompute

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(x)


def parallel_model(way: str, *, recompute: bool = False, on_host: bool = False) -> nn.Module:
    """The model on this rank; ``way`` is alone, ddp, fsdp1, fsdp1-keep, fsdp, fsdp-keep or hsdp.

    Who shards it moves it to the device if it is made on the host.
    """
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model: Any = Model(recompute=recompute)
    if not on_host:
        model = model.cuda()
    if way == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=0.05)
    if way.startswith("fsdp1"):
        half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        each_layer = ModuleWrapPolicy({Block})
        gpu = torch.cuda.current_device()
        return FullyShardedDataParallel(
            model,
            sharding_strategy=ShardingStrategy["SHARD_GRAD_OP" if "keep" in way else "FULL_SHARD"],
            auto_wrap_policy=each_layer,
            mixed_precision=half,
            device_id=gpu,
            use_orig_params=True,
        )
    if way != "alone":
        half = dist.get_world_size() // 2
        names = ("dp_replicate", "dp_shard")
        mesh = dist.init_device_mesh("cuda", (2, half), mesh_dim_names=names)
        if way != "hsdp":
            mesh = dist.init_device_mesh("cuda", (2 * half,), mesh_dim_names=("dp",))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for part in (*model.layers, model):
            fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=way != "fsdp-keep")
    return model


def training(
    way: str,
    *,
    recompute: bool = False,
    autocast: bool = False,
    on_host: bool = False,
    around: Callable[[Any, Any, Callable[[], None]], None] | None = None,
) -> Callable[[], None]:
    """A training loop of four steps.

    Args:
        way: How the model is parallel.
        recompute: Whether layers are computed again in backward.
        autocast: Whether products run in bf16.
        on_host: Whether the model is made on the host, and FSDP2 moves it.
        around: Runs each step; given the model, the optimizer and the step.
    """

    def run() -> None:
        model = parallel_model(way, recompute=recompute, on_host=on_host)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        tokens = torch.randint(0, VOCAB, (2, SEQ), device="cuda")

        def step() -> None:
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
                loss = cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())
            loss.backward()
            del loss
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(4):
            step() if around is None else around(model, optimizer, step)

    return run


def parameter_bytes(element_bytes: int = 4) -> int:
    """Of the whole model [B]."""
    return sum(p.numel() for p in Model().parameters()) * element_bytes


DEVICE: Mapping[str, Any] = {
    "name": "NVIDIA H100",
    "memory_bytes": 80 << 30,
    "sm_count": 132,
    "capability": (9, 0),
    "local_ranks": 8,
}


def pipeline(microbatches: int) -> Callable[[], None]:
    """A loop of four steps of 1F1B over all ranks."""

    def run() -> None:
        dist.init_process_group("nccl")
        device, stage = torch.device("cuda"), dist.get_rank()
        ends = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        parts = nn.Sequential(ends[0], Block()), nn.Sequential(Block(), ends[1])
        module = parts[stage].to(device)
        part = PipelineStage(module, stage, 2, device)
        schedule = Schedule1F1B(part, microbatches, loss_fn=lambda y, t: y.float().sum() + t.sum())
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
        tokens = torch.zeros(microbatches, SEQ, dtype=torch.int64, device=device)
        for _ in range(4):
            schedule.step(tokens) if stage == 0 else schedule.step(target=tokens)
            optimizer.step()
            optimizer.zero_grad()

    return run
