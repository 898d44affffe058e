"""Fully sharded data parallelism (FSDP2): also hybrid, and with tensor parallelism.

clustersim capture workloads/capture/fsdp2.py --world 8 --out fsdp2.capture -- \
    --tp 2 --recompute selective
clustersim run fsdp2.capture --profile h100-sxm-80gb
"""

from __future__ import annotations

from functools import partial
from typing import Any

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
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

ops = torch.ops.aten
KEPT = [
    ops.mm.default,
    # Whichever torch asks first on the GPU.
    ops._scaled_dot_product_cudnn_attention.default,
    ops._scaled_dot_product_flash_attention.default,
]
KEEP_SOME = partial(create_selective_checkpoint_contexts, KEPT)
RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "full": {"use_reentrant": False},
    "reentrant": {"use_reentrant": True},
    "selective": {"use_reentrant": False, "context_fn": KEEP_SOME},
}
"""How a layer is computed again in backward."""


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
    args = settings(replicas=1, tp=1, keep=0, compile=0, recompute=tuple(RECOMPUTE))
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
    for layer in model.layers:
        if args.recompute != "none":
            layer.forward = partial(checkpoint, layer.forward, **RECOMPUTE[args.recompute])
        if args.compile:
            layer.compile()
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
