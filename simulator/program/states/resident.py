"""How many bytes of parameters, gradients and optimizer states does one rank hold?

One table of parameter tensors (:mod:`simulator.program.layer.tensors`) drives all of it.

Source: ZeRO (arXiv 1910.02054, section 3) for what is sharded at which stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from simulator.cost.kernel_time import output_bytes
from simulator.described.job import Job
from simulator.described.plan.optimizers import UPDATE_RULES, UpdateRule
from simulator.described.plan.plan_blocks import quantised_bytes
from simulator.program.grid.rank_groups import (
    data_group,
    expert_data_group,
    expert_shard_group,
    shard_group,
)
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Memory, Owner, total_bytes
from simulator.program.layer.adapters import adaptable, frozen, frozen_in_layer, held_tensors
from simulator.program.layer.layer_kinds import layer_kind
from simulator.program.layer.model_ends import (
    embedding_tensors,
    head_tensors,
    multi_token_tensors,
    repeats_embedding,
)
from simulator.program.layer.tensors import (
    ParameterGroup,
    ParameterTensor,
    TensorSplit,
    grid_shard_numel,
    tensor_shard_numel,
)
from simulator.program.states.library_workspace import matrix_workspace_bytes
from simulator.program.states.optimizer_states import further_state_bytes, trained_bytes

_PRECISION_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
_MASTER_BYTES = 4.0
_REMAINDER_BYTES = 2.0
"""Bits of an fp32 number that the bf16 number of its upper half lacks."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter of what a rank keeps, before sharding.

    Attributes:
        weights: Parameters as the layers read them; 0 where they are cast anew.
        gathered: Parameters on the wire and while they are used.
        gradients: Gradients as backward accumulates them.
        gradient_copy: A second copy in fp32 that some stacks make for the optimizer.
        master: fp32 weights beside 16-bit ones, or what those lack of them.
        moments: Optimizer states that every parameter has
            (:mod:`simulator.program.states.optimizer_states`).
        reduced: Format that gradients are reduced in.
    """

    weights: float
    gathered: float
    gradients: float
    gradient_copy: float
    master: float
    moments: float
    reduced: float

    @property
    def master_completes_weights(self) -> bool:
        """Whether 16-bit weights are the upper halves of the fp32 ones."""
        return self.master == _REMAINDER_BYTES


def state_bytes(job: Job) -> StateBytes:
    """Bytes per parameter under the job's plan and stack."""
    choices = job.choices
    moments = _rule(job).state_bytes * _state_share(job)
    element = output_bytes(job.plan.precision)
    if element == _MASTER_BYTES:
        return StateBytes(element, element, element, 0.0, 0.0, moments, element)
    if not choices.keeps_master_weights:
        held, said = trained_bytes(job), job.plan.grad_reduce_precision
        reduced = _PRECISION_BYTES[said] if said else held
        return StateBytes(held, element, held, 0.0, 0.0, moments, reduced)
    gradients = _PRECISION_BYTES[choices.kept_gradients]
    reduced = _PRECISION_BYTES[choices.reduced_gradients]
    copied = _MASTER_BYTES if gradients < _MASTER_BYTES and choices.copies_gradients else 0.0
    weights = element if choices.keeps_half_weights else 0.0
    keeps_remainders = choices.keeps_weight_remainders and weights
    master = _REMAINDER_BYTES if keeps_remainders else _MASTER_BYTES
    is_full = choices.shards_weights and job.plan.stack.gathers_fp32_weights
    gathered = _MASTER_BYTES if is_full else element
    return StateBytes(weights, gathered, gradients, copied, master, moments, reduced)


def _state_share(job: Job) -> float:
    """Size of optimizer states over that of fp32 ones: they are 16-bit where all else is."""
    plan = job.plan
    if _rule(job).has_fixed_format:
        return 1.0
    if plan.moment_precision is not None:
        return _PRECISION_BYTES[plan.moment_precision] / _MASTER_BYTES
    element = trained_bytes(job)
    is_small = element < _MASTER_BYTES and not job.choices.keeps_master_weights
    return element / _MASTER_BYTES if is_small else 1.0


def _rule(job: Job) -> UpdateRule:
    return UPDATE_RULES[job.plan.optimizer]


