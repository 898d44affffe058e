"""What follows from a plan, and from what its stack does, whatever the model and the schedule?

What follows from a whole job is in :mod:`simulator.described.choices`.
"""

from __future__ import annotations

from simulator.described.cluster.kernel_parameters import NARROW, AttentionKernel
from simulator.described.plan.plan_blocks import TensorGrid, tensor_grid
from simulator.described.plan.plan_fields import PlanFields
from simulator.described.plan.stack_options import (
    CrossEntropy,
    GradPrecision,
    NarrowProducts,
    gradient_format,
    has_wide_kernel,
)

_WEIGHTS_SHARDED = 3
"""ZeRO stage that shards weights, too."""


class Plan(PlanFields):
    """Parallel degrees and the options that cost time or memory."""

    @property
    def attention_kernel(self) -> AttentionKernel:
        """How core attention is computed: fused only by kernels that read the plan's numbers."""
        if self.attention is None and not self.fuses_its_precision:
            return "unfused"
        return self.attention or self.stack.attention

    @property
    def fuses_its_precision(self) -> bool:
        """Whether fused attention of the framework reads the plan's numbers."""
        return self.precision not in ("fp32", "tf32") or has_wide_kernel(self.stack.flash_kernel)

    @property
    def repeats_kv_heads(self) -> bool:
        """Whether keys and values are copied for each head of queries that looks at them."""
        asked = self.stack.repeats_kv_heads
        return self.attention_kernel == "unfused" if asked == "unfused" else asked

    @property
    def groups_experts(self) -> bool:
        """Whether the products of all experts on a rank are one kernel."""
        return self.stack.grouped_experts

    @property
    def has_wide_experts(self) -> bool:
        """Whether products of routed experts are fp32 where autocast makes all others narrow.

        So are grouped ones that it leaves as their weights are, if nothing else casts these, as
        FSDP's policy of mixed precision and DeepSpeed do.
        """
        is_as_loaded = not self.zero or self.stack.gathers_fp32_weights
        grouped = self.groups_experts and self.stack.experts_as_weights
        return grouped and is_as_loaded and self._is_under_autocast

    @property
    def reduced_gradients(self) -> GradPrecision:
        """Format that gradients are reduced in."""
        usual = gradient_format(self.precision, self.stack.grad_reduce_precision)
        return self.grad_reduce_precision or usual

    @property
    def is_widened(self) -> bool:
        """Whether all that is not quantised is fp32, and so is what layers pass on."""
        is_dequantised = self.lora is not None and self.lora.is_dequantised
        return is_dequantised and self.zero < _WEIGHTS_SHARDED and self.stack.widens_unquantised

    @property
    def autocasts(self) -> bool:
        """Whether products cast what they read, and layers pass on fp32 numbers.

        So does ``torch.autocast`` of fp32 weights that no sharding casts before their use; adapters
        stand beside weights that are 16-bit already, unless the plan says otherwise.
        """
        is_written_out = self.stack.fuses_by_hand or not self.stack.fused_elementwise
        return self._is_under_autocast and is_written_out

    @property
    def keeps_wide_norms(self) -> bool:
        """Whether norms keep fp32 numbers: under autocast, and what a compiler makes of it.

        XLA compiles models that say themselves which numbers are how wide. Source: the graphs that
        AOTAutograd and its min-cut partitioner make of GPT-2 under autocast (PyTorch 2.13).
        """
        return self._is_under_autocast and not self.stack.plans_memory

    @property
    def casts_in_kernels(self) -> bool:
        """Whether fused kernels cast what products read, and layers pass on fp32 numbers.

        Under autocast, a compiler's kernels do so. Copies of weights are kernels of their own all
        the same, as products are none of the compiler's. Source: on an H100,
        ``triton_poi_fused__to_copy`` of each weight and of its gradient (``reports/gpu``).
        """
        return self.keeps_wide_norms and not self.autocasts

    @property
    def streams_wide(self) -> bool:
        """Whether layers pass on fp32 numbers under autocast, whoever casts them."""
        return self.autocasts or self.casts_in_kernels

    @property
    def _is_under_autocast(self) -> bool:
        if self.lora is not None and self.lora.base_precision != "fp32":
            return False
        stack = self.stack
        keeps = stack.keeps_master_weights if self.master_weights is None else self.master_weights
        is_cast = keeps and not stack.keeps_half_weights
        is_half = self.precision not in ("fp32", "tf32")  # 8-bit products quantise the copies
        is_gathered_cast = self.zero >= _WEIGHTS_SHARDED and not stack.gathers_fp32_weights
        return is_half and is_cast and not is_gathered_cast

    @property
    def casts_by_zero(self) -> bool:
        """Whether the ZeRO stage may decide which numbers are cast: by autocast, or as gathered."""
        return not self.stack.keeps_half_weights

    @property
    def saves_cast_weights(self) -> bool:
        """Whether copies that products cast stay for backward and are nobody else's."""
        return self.streams_wide and (not self.zero or self.stack.gathers_fp32_weights)

    @property
    def caches_cast_weights(self) -> bool:
        """Whether autocast caches these copies: of trained leaves, no views as FSDP1 gathers."""
        return self.autocasts and not self.zero and self.lora is None

    @property
    def keeps_cast_weights(self) -> bool:
        """Whether 8-bit copies of weights stay beside 16-bit ones."""
        return self.stack.keeps_cast_weights and self.precision in ("fp8", "mxfp8")

    @property
    def narrow_products(self) -> NarrowProducts:
        """Which products with weights have the format of ``precision`` where that is narrow."""
        return self.stack.narrow_products

    @property
    def gathers_cast_experts(self) -> bool:
        """Whether weights of routed experts are gathered in the narrow format of their products."""
        is_narrow = self.precision in NARROW and self.narrow_products != "dense"
        return is_narrow and self.zero == _WEIGHTS_SHARDED and self.stack.gathers_cast_experts

    @property
    def loss_kernel(self) -> CrossEntropy:
        """How the loss is computed."""
        return self.cross_entropy or self.stack.cross_entropy

    @property
    def makes_logits_again(self) -> bool:
        """Whether backward multiplies with the head once more, instead of keeping logits."""
        return self.loss_kernel in ("cut", "tiled")

    @property
    def frozen_patterns(self) -> tuple[str, ...]:
        """Names of parameters that are not trained; empty where all are."""
        if self.frozen is not None:
            return self.frozen
        return ("*",) if self.lora or self.prefix_tokens else ()

    @property
    def takes_gradient_norm(self) -> bool:
        """Whether the global norm of the gradients is taken, to clip by or for its own sake."""
        return self.clip_gradients or (self.stack.always_takes_norm and not self._updates_plainly)

    @property
    def gradient_scalings(self) -> int:
        """How often a step reads and writes all gradients to multiply them before the update."""
        is_fp16, scales = self.precision == "fp16", self.stack.scales_gradients
        unscales = is_fp16 and self.stack.unscales_separately
        if scales == "always" and not self._updates_plainly:
            return unscales + (is_fp16 or self.zero > 0)
        return unscales + (self.clip_gradients and scales in ("always", "clipping"))

    @property
    def updates_many_tensors(self) -> bool:
        """Whether a kernel of an update takes many tensors at once."""
        return self.stack.updates_many_tensors and not self.updates_in_a_loop

    @property
    def updates_in_a_loop(self) -> bool:
        """Whether each operator of an update has a kernel for each weight."""
        return self.optimizer_kernels == "for-loop"

    @property
    def _updates_plainly(self) -> bool:
        """Whether a whole optimizer updates fp32 weights."""
        return self.zero == 0 and self.precision in ("fp32", "tf32")

    @property
    def tensor_grid(self) -> TensorGrid | None:
        """The grid of the tensor-parallel ranks; None where they are in a line."""
        return tensor_grid(self.tp_method, self.tp, self.tp_depth)

    @property
    def cuts_sequence(self) -> bool:
        """Whether tensor-parallel ranks in a line divide norms along the sequence."""
        if self.tp == 1 or self.tensor_grid is not None:
            return False
        given = self.sequence_parallel
        return self.stack.sequence_parallel if given is None else given

    @property
    def cuts_boundary(self) -> bool:
        """Whether each tensor-parallel rank holds a part of its own of a layer's input."""
        return self.cuts_sequence or self.tensor_grid is not None

    @property
    def divides_loss(self) -> bool:
        """Whether tensor-parallel ranks compute the loss of their part of the vocabulary."""
        return self.tp > 1 and self.stack.parallel_loss

    @property
    def holds_returned_logits(self) -> bool:
        """Whether the loop holds what the model returned; schedules of pipelines take it."""
        return self.stack.keeps_returned_logits and self.pp == 1

    @property
    def makes_sums_of_gradients(self) -> bool:
        """Whether the sum of two gradients of one parameter is a tensor of its own."""
        return not self.stack.sums_gradients_in_place

    @property
    def products_keep_gathered(self) -> bool:
        """Whether products hold the weights that were gathered for them until their backward."""
        return self.zero == 3 and self.stack.products_keep_gathered

    @property
    def holds_returned_key_values(self) -> bool:
        """Whether what the loop holds has keys and values of all layers in it."""
        return self.holds_returned_logits and self.stack.hands_out_key_values

    @property
    def shards_experts(self) -> bool:
        """Whether ZeRO shards routed experts with all else."""
        return self.stack.shards_experts

    @property
    def holds_router_graphs(self) -> bool:
        """Whether graphs of recomputation live on with what routers gave; not in a pipeline."""
        stack, in_one = self.stack, self.pp == 1 and self.recompute == "full"
        return in_one and stack.keeps_router_results and stack.recompute_stops_early

    @property
    def gathers_logits(self) -> bool:
        """Whether each of several tensor-parallel ranks computes the loss of all logits."""
        return self.tp > 1 and not self.stack.parallel_loss

    @property
    def expert_tp(self) -> int:
        """Tensor-parallel degree of each routed expert: ``etp``, or its default."""
        if self.etp is not None:
            return self.etp
        return 1 if self.ep >= self.tp else self.tp
