"""What do a job's plan, its stack and its schedule decide together?

A plan leaves most options out; its stack says what then happens, and its schedule what is
possible. Whoever builds, prices or judges a job asks here, so that each answer is given once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simulator.described.cluster.kernel_parameters import FlashKernel
from simulator.described.plan.data_parallelism import DATA_PARALLELISM, DataParallelism
from simulator.described.plan.plan_blocks import AllocatorSettings, WrittenSchedule
from simulator.described.plan.stack_options import (
    VOCAB_MULTIPLE,
    ExpertWaits,
    GradPrecision,
    Offloading,
    SelectivePolicy,
    ShardingUnits,
    UnevenLayers,
    flash_kernel_on,
)
from simulator.schedule import ScheduleInfo, schedule_info
from simulator.schedule.registry import implied_schedule
from simulator.schedule.written import written_schedule

if TYPE_CHECKING:
    from simulator.described.job import Job
    from simulator.described.plan.plan import Plan
    from simulator.described.plan.stack import Stack


@dataclass(frozen=True, eq=False)
class Choices:
    """The options of one job with all defaults filled in."""

    job: Job

    def __reduce__(self) -> tuple[Any, ...]:
        """Choices are made anew where a job is sent to, because schedules are functions."""
        return Choices, (self.job,)

    @cached_property
    def _plan(self) -> Plan:
        return self.job.plan

    @cached_property
    def _stack(self) -> Stack:
        return self.job.plan.stack

    # The pipeline.

    @cached_property
    def schedule(self) -> ScheduleInfo:
        """The pipeline schedule that the plan names, implies, or reads from a file.

        Raises:
            InputError: The file holds no order that can run; faults name row and column.
        """
        given = self._plan.schedule
        if isinstance(given, WrittenSchedule):
            return written_schedule("\n".join(given.rows), given.file)
        return schedule_info(given) if given else implied_schedule(self._plan.vpp)

    @property
    def overlaps_transfers(self) -> bool:
        """Whether pipeline transfers run beside computation."""
        if self._plan.overlap_p2p is not None:
            return self._plan.overlap_p2p
        # Where backwards are split, runtimes post sends and receives ahead of their use.
        overlaps = self._stack.overlap_p2p or self.schedule.splits_backward
        return overlaps and not self.schedule.waits

    @property
    def pairs_passes(self) -> bool:
        """Whether a forward waits for the input of the backward after it.

        Megatron's interleaved schedule does where it exchanges activations and gradients in
        one blocking call, and where the two passes run side by side.
        """
        overlaps = self.overlaps_transfers and not self._plan.overlap_ep
        return self.schedule.paired_order is not None and not overlaps

    @property
    def overlaps_experts(self) -> bool:
        """Whether tokens travel to their experts while another microbatch computes."""
        asked = self._plan.overlap_ep
        return self.schedule.joins_passes if asked is None else asked

    @property
    def post_validates(self) -> bool:
        """Whether stages update without waiting for each other.

        By default only where the backward is split, as in the implementation that does it.
        """
        asked, is_usual = self._plan.post_validation, self._stack.post_validation
        usual = self._plan.pp > 1 and is_usual and self.schedule.splits_backward
        return usual if asked is None else asked

    @property
    def buffers_every_microbatch(self) -> bool:
        """Whether stages have receive buffers for every microbatch of a step."""
        return self._stack.buffers_every_microbatch

    @property
    def sends_parts(self) -> bool:
        """Whether tensor-parallel ranks send a part each of a boundary activation."""
        return self._stack.scatter_p2p and not self._plan.cuts_boundary

    @property
    def uneven_layers(self) -> UnevenLayers:
        """Which stages take a layer more than others."""
        return self._stack.uneven_layers

    @property
    def copies_embedding(self) -> bool:
        """Whether the last stage holds a copy of the first one's token embedding.

        It is the output matrix where the two are tied, and an input of every
        multi-token-prediction module.
        """
        model = self.job.model
        return self._plan.pp > 1 and (model.tied_embeddings or model.multi_token_layers > 0)

    @property
    def forward_host_s(self) -> float:
        """Host time before every forward that the device waits for [s]."""
        return self._stack.forward_host_s

    @property
    def step_host_s(self) -> float:
        """Host time after every update that the device waits for [s]."""
        return self._stack.step_host_s

    @property
    def expert_waits(self) -> ExpertWaits:
        """When the host waits for the device to learn how many tokens experts get."""
        return self._stack.expert_waits

    # What data-parallel ranks shard, reduce and gather.

    @property
    def data_parallelism(self) -> DataParallelism:
        """Who adds up gradients and updates."""
        return DATA_PARALLELISM[self._plan.data_parallel]

    @property
    def shards_states(self) -> bool:
        """Whether each rank keeps the optimizer states of a part of the parameters (ZeRO 1)."""
        return self._plan.zero >= 1

    @property
    def shards_gradients(self) -> bool:
        """Whether ranks keep the gradients of their part only (ZeRO 2)."""
        return self._plan.zero >= 2

    @property
    def shards_weights(self) -> bool:
        """Whether ranks keep their part of the weights, gathered before every use (ZeRO 3)."""
        return self._plan.zero >= 3

    @property
    def hands_out_weights(self) -> bool:
        """Whether ranks keep whole weights, of which others update a part."""
        return self.shards_states and not self.shards_weights

    @property
    def most_zero(self) -> int:
        """The highest ZeRO stage that the stack runs in a plan like this."""
        return self._stack.zero_in_pipeline if self._plan.pp > 1 else self._stack.most_zero

    @property
    def shards_matrices(self) -> bool:
        """Whether a rank's part is rows of matrices, and not a part of a flat buffer."""
        return self._stack.shards_matrices

    @property
    def updates_whole_parameters(self) -> bool:
        """Whether a rank's part are whole parameters: all ranks get all gradients."""
        return self._plan.zero == 1 and self._stack.shards_whole_parameters

    @property
    def reduces_to_shards(self) -> bool:
        """Whether a rank receives the sum of its part of the gradients, and not all."""
        return self.shards_states and not self.updates_whole_parameters

    @property
    def accumulates_gradients(self) -> bool:
        """Whether gradients stay on their rank from one microbatch to the next."""
        whole = self._adds_up or not self.shards_gradients
        return whole and self.data_parallelism.keeps_gradients

    @property
    def keeps_gradients_of_a_turn(self) -> bool:
        """Whether gradients are whole while backwards of one virtual stage follow one another."""
        return self.shards_gradients and not (self.shards_weights or self._stack.sums_unsharded)

    @property
    def reduces_every_backward(self) -> bool:
        """Whether every backward reduces its gradients."""
        return not self._plan.no_sync or (self.shards_weights and not self._adds_up)

    @property
    def _adds_up(self) -> bool:
        return self.reduces_stages_once or self._stack.sums_unsharded

    @property
    def reduces_stages_once(self) -> bool:
        """Whether pipeline stages with sharded weights add up whole gradients over a step.

        PyTorch's pipelines do (``backward_maybe_with_nosync`` and ``perform_reduce_grad`` of
        ``distributed/pipelining/stage.py``): a stage is reduced after its last backward, and what a
        backward gathers stays until then.
        """
        return self.shards_weights and self.buffers_every_microbatch and self._plan.pp > 1

    @property
    def broadcasts_flat(self) -> bool:
        """Whether a rank that updates whole parameters sends all of them at once."""
        return self._stack.flat_broadcasts

    @property
    def frees_gradients(self) -> bool:
        """Whether the first backward makes gradients, which are freed after the step."""
        return self._stack.frees_gradients and not self._plan.optimizer_in_backward

    @property
    def copies_buckets(self) -> bool:
        """Whether gradients are copied into buckets beside them, and back when reduced."""
        is_whole = self.data_parallelism.copies_buckets and not self.shards_states
        return is_whole and self._stack.buckets_gradients

    @property
    def holds_buckets(self) -> bool:
        """Whether buckets as large as all gradients of a rank lie beside them.

        Sharded optimizer states do not change what reduces gradients (PyTorch's
        ``ZeroRedundancyOptimizer`` works under DDP).
        """
        is_whole = self.data_parallelism.copies_buckets and not self.shards_gradients
        return is_whole and self._stack.buckets_gradients

    @property
    def flattens_gradients(self) -> bool:
        """Whether all gradients of a rank are reduced in one flat copy of them."""
        is_whole = self.data_parallelism.copies_buckets and not self.shards_states
        return is_whole and self._stack.flattens_gradients

    @property
    def frees_copied_gradients(self) -> bool:
        """Whether gradients that are sharded are free once they are in the reduced buffer."""
        return self.shards_gradients and self._stack.frees_copied_gradients

    @property
    def overlaps_reduction(self) -> bool:
        """Whether gradients are reduced beside the last backward."""
        asked, at_once = self._plan.overlap_grad_reduce, self._stack.overlap_shard_reduce
        usual = self._stack.overlap_grad_reduce or (at_once and self.shards_weights)
        return usual and not self._exposes_experts if asked is None else asked

    @property
    def overlaps_gather(self) -> bool:
        """Whether sharded parameters are gathered beside forward."""
        asked, ahead = self._plan.overlap_param_gather, self._stack.prefetches_weights
        usual = self._stack.overlap_param_gather or (ahead and self.shards_weights)
        return usual and not self._exposes_experts if asked is None else asked

    @property
    def _exposes_experts(self) -> bool:
        experts, family = self.job.model.experts, self.job.cluster.profile.device.architecture
        is_exposed = experts is not None and experts.capacity_factor is None
        return is_exposed and self.shards_weights and family in self._stack.exposes_experts_on

    @property
    def sums_partial_gradients_once(self) -> bool:
        """Whether tensor-parallel ranks add up gradients of norms once, after backward."""
        return self._stack.coalesced_norm_gradients

    @property
    def sharding_units(self) -> ShardingUnits:
        """What is gathered and reduced at a time where weights are sharded."""
        return self._stack.sharding_units

    @property
    def pads_shards(self) -> bool:
        """Whether the rows of a sharded parameter are padded to a multiple of the ranks."""
        return self._stack.pads_shards

    @property
    def fuses_projections(self) -> bool:
        """Whether projections of one input are one product, and one parameter."""
        return self._stack.fused_projections

    @property
    def lists_shards(self) -> bool:
        """Whether collectives take a list of one tensor per rank."""
        return self._stack.lists_of_shards

    @property
    def small_numel(self) -> float:
        """Elements below which a parameter is whole while the model runs."""
        return self._stack.whole_below_numel

    @property
    def reuse_numel(self) -> float | None:
        """Elements between two uses of a weight for which it is gathered twice; None: never."""
        return self._stack.reuse_numel

    @property
    def live_numel(self) -> float | None:
        """Elements in use at which no weight is gathered ahead; None: one always is."""
        return self._stack.live_numel

    @property
    def bucket_bytes(self) -> float:
        """Size at which a bucket of gradients is full [B]."""
        return max(self._stack.bucket_bytes, self._stack.bucket_per_rank_bytes * self.job.dp)

    @property
    def least_bucket_bytes(self) -> float:
        """The same with few ranks [B]."""
        return self._stack.bucket_bytes

    @property
    def first_bucket_bytes(self) -> float:
        """Size of the bucket that is reduced first [B]; 0 is as large as the others."""
        return self._stack.first_bucket_bytes

    # What ranks keep of parameters, and in which format.

    @property
    def keeps_half_weights(self) -> bool:
        """Whether 16-bit weights live beside fp32 ones; else each use casts them anew."""
        return self._stack.keeps_half_weights

    @property
    def keeps_master_weights(self) -> bool:
        """Whether 16-bit training keeps fp32 weights and optimizer states."""
        asked = self._plan.master_weights
        return self._stack.keeps_master_weights if asked is None else asked

    @property
    def keeps_weight_remainders(self) -> bool:
        """Whether of fp32 weights only what bf16 ones lack is kept."""
        aware = self._stack.precision_aware and self._plan.moment_precision == "bf16"
        return (self._stack.keeps_weight_remainders or aware) and self._plan.precision == "bf16"

    @property
    def widens_moments(self) -> bool:
        """Whether an update makes fp32 copies of moments that are kept in 16 bits."""
        return self._stack.widens_moments and self._plan.moment_precision == "bf16"

    @property
    def copies_gradients(self) -> bool:
        """Whether 16-bit gradients get an fp32 copy for the optimizer."""
        return self._stack.copies_gradients

    @property
    def keeps_gradient_copies(self) -> bool:
        """Whether that copy stays from one step to the next."""
        return self._stack.keeps_gradient_copies

    @property
    def kept_gradients(self) -> GradPrecision:
        """Format that 16-bit training accumulates gradients in."""
        asked, stack = self._plan.grad_reduce_precision, self._stack
        return asked if asked and stack.reduces_in_place else stack.main_grad_precision

    @property
    def reduced_gradients(self) -> GradPrecision:
        """Format that gradients are reduced in."""
        return self._plan.reduced_gradients

    @property
    def holds_tied_gradients(self) -> bool:
        """Whether a tied head's gradient waits for that of the embedding on the same rank."""
        is_tied = self.job.model.tied_embeddings and self._stack.holds_tied_gradients
        return is_tied and self._plan.pp == 1

    @property
    def keeps_tied_embedding(self) -> bool:
        """Whether an embedding that is the output matrix, too, is whole throughout."""
        return self.job.model.tied_embeddings and self._stack.keeps_tied_embedding

    @property
    def keeps_placeholder_gradients(self) -> bool:
        """Whether tensors stay that stand in for gradients which products added up already."""
        return self.fuses_accumulation and self._stack.keeps_placeholder_gradients

    @property
    def fuses_accumulation(self) -> bool:
        """Whether a weight gradient is added to its accumulator by the product itself."""
        return self._stack.fused_accumulation

    @property
    def vocabulary_multiple(self) -> int:
        """What the rows of embedding and head are padded to a multiple of."""
        return self._plan.tp * (VOCAB_MULTIPLE if self._stack.pads_vocab else 1)

    @property
    def updates_flat(self) -> bool:
        """Whether what a rank updates is one tensor; what FSDP shards is not."""
        return self._stack.flat_states and not self.shards_weights

    @property
    def casts_flat_gradients(self) -> bool:
        """Whether an fp32 copy is made of a flat one of the gradients that a rank updates with."""
        is_small = self.kept_gradients != "fp32" and self._plan.precision != "fp32"
        return self._stack.casts_flat_gradients and self.shards_states and is_small

    @property
    def copies_for_norm(self) -> bool:
        """Whether the gradient norm is taken of fp32 copies of the gradients."""
        return self._stack.norm_copies and self._plan.clip_gradients

    @property
    def update_copies(self) -> int:
        """Tensors as large as the weights that an update makes on the way."""
        asked, usual = self._plan.optimizer_kernels, self._stack.update_copies
        return {"fused": 0, "for-loop": 0, "foreach": max(1, usual)}.get(asked or "", usual)

    @property
    def offloads(self) -> Offloading:
        """What may live in host memory or on NVMe."""
        return self._stack.offloads

    @property
    def host_update_share(self) -> float:
        """What training reaches on the host's processors of the rate of the optimizer alone."""
        return self._stack.host_update_share

    @property
    def loads_whole_weights(self) -> bool:
        """Whether every rank gathers all weights to load a checkpoint into them."""
        return self._stack.loads_whole_weights

    @property
    def loads_all_kernels(self) -> bool:
        """Whether all kernels are loaded as training starts."""
        return self._stack.loads_all_kernels

    @property
    def allocator(self) -> AllocatorSettings:
        """How the caching allocator is set."""
        stack, most = self._stack, math.inf
        limits = stack.max_split_bytes or most, stack.garbage_collection_threshold or most
        return AllocatorSettings(stack.expandable_segments, *limits, stack.plans_memory)

    @property
    def own_streams(self) -> tuple[bool, bool]:
        """Whether gathered weights, and shards of gradients, are allocated on streams of theirs."""
        return self._stack.gathers_on_own_stream, self._stack.reduces_on_own_stream

    @property
    def gathers_into_buffers(self) -> bool:
        """Whether weights are copied out of buffers of the stream that gathers them."""
        return self._stack.reduces_on_own_stream and self._stack.gather_copy_bytes > 0

    @property
    def flash_kernel(self) -> FlashKernel:
        """The fused attention kernel."""
        family, stack = self.job.cluster.profile.device.architecture, self._stack
        narrow = self.job.model.has_narrow_values
        wide = self._plan.precision in ("fp32", "tf32")
        kernel = flash_kernel_on(family, stack.flash_kernel, narrow=narrow, wide=wide)
        return "flash-2" if self._plan.deterministic and kernel == "best" else kernel

    @property
    def selective_policy(self) -> SelectivePolicy:
        """What selective recomputation repeats."""
        return self._stack.selective_policy

    @property
    def keeps_recomputed_inputs(self) -> bool:
        """Whether inputs of recomputed layers, and their gradients, stay until backward ends."""
        stack = self._stack
        is_frozen = self._plan.lora is not None and self.shards_weights
        return is_frozen and stack.frozen_units_keep_inputs and not stack.recompute_stops_early

    # What tensor-parallel ranks do.

    @property
    def ranks_of_a_copy(self) -> int:
        """Ranks that hold one copy of the model together."""
        return self._plan.tp * self._plan.pp * self._plan.cp

    @property
    def tensor_ranks(self) -> int:
        """Ranks that share the work of a layer."""
        return self._plan.tp

    @property
    def overlaps_tensor_collectives(self) -> bool:
        """Whether tensor-parallel collectives are pipelined with their matrix products."""
        grid, asked = self._plan.tensor_grid, self._plan.overlap_tp
        return (grid is not None and grid.method != "3d") if asked is None else asked