def output_numel(job: Job, tokens: int) -> float:
    """Outputs of a model for so many tokens of whole sequences: logits, or scores of classes."""
    if job.model.classes:
        return job.model.classes * tokens / job.batch.seq_len
    return float(tokens * padded_vocab(job))


def padded_vocab(job: Job) -> int:
    """Rows of the embedding and head after padding for tensor parallelism."""
    multiple = job.choices.vocabulary_multiple
    return -(-job.model.vocab // multiple) * multiple


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters on one rank, by the ranks that hold copies of them.

    Attributes:
        dense: Trained, copied over data- and context-parallel ranks.
        expert: Trained routed experts, copied only over the ranks that hold the same ones.
        dense_state_bytes, expert_state_bytes: Optimizer states of them beyond those that
            every parameter has [B].
        largest: Elements of the largest tensor that is trained.
        frozen_dense, frozen_expert: Not trained, in elements of the format in which weights are
            gathered: a 4-bit one is a quarter of a 16-bit one.
    """

    dense: float = 0.0
    expert: float = 0.0
    dense_state_bytes: float = 0.0
    expert_state_bytes: float = 0.0
    frozen_dense: float = 0.0
    frozen_expert: float = 0.0
    largest: float = 0.0

    @property
    def trained(self) -> float:
        """All that are trained."""
        return self.dense + self.expert

    @property
    def total(self) -> float:
        """All of them."""
        return self.trained + self.frozen_dense + self.frozen_expert

    def __add__(self, other: ParameterCount) -> ParameterCount:
        return ParameterCount(
            self.dense + other.dense,
            self.expert + other.expert,
            self.dense_state_bytes + other.dense_state_bytes,
            self.expert_state_bytes + other.expert_state_bytes,
            self.frozen_dense + other.frozen_dense,
            self.frozen_expert + other.frozen_expert,
            max(self.largest, other.largest),
        )

    def __mul__(self, times: int) -> ParameterCount:
        return ParameterCount(
            times * self.dense,
            times * self.expert,
            times * self.dense_state_bytes,
            times * self.expert_state_bytes,
            times * self.frozen_dense,
            times * self.frozen_expert,
            self.largest,
        )


def added_up(counts: Iterable[ParameterCount]) -> ParameterCount:
    """All parameters together."""
    dense = expert = dense_state = expert_state = frozen_dense = frozen_expert = largest = 0.0
    # One by one, as sums of objects would: sum() rounds otherwise from Python 3.12 on.
    for count in counts:
        dense += count.dense
        expert += count.expert
        dense_state += count.dense_state_bytes
        expert_state += count.expert_state_bytes
        frozen_dense += count.frozen_dense
        frozen_expert += count.frozen_expert
        largest = max(largest, count.largest)
    return ParameterCount(
        dense, expert, dense_state, expert_state, frozen_dense, frozen_expert, largest
    )


def slice_parameters(job: Job, run: Slice, *, tied_copy: bool = False) -> ParameterCount:
    """Parameters of a run of layers on one rank, after tensor and expert parallelism.

    Args:
        job: The job.
        run: Layers, embedding and head.
        tied_copy: Whether the last stage holds its own copy of the token embedding, see
            :attr:`Choices.copies_embedding`.
    """
    tensors = slice_tensors(job, run, tied_copy=tied_copy)
    counts = (tensor_parameters(job, tensor) * layers for tensor, layers in tensors)
    return added_up(counts)


def slice_tensors(
    job: Job, run: Slice, *, tied_copy: bool = False
) -> Iterator[tuple[ParameterTensor, int]]:
    """Tensors of a run, each with the number of layers that have it.

    Args: as :func:`slice_parameters`.
    """
    kinds = [
        (layer_kind(job.model, index), frozen_in_layer(job.model, job.plan, index))
        for index in range(run.first, run.end)
    ]
    for kind in dict.fromkeys(kinds):
        for tensor in held_tensors(job.model, job.plan, run.first + kinds.index(kind)):
            yield tensor, kinds.count(kind)
    for tensor in end_tensors(job, run, tied_copy=tied_copy):
        yield tensor, 1


def end_tensors(job: Job, run: Slice, *, tied_copy: bool = False) -> tuple[ParameterTensor, ...]:
    """Tensors of a run that belong to the embedding or the head, in order of the model.

    Args: as :func:`slice_parameters`.
    """
    model, plan, vocab = job.model, job.plan, padded_vocab(job)
    embedding = embedding_tensors(model, vocab, is_whole=repeats_embedding(model, plan))
    tensors = frozen(embedding, plan) if run.has_embedding else ()
    if not run.has_head:
        return tensors
    copy = ParameterTensor(
        "head.embedding_copy", (vocab, model.hidden), ParameterGroup.HEAD, TensorSplit.TENSOR
    )
    copies = (copy,) if tied_copy else ()
    of_head = (*head_tensors(model, vocab), *multi_token_tensors(model), *copies)
    return (*tensors, *frozen(of_head, plan))


def device_shares(job: Job) -> Mapping[Owner, float]:
    """Part of what a rank keeps from step to step that stays on its GPU, by owner.

    ZeRO 2 and 3 send gradients to the host as soon as they are reduced; otherwise they are
    added up on the GPU and leave it with the update.
    """
    offload = job.plan.offload
    states = 1.0 - offload.share if offload.optimizer else 1.0
    return {
        Owner.WEIGHTS: 0.0 if offload.parameters else 1.0,
        Owner.GRADIENTS: states if job.choices.shards_gradients else 1.0,
        Owner.MASTER_WEIGHTS: states,
        Owner.OPTIMIZER_STATES: 0.0 if _rule(job).is_paged else states,
    }


def resident_memory(job: Job, parameters: ParameterCount) -> Memory:
    """What a rank holds on its GPU from step to step for its ``parameters``, by owner.

    With ``data_parallel: data-parallel`` that is GPU 0; the others hold nothing.
    """
    per, choices = state_bytes(job), job.choices
    sharded = shard_numel(job, parameters) if choices.shards_states else parameters.trained
    weights = sharded if choices.shards_weights else parameters.trained
    gradients = sharded if choices.shards_gradients else parameters.trained
    if job.plan.optimizer_in_backward:
        gradients = parameters.largest / (shard_ways(job).dense if choices.shards_gradients else 1)
    updated, further = sharded, further_moment_bytes(job, parameters)
    if not choices.data_parallelism.keeps_states:
        updated = further = 0.0
    held = {
        Owner.WEIGHTS: weights * per.weights + frozen_bytes(job, parameters),
        Owner.GRADIENTS: 0.0 if choices.frees_gradients else gradients * per.gradients,
        Owner.MASTER_WEIGHTS: updated * per.master,
        Owner.OPTIMIZER_STATES: updated * per.moments + further,
    }
    if choices.keeps_gradient_copies:
        held[Owner.GRADIENTS] += updated * per.gradient_copy
    held = {owner: share * held[owner] for owner, share in device_shares(job).items()}
    if choices.hands_out_weights and not per.weights:
        # Gathered for the first forward and kept to the last backward.
        held[Owner.GATHERED_WEIGHTS] = weights * per.gathered
    if choices.holds_buckets and data_group(job).ranks > 1:
        # They have the format of the parameters, whatever the format of the sum; experts that no
        # other rank holds are reduced by nobody.
        has_copies = expert_data_group(job).ranks > 1
        reduced = gradients if has_copies else min(gradients, parameters.dense)
        held[Owner.COMMUNICATION] = reduced * (per.weights or per.master)
    return tuple(held.items())


def workspace_memory(job: Job) -> Memory:
    """What matrix libraries keep in the allocator."""
    kept_bytes = matrix_workspace_bytes(job.cluster.profile.device)
    kept_bytes *= job.plan.stack.matrix_workspaces
    return ((Owner.WORKSPACES, kept_bytes),) if kept_bytes else ()


def holds_bucket(job: Job) -> bool:
    """Whether gradients are copied into a buffer that is always there, to be reduced."""
    stack, choices = job.plan.stack, job.choices
    is_held = stack.holds_bucket_of_whole or choices.shards_gradients
    return stack.holds_bucket and choices.hands_out_weights and is_held


def bucket_traffic_bytes(job: Job) -> float:
    """Memory traffic per gradient of copying it into such a buffer and from there [B]."""
    return job.plan.stack.bucket_copy_bytes if job.choices.hands_out_weights else 0.0


def reduces_whole_gradients(job: Job) -> bool:
    """Whether all ranks receive the sum of all gradients, whatever part of it each keeps."""
    sums_all = job.plan.stack.all_reduces_shards and not job.choices.shards_weights
    return sums_all or not job.choices.reduces_to_shards


def loading_memory(job: Job, parameters: ParameterCount) -> Memory:
    """What a rank holds while a checkpoint is loaded into weights that are all whole at once.

    Source: PyTorch's FSDP, ``summon_full_params`` without ``rank0_only``: shards and whole weights
    in their format, before there are gradients or states.
    """
    if not (job.choices.loads_whole_weights and job.choices.shards_weights):
        return ()
    per = state_bytes(job).weights or state_bytes(job).master
    shards = shard_numel(job, parameters) * per + frozen_bytes(job, parameters)
    frozen_numel = parameters.frozen_dense + parameters.frozen_expert
    whole = parameters.trained * per + frozen_numel * _frozen_element_bytes(job)
    return ((Owner.WEIGHTS, shards), (Owner.GATHERED_WEIGHTS, whole))


def frozen_bytes(job: Job, parameters: ParameterCount) -> float:
    """What a rank keeps of weights that are not trained, wherever they are [B]."""
    dense, expert = parameters.frozen_dense, parameters.frozen_expert
    if not (dense or expert):
        return 0.0
    if job.choices.shards_weights:
        ways = shard_ways(job)
        dense, expert = dense / ways.dense, expert / ways.expert
    return (dense + expert) * _frozen_element_bytes(job)


def _frozen_element_bytes(job: Job) -> float:
    """Bytes kept of an element that is not trained, by the format in which it is gathered.

    A model that is loaded to train adapters has the format of its products, unless the plan says
    otherwise; one that is trained in part is kept as its stack keeps any.
    """
    per, lora = state_bytes(job), job.plan.lora
    if lora is None:
        return per.weights or per.master
    return _MASTER_BYTES if lora.base_precision == "fp32" else per.gathered


def new_gradient_bytes(job: Job, parameters: ParameterCount) -> float:
    """What the first backward makes for the gradients that a rank keeps [B].

    0 where they live in buffers that stay, see :func:`resident_memory`.
    """
    if not job.choices.frees_gradients:
        return 0.0
    is_sharded = job.choices.shards_gradients
    kept = shard_numel(job, parameters) if is_sharded else parameters.trained
    return kept * state_bytes(job).gradients * device_shares(job)[Owner.GRADIENTS]


def optimizer_traffic_bytes(job: Job, parameters: ParameterCount) -> float:
    """Bytes that the optimizer step of one rank reads and writes, wherever it runs.

    Every state is read and written, gradients are read (once more for their norm, and to be
    written back where they are scaled), and 16-bit weights are written, unless they are half of
    the fp32 ones. Optimizers that need more passes make them, and so do kernels after each other
    (:class:`~simulator.described.plan.optimizers.UpdateRule`).
    """
    per, rule = state_bytes(job), _rule(job)
    is_sharded = job.choices.shards_states
    updated = shard_numel(job, parameters) if is_sharded else parameters.trained
    stored = _MASTER_BYTES if per.master_completes_weights else per.master or per.weights
    states = 2 * per.moments + (1 + rule.weight_reads) * stored + rule.update_bytes
    is_eager = job.choices.update_copies or job.plan.updates_in_a_loop
    if is_eager and not job.plan.offload.optimizer:
        states += rule.eager_passes * stored
    reads = rule.gradient_reads + job.plan.takes_gradient_norm
    scaled = per.gradient_copy or per.gradients
    gradients = reads * per.gradients + 2 * per.gradient_copy
    gradients += 2 * job.plan.gradient_scalings * scaled
    weights = per.weights if per.master and not per.master_completes_weights else 0.0
    further = 2 * further_moment_bytes(job, parameters)
    return updated * (states + gradients + weights) + further


def device_update_bytes(job: Job, parameters: ParameterCount) -> float:
    """The part of :func:`optimizer_traffic_bytes` that passes the memory of the GPU."""
    if not job.choices.data_parallelism.keeps_states:
        return 0.0
    share = device_shares(job)[Owner.MASTER_WEIGHTS]
    return share * optimizer_traffic_bytes(job, parameters)


def paged_bytes(job: Job, parameters: ParameterCount) -> float:
    """Optimizer states of a rank that the driver moves in and out for an update [B].

    Those of paged optimizers that have no room beside what the rank holds anyway.

    Ignores: activations, which take some of that room before the update.
    """
    if not _rule(job).is_paged:
        return 0.0
    device = job.cluster.profile.device
    updated = shard_numel(job, parameters) if job.choices.shards_states else parameters.trained
    states = updated * state_bytes(job).moments
    held = total_bytes(resident_memory(job, parameters)) + device.context_bytes
    return min(states, max(0.0, held + states - device.memory_bytes))


def further_moment_bytes(job: Job, parameters: ParameterCount) -> float:
    """Optimizer states on one rank that belong to some tensors only, after sharding [B]."""
    dense, expert = parameters.dense_state_bytes, parameters.expert_state_bytes
    if job.choices.shards_states and (dense or expert):
        ways = shard_ways(job)
        dense, expert = dense / ways.dense, expert / ways.expert
    return (dense + expert) * _state_share(job)


class ShardWays(NamedTuple):
    """Over how many ranks states are sharded: those of dense parameters, of routed experts."""

    dense: int
    expert: int

    def numel(self, parameters: ParameterCount) -> float:
        """Parameters whose states one rank keeps."""
        return parameters.dense / self.dense + parameters.expert / self.expert


def shard_ways(job: Job) -> ShardWays:
    """Over how many ranks the job's states are sharded, where they are."""
    expert = expert_shard_group(job).ranks if job.model.experts else 1
    return ShardWays(shard_group(job).ranks, expert)


def shard_numel(job: Job, parameters: ParameterCount) -> float:
    """Parameters whose states one rank keeps where they are sharded."""
    return shard_ways(job).numel(parameters)


def tensor_parameters(job: Job, tensor: ParameterTensor) -> ParameterCount:
    """What one rank holds of a tensor, after tensor and expert parallelism."""
    plan, ranks = job.plan, job.choices.tensor_ranks
    if tensor.is_frozen:
        return _frozen_parameters(job, tensor)
    if tensor.is_routed:
        degrees = plan.expert_tp, plan.ep
        numel = float(tensor_shard_numel(tensor, *degrees))
        further = further_state_bytes(plan.optimizer, tensor, *degrees, plan.optimizer_rank)
        return ParameterCount(expert=numel, expert_state_bytes=further, largest=numel)
    if plan.tensor_grid is not None:
        return ParameterCount(float(grid_shard_numel(tensor, plan.tensor_grid)))
    numel = float(tensor_shard_numel(tensor, ranks))
    further = further_state_bytes(plan.optimizer, tensor, ranks, rank=plan.optimizer_rank)
    return ParameterCount(numel, dense_state_bytes=further, largest=numel)


def _frozen_parameters(job: Job, tensor: ParameterTensor) -> ParameterCount:
    plan = job.plan
    share = frozen_share(job, tensor)
    if tensor.is_routed:
        numel = tensor_shard_numel(tensor, plan.expert_tp, plan.ep)
        return ParameterCount(frozen_expert=share * numel)
    return ParameterCount(frozen_dense=share * tensor_shard_numel(tensor, job.choices.tensor_ranks))


def frozen_share(job: Job, tensor: ParameterTensor) -> float:
    """Size of a frozen tensor over its size in the format in which weights are gathered."""
    lora = job.plan.lora
    element_bytes = output_bytes(job.plan.precision)
    if lora is None or not lora.is_quantised or not adaptable(tensor):
        return _MASTER_BYTES / element_bytes if job.plan.is_widened else 1.0
    copies = 2 if lora.base_precision == "fp8" and _keeps_transposes(job) else 1
    return copies * quantised_bytes(lora) / element_bytes


def _keeps_transposes(job: Job) -> bool:
    """Whether 8-bit products read rows alone, so that backward has a transposed copy of weights.

    Source: Transformer Engine, ``is_non_tn_fp8_gemm_supported`` of ``pytorch/utils.py``.
    """
    return job.cluster.profile.device.architecture in ("ada", "blackwell-sm120", "hopper")
