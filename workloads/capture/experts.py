"""Mixture of experts over all ranks: tokens travel to their experts and back.

Routing is even: how many tokens go where must not depend on data that a capture does not have.

clustersim capture workloads/capture/experts.py --world 8 --out experts.capture
clustersim run experts.capture --profile h100-sxm-80gb
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from llama import SIZES, FeedForward, Llama, settings, this_gpu, token_loss, tokens_of
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn.parallel import DistributedDataParallel


class Experts(nn.Module):
    """One expert per rank; each token goes to ``top`` of them."""

    def __init__(self, hidden: int, ffn: int, top: int) -> None:
        super().__init__()
        self.router = nn.Linear(hidden, dist.get_world_size(), bias=False)
        self.expert, self.top = FeedForward(hidden, ffn), top

    def forward(self, x: Tensor) -> Tensor:
        """From (b, s, h) to the same."""
        rows = x.flatten(0, 1)
        weights, _ = self.router(rows).softmax(-1).topk(self.top, -1)
        sent = self._exchange(rows.repeat(self.top, 1))
        back = self._exchange(self.expert(sent)).unflatten(0, (self.top, -1))
        return (back * weights.T.unsqueeze(-1)).sum(0).view_as(x)

    def _exchange(self, rows: Tensor) -> Tensor:
        return all_to_all_single_autograd(rows, None, None, dist.group.WORLD)


def main() -> None:
    """Train for some steps."""
    args = settings(top=2)
    dist.init_process_group("nccl")
    device = this_gpu()
    sizes = SIZES[args.size]
    model = Llama(**sizes)
    for layer in model.layers:
        layer.mlp = Experts(sizes["hidden"], sizes["ffn"], args.top)
    own = [name for name, _ in model.named_parameters() if ".expert." in name]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
    parallel = DistributedDataParallel(model.to(device=device, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-4, fused=True)
    for _ in range(args.steps):
        tokens = tokens_of(args, device)
        token_loss(parallel(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
