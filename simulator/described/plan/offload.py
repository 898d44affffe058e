"""What leaves the GPU: states, parameters and activations in host memory or on NVMe?

======================  ======================================================
ZeRO-Offload            ``{optimizer: cpu}``, with ``delayed_update: true`` or not
ZeRO-Infinity           ``{optimizer: nvme, parameters: nvme}``, or cpu for either
FSDP's CPU offload      ``{optimizer: cpu, parameters: cpu}``
Megatron-Core           ``{optimizer: cpu, share: 0.5}``, ``{activations: cpu}``
ZeRO-R, P_a+cpu         ``{activations: cpu}`` with ``recompute: full``
======================  ======================================================

Source: ZeRO-Offload, arXiv 2101.06840; ZeRO-Infinity, arXiv 2104.07857; PyTorch's
``CPUOffloadPolicy``; Megatron-Core's ``--optimizer-cpu-offload`` and ``--cpu-offloading``; ZeRO,
arXiv 1910.02054, section 6.1. What each stack runs is checked in
:mod:`simulator.described.rules.offload_rules`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simulator.described.base import Count, Flag, Spec


class Offload(Spec):
    """Where things live that are not on the GPU; by default everything is."""

    optimizer: Literal["cpu", "nvme"] | None = None
    """Optimizer states, fp32 weights, and the gradients that a rank updates with. The CPUs do
    the update, whichever of the two it is."""
    parameters: Literal["cpu", "nvme"] | None = None
    """Shards of the weights that layers read, fetched before every use."""
    activations: Literal["cpu"] | None = None
    """What layers keep for backward, copied out after forward and fetched before backward."""
    activation_layers: Count | None = None
    """How many layers, the first ones of the model, ``activations`` are copied of; by default all
    but the last (Megatron-Core's ``--cpu-offloading-num-layers``)."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of the optimizer that leaves the GPU; the rest is updated there at the same time
    (DeepSpeed's ``ratio``, Megatron-Core's ``--optimizer-offload-fraction``)."""
    overlap: Flag = True
    """Whether the CPUs update one part of the optimizer while others are copied. Without,
    they wait for all gradients, and the GPU for all weights (Megatron-Core without
    ``--overlap-cpu-optimizer-d2h-h2d``)."""
    delayed_update: Flag = False
    """Whether the CPUs update with the gradients of one step while the next one runs on the
    GPUs (ZeRO-Offload, section 5.2)."""

    @property
    def is_used(self) -> bool:
        """Whether anything leaves the GPU."""
        return bool(self.optimizer or self.parameters or self.activations)


FSDP_OFFLOAD = Offload(optimizer="cpu", parameters="cpu")
"""All that PyTorch's ``CPUOffloadPolicy`` knows."""
