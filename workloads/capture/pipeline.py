"""Pipeline parallelism with schedules of torch, beside data parallelism.

clustersim capture workloads/capture/pipeline.py --world 8 --out pipeline.capture -- \
    --schedule ZBVZeroBubble
clustersim run pipeline.capture --profile h100-sxm-80gb
"""

from __future__ import annotations

from argparse import Namespace

import torch
import torch.distributed as dist
from llama import SIZES, Llama, settings, this_gpu, token_loss, tokens_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

SCHEDULES = ("1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")


def stages_of(args: Namespace, own: int) -> list[int]:
    """Stages of the pipeline rank ``own``; schedules of one stage per rank are not interleaved."""
    if args.schedule in SCHEDULES[:2]:
        return [own]
    return [own, 2 * args.pp - 1 - own if args.schedule == "ZBVZeroBubble" else own + args.pp]


def main() -> None:
    """Train for some steps."""
    args = settings(pp=2, microbatches=8, schedule=SCHEDULES)
    dist.init_process_group("nccl")
    device = this_gpu()
    shape = args.pp, dist.get_world_size() // args.pp
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("pp", "dp"))
    own = stages_of(args, mesh["pp"].get_local_rank())
    last = args.pp * len(own) - 1
    sizes = {**SIZES[args.size], "layers": SIZES[args.size]["layers"] // (last + 1)}
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    models = nn.ModuleList()
    for stage in own:
        with device:
            model = Llama(**sizes, has_embedding=stage == 0, has_head=stage == last)
        for part in (*model.layers, model):
            fully_shard(part, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=False)
        models.append(model)
    group = mesh["pp"].get_group()
    parts = [
        PipelineStage(model, stage, last + 1, device, group=group)
        for model, stage in zip(models, own, strict=True)
    ]
    schedule = get_schedule_class(args.schedule)(
        parts if len(own) > 1 else parts[0], args.microbatches, loss_fn=token_loss
    )
    optimizer = torch.optim.AdamW(models.parameters(), lr=1e-4, fused=True)
    args.batch *= args.microbatches
    for _ in range(args.steps):
        tokens = tokens_of(args, device)
        target = {"target": tokens} if last in own else {}
        schedule.step(*([tokens] if 0 in own else []), **target)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
