"""Fully sharded data parallelism with FullyShardedDataParallel (FSDP1).

clustersim capture workloads/capture/fsdp1.py --world 8 --out fsdp1.capture
clustersim run fsdp1.capture --profile h100-sxm-80gb
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from llama import SIZES, Layer, Llama, settings, this_gpu, token_loss, tokens_of
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def main() -> None:
    """Train for some steps."""
    args = settings(strategy=tuple(each.lower() for each in ShardingStrategy.__members__))
    dist.init_process_group("nccl")
    device = this_gpu()
    half = torch.bfloat16
    model = FullyShardedDataParallel(
        Llama(**SIZES[args.size]),
        sharding_strategy=ShardingStrategy[args.strategy.upper()],
        auto_wrap_policy=ModuleWrapPolicy({Layer}),
        mixed_precision=MixedPrecision(param_dtype=half, reduce_dtype=torch.float32),
        device_id=device,
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(args.steps):
        tokens = tokens_of(args, device)
        token_loss(model(tokens), tokens).backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
