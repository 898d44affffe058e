"""Pipeline parallelism with 1F1B beside data parallelism."""

from __future__ import annotations

import torch
import torch.distributed as dist
from llama import SIZES, Llama, settings, this_gpu, token_loss, tokens_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def main() -> None:
    """Train for some steps."""
    args = settings(pp=2, microbatches=8)
    dist.init_process_group("nccl")
    device = this_gpu()
    shape = args.pp, dist.get_world_size() // args.pp
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("pp", "dp"))
    stage, sizes = mesh["pp"].get_local_rank(), dict(SIZES[args.size])
    is_first, is_last = stage == 0, stage == args.pp - 1
    sizes["layers"] //= args.pp
    with device:
        model = Llama(**sizes, has_embedding=is_first, has_head=is_last)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*model.layers, model):
        fully_shard(part, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=False)
    part = PipelineStage(model, stage, args.pp, device, group=mesh["pp"].get_group())
    schedule = Schedule1F1B(part, args.microbatches, loss_fn=token_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    args.batch *= args.microbatches
    for _ in range(args.steps):
        tokens = tokens_of(args, device)
        schedule.step(*([tokens] if is_first else []), **({"target": tokens} if is_last else {}))
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
