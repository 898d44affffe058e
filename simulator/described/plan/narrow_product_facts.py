"""What does each training framework do about products of 8 and of 4 bits?

Which products are narrow, who casts what they read, how often, and in which pass.
"""

from __future__ import annotations

from simulator.described.base import Flag, Spec
from simulator.described.plan.stack_options import Float8Scaling, MaximaFinders, NarrowProducts


class NarrowProductFacts(Spec):
    """Facts of a stack that only count where ``plan.precision`` is narrower than 16 bits."""

    fused_casts: Flag = True
    """Norms and activations write 8-bit outputs themselves, and keep their own maxima."""
    fused_activation_casts: Flag = True
    """With ``fused_casts``, activations do so, too; else they write 16 bits (Megatron-Core)."""
    float8_scaling: Float8Scaling = "delayed"
    """What shares a scale in operands of 8-bit products."""
    finds_maxima: MaximaFinders = "none"
    """With ``float8_scaling: tensor``, which kernels spare the first reading of an operand."""
    narrow_products: NarrowProducts = "all"
    """Which products with weights of layers are 8- or 4-bit where ``plan.precision`` is."""
    wide_weight_gradients: Flag = False
    """Gradients of weights are 16-bit products (torchao's recipe ``rowwise_with_gw_hp``)."""
    casts_layouts_apart: Flag = False
    """Each layout of a weight has a cast of its own, and each of any operand in mxfp8 (torchao);
    else one kernel writes both."""
    casts_weights_each_pass: Flag = False
    """Weights are cast in every pass of every microbatch; else once a step, which is left out
    (Megatron-Core, which tells Transformer Engine what the first microbatch is)."""
    gathers_casted: Flag = False
    """With sequence parallelism, inputs and output gradients of 8-bit products are cast before
    tensor-parallel ranks gather them, so half as much travels (Transformer Engine's quantised
    ``gather_along_first_dim``; torchtitan's ``docs/float8.md``)."""
    narrows_activation_inputs: Flag = False
    """Activations of MLPs keep their inputs in 8 bits for backward, which casts them back
    (Megatron-Core's ``activation_func_fp8_input_store``)."""
    gathers_cast_experts: Flag = False
    """Under ZeRO 3, weights of routed experts are cast in their shards and so gathered (MaxText's
    ``megablox/ops.py`` with ``use_tokamax_gmm``, ``shard_exp_on_fsdp`` and a fixed range of
    weights); what they take meanwhile counts as 16 bits."""
