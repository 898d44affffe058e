"""What does ``torch.autocast`` hold of copies of weights that no layer saves?

It makes a 16-bit copy of an fp32 weight for its first product and caches it until it is left, after
the loss. Layers that keep everything save these copies anyway; layers that are computed again do
not, but when forward ends all of their copies are there, too. Only leaves of the graph are cached
that take gradients and are no views. So weights that FSDP1 gathers are cast at every use (its
modules read views of a flat buffer), and those of a frozen base beside adapters, too.

Ignores: pipelines, whose stages may leave it earlier, what is computed again in part, and copies of
the adapters themselves.
Source: PyTorch, ``cached_cast`` of ``aten/src/ATen/autocast_mode.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterable

from simulator.described.plan.plan import Plan
from simulator.program.layer.pieces import Layer, Role


def cached_copy_bytes(plan: Plan, repeated: Iterable[Layer]) -> tuple[float, ...]:
    """Copies of weights of all layers that are computed again, as a rank holds them [B].

    Args:
        plan: Of the job.
        repeated: What the rank runs of each of these layers; read where it is needed alone.
    """
    if plan.recompute != "full" or plan.pp > 1 or not plan.caches_cast_weights:
        return ()
    saved = (saved for layer in repeated for saved in layer.saved)
    return tuple(each.num_bytes for each in saved if each.role is Role.WEIGHT_COPY)
