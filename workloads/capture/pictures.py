"""A network of timm over pictures, trained as its ``benchmark.py --bench train --amp`` does.

clustersim capture workloads/capture/pictures.py --world 1 --device rtx-3090-24gb \\
    --out resnet50.capture -- --model resnet50 --batch 512 --side 224
"""

from __future__ import annotations

import argparse

import timm
import torch
from llama import this_gpu
from timm.optim import create_optimizer_v2
from torch import nn


def arguments() -> argparse.Namespace:
    """What to train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet50", help="a name that timm knows")
    parser.add_argument("--batch", type=int, default=256, help="pictures of a step")
    parser.add_argument("--side", type=int, default=224, help="pixels along a side")
    parser.add_argument("--channels-last", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    """Train for some steps."""
    args, device = arguments(), this_gpu()
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
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
