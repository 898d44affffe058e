"""Data parallelism with DistributedDataParallel, autocast and accumulated gradients.

clustersim capture workloads/capture/ddp.py --world 8 --out ddp.capture -- --microbatches 4
clustersim run ddp.capture --profile h100-sxm-80gb
"""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from llama import SIZES, Llama, settings, this_gpu, token_loss, tokens_of
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train for some steps."""
    args = settings(microbatches=2)
    dist.init_process_group("nccl")
    device = this_gpu()
    model = DistributedDataParallel(Llama(**SIZES[args.size]).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(args.steps):
        for index in range(args.microbatches):
            is_last = index == args.microbatches - 1
            with contextlib.nullcontext() if is_last else model.no_sync():
                tokens = tokens_of(args, device)
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = token_loss(model(tokens), tokens) / args.microbatches
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
