"""A network of timm over pictures, trained as its ``benchmark.py --bench train --amp`` does.

clustersim capture workloads/capture/pictures.py --world 1 --out resnet50.capture -- --batch 512
clustersim run resnet50.capture --profile rtx-3090-24gb
"""

from __future__ import annotations

import timm
import torch
from llama import settings, this_gpu
from timm.optim import create_optimizer_v2
from torch import nn


def main() -> None:
    """Train for some steps."""
    args, device = settings(model="resnet50", batch=256, side=224), this_gpu()
    layout = torch.channels_last
    model = timm.create_model(args.model).to(device, memory_format=layout).train()
    loss = nn.CrossEntropyLoss().to(device)
    optimizer = create_optimizer_v2(model, opt="sgd", lr=1e-4)
    shape = (args.batch, 3, args.side, args.side)
    pictures = torch.randn(shape, device=device).contiguous(memory_format=layout)
    for _ in range(args.steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(pictures)
            output = output[0] if isinstance(output, tuple) else output
            target = torch.empty(args.batch, device=device, dtype=torch.long)
            loss(output, target.random_(1000)).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
