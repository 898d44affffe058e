"""Fully sharded data parallelism (FSDP2): also hybrid, and with tensor parallelism."""

from __future__ import annotations

import torch
import torch.distributed as dist
from llama import SIZES, Llama, settings, this_gpu, token_loss, tokens_of
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint


def cut(model: Llama, mesh: DeviceMesh) -> None:
    """Tensor parallelism with sequence parallelism, as torchtitan cuts a Llama."""
    gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    whole, along = Replicate(), Shard(1)
    ends = {
        "embedding": RowwiseParallel(input_layouts=whole, output_layouts=along),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=along, output_layouts=whole),
    }
    parallelize_module(model, mesh, ends)
    plan = {
        **dict.fromkeys(("attention_norm", "mlp_norm"), SequenceParallel()),
        **dict.fromkeys(("attention", "mlp"), gathered),
        **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
        **{f"mlp.{name}": ColwiseParallel() for name in ("gate", "up")},
        **{n: RowwiseParallel(output_layouts=along) for n in ("attention.wo", "mlp.down")},
    }
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)


def main() -> None:
    """Train for some steps."""
    args = settings(replicas=1, tp=1, recompute=0, keep=0)
    dist.init_process_group("nccl")
    device = this_gpu()
    names = ("dp_replicate", "dp_shard", "tp")
    shards = dist.get_world_size() // args.replicas // args.tp
    mesh = init_device_mesh("cuda", (args.replicas, shards, args.tp), mesh_dim_names=names)
    with torch.device("meta"):
        model = Llama(**SIZES[args.size])
    if args.tp > 1:
        cut(model, mesh["tp"])
    data = mesh[names[:2]] if args.replicas > 1 else mesh["dp_shard"]
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*model.layers, model):
        fully_shard(part, mesh=data, mp_policy=policy, reshard_after_forward=not args.keep)
    if args.recompute:
        for layer in model.layers:
            forward = layer.forward
            layer.forward = lambda x, run=forward: checkpoint(run, x, use_reentrant=False)
    model.to_empty(device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(args.steps):
        tokens = tokens_of(args, device)
        token_loss(model(tokens), tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
