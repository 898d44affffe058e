"""Between which ways of doing a thing do frameworks differ?

A :class:`~simulator.described.plan.stack.Stack` says which of them is its framework's.
"""

from __future__ import annotations

from typing import Literal

GradPrecision = Literal["fp32", "bf16", "fp16"]

CrossEntropy = Literal["fused", "in-place", "copied", "eager"]
"""``fused`` keeps 16-bit logits and makes their gradient beside them; ``in-place`` makes
an fp32 copy and overwrites that (Megatron's vocabulary-parallel loss); ``copied`` makes two more
beside it (``mpu/cross_entropy.py`` of its version 1); ``eager`` keeps fp32 log-probabilities and
makes fp32 gradients beside them (PyTorch's own)."""

ShardingUnits = Literal["layers", "parameters", "root", "ends"]
"""``layers``: the embedding goes with the first layer, norm and head with the last. ``root``:
embedding, norm and head are one unit, gathered first, kept from forward to backward and
reduced last, as whatever a model's layers leave to FSDP's root. ``ends``: the embedding is a
unit, and norm and head are one that is kept from forward to backward (torchtitan).
``parameters``: as ``layers``, but every parameter has collectives of its own."""

Float8Scaling = Literal["tensor", "rows", "eager"]
"""``tensor``: one scale for each operand of an 8-bit product, cast once in both layouts. ``rows``:
one for every row of the left and column of the right operand (torchao's recipe ``rowwise``), so
each use has scales and a cast of its own
(:meth:`simulator.program.layer.block.Block.linear`). ``eager``: one for each operand, weights
too, which kernels of their own find, apply and cast by in
every use, and backward keeps the 16-bit input (plain PyTorch around ``torch._scaled_mm``)."""

SelectivePolicy = Literal["core-attention", "alternate-products", "all-but-projections"]
"""What ``recompute: selective`` repeats (:mod:`simulator.program.strategies.recompute`)."""

Offloading = Literal["nothing", "optimizer", "shards", "infinity"]
"""What a framework can move to the host. ``optimizer``: its states, or a share of them, and
activations (Megatron-Core). ``shards``: parameters, gradients and states of FSDP together, and
activations. ``infinity``: whatever ZeRO-Offload and ZeRO-Infinity can (DeepSpeed)."""

GradientScaling = Literal["past-limit", "clipping", "always", "in-update"]
"""When gradients are read and written once more, to be multiplied by what clips them.
``past-limit``: in steps whose norm is above the limit, which are taken to be few (Megatron:
``clip_coeff < 1.0`` in ``clip_grads.py``; versions that keep the norm on the device multiply
always). ``clipping``: in every step of a plan that clips, by 1 below the limit (PyTorch's
``_clip_grads_with_norm_``, lest the host waits; InternEvo's ``_unscale_and_clip_grads``).
``always``: clipping or not, together with the loss scale (DeepSpeed's ``unscale_and_clip_grads``
of ``stage_1_and_2.py``, ``stage3.py`` and ``fused_optimizer.py``; its ``bf16_optimizer.py`` only
past the limit, its fp32 path where it clips). ``in-update``: while they are read for the update
(compilers)."""

UnevenLayers = Literal["middle", "last"]
"""Which stages take a layer more where layers do not divide by stages."""
