"""What does one layer, or one end of the model, cost one rank in time and memory?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise

from simulator.cost.collectives import CollectiveKind, Group
from simulator.described.job import Job
from simulator.described.plan.plan_fields import Recompute
from simulator.program.grid.expert_tokens import ExpertShare
from simulator.program.grid.rank_groups import (
    context_group,
    context_lines,
    expert_group,
    expert_tensor_group,
    grid_groups,
    tensor_group,
)
from simulator.program.grid.stage_layers import bf16_layers, recomputed_layers
from simulator.program.ir import Memory, Owner
from simulator.program.layer.adapters import (
    adapters,
    frozen,
    frozen_in_layer,
    held_tensors,
    trains_in_layer,
)
from simulator.program.layer.block import Shape, microbatch_shape
from simulator.program.layer.layer_kinds import layer_kinds, model_layer
from simulator.program.layer.layer_part import LayerKind
from simulator.program.layer.model_ends import (
    embedding_layer,
    embedding_tensors,
    head_layer,
    head_tensors,
    join_layer,
    loss_layer,
    multi_token_tensors,
)
from simulator.program.layer.pieces import Axis, Exchange, Layer
from simulator.program.layer.tensors import ParameterTensor
from simulator.program.price.expert_waits import expert_waits
from simulator.program.price.hooked_weights import hooks_s, unit_hooks_s
from simulator.program.price.host_pace import captured_pieces, without
from simulator.program.price.host_work import mixed_host_work, python_s, written_share
from simulator.program.price.layer_time import (
    Hiding,
    LayerTime,
    PassTime,
    layer_time,
    whole_flop,
    with_input_gathered,
)
from simulator.program.price.piece_time import PieceTimer
from simulator.program.price.unit_cost import End, LayerUnit, Unit, UnitCost, UnitTimes
from simulator.program.states.cached_copies import cached_copy_bytes
from simulator.program.states.placeholder_gradients import head_placeholder
from simulator.program.states.resident import padded_vocab, state_bytes
from simulator.program.strategies.backward_memory import Backward, gradient_sizes
from simulator.program.strategies.divided_layer import divided
from simulator.program.strategies.frozen_weights import with_frozen_weights
from simulator.program.strategies.grid_parallel import GRID_LINES
from simulator.program.strategies.recompute import Recomputation, kept_in_parts, recomputation
from simulator.program.strategies.split_backward import (
    Halves,
    freed_half_way,
    pending_bytes,
    whole_until_the_end,
)


@dataclass
class UnitCosts:
    """Costs of the units of one job; every distinct one is computed once.

    Attributes:
        job: The job.
        share: What the routed experts of the rank receive; None is as much as all others.
    """

    job: Job
    share: ExpertShare | None = None
    _costs: dict[Unit, UnitCost] = field(default_factory=dict)

    @cached_property
    def layers(self) -> tuple[LayerUnit, ...]:
        """The unit of every layer of the model."""
        repeated, model, plan = recomputed_layers(self.job), self.job.model, self.job.plan
        wide, units = bf16_layers(self.job), []
        has_gradient = self._trains_embedding or plan.lora is not None
        for index, kind in enumerate(layer_kinds(model)):
            has_backward = has_gradient or trains_in_layer(model, plan, index)
            frozen = frozen_in_layer(model, plan, index)
            starts = has_backward and not has_gradient
            unit = LayerUnit(kind, index in repeated, frozen, has_backward, starts, index in wide)
            units.append(unit)
            has_gradient = has_backward
        return tuple(units)

    def of_kind(self, kind: LayerKind) -> LayerUnit:
        """The unit of a layer of that kind, in the plan's own format if there is one."""
        alike = (unit for unit in self.layers if unit.kind == kind)
        return min(alike, key=lambda unit: unit.in_bf16)

    @cached_property
    def _trains_embedding(self) -> bool:
        return not all(tensor.is_frozen for tensor in self._end_tensors(End.EMBEDDING))

    def _end_tensors(self, end: End) -> tuple[ParameterTensor, ...]:
        """Parameters that an end of the model reads; a tied head those of the embedding."""
        embedding = embedding_tensors(self.job.model)
        if end is End.EMBEDDING:
            return frozen(embedding, self.job.plan)
        others = (*head_tensors(self.job.model), *multi_token_tensors(self.job.model))
        return frozen((*embedding, *others), self.job.plan)

    @cached_property
    def shape(self) -> Shape:
        """Sizes of one microbatch on one rank."""
        batch, plan = self.job.batch, self.job.plan
        seq_len = batch.seq_len // plan.cp
        return microbatch_shape(plan, batch.micro_batch, seq_len, batch.document_len)

    @cached_property
    def timer(self) -> PieceTimer:
        """What each piece takes on the job's cluster."""
        plan, choices = self.job.plan, self.job.choices
        element_bytes, gradient_bytes = self.shape.element_bytes, state_bytes(self.job).gradients
        # Gradients that leave after every microbatch are not added up in place.
        adds_up = self.job.microbatches > 1 and choices.accumulates_gradients
        # On a grid a weight's gradient is added up between ranks first.
        fused = choices.fuses_accumulation and plan.tensor_grid is None
        return PieceTimer(
            self.job.cluster.profile,
            plan.precision,
            _axis_groups(self.job),
            choices.flash_kernel,
            accumulator_bytes=gradient_bytes if adds_up and fused else 0.0,
            accumulation_bytes=element_bytes + 2 * gradient_bytes if adds_up and not fused else 0.0,
            accumulates_in_python=adds_up and not fused and plan.stack.accumulates_in_python,
            expert_exchange=plan.stack.expert_exchange,
            grouped_by_torch=plan.stack.grouped_by_torch and plan.stack.grouped_experts,
            wide_weight_gradients=plan.stack.wide_weight_gradients,
        )

    @cached_property
    def _hiding(self) -> Hiding:
        choices, stack = self.job.choices, self.job.plan.stack
        ranks = choices.tensor_ranks
        chunks = ranks if choices.overlaps_tensor_collectives and ranks > 1 else 0
        return Hiding(stack.overlap_tp_backward, chunks, stack.splits_gathered_products)

    @cached_property
    def _wide(self) -> UnitCosts:
        """Costs of the same job with all its products in bf16."""
        wide = {"precision": "bf16", "first_bf16_layers": 0, "last_bf16_layers": 0}
        plan = self.job.plan.model_copy(update=wide)
        return UnitCosts(self.job.model_copy(update={"plan": plan}), self.share)

    def of(self, unit: Unit) -> UnitCost:
        """The cost of a unit."""
        if isinstance(unit, LayerUnit) and unit.in_bf16:
            return self._wide.of(unit._replace(in_bf16=False))
        if unit not in self._costs:
            self._costs[unit] = self._cost(unit)
        return self._costs[unit]

    def divided(self, unit: Unit) -> Layer:
        """What one rank runs of a unit."""
        if isinstance(unit, LayerUnit) and unit.in_bf16:
            return self._wide.divided(unit._replace(in_bf16=False))
        layer = self._whole_layer(unit)
        if self.job.plan.frozen_patterns:
            layer = self._with_frozen_weights(layer, unit)
        return divided(layer, self.job, self.shape, self.share)

    def _with_frozen_weights(self, layer: Layer, unit: Unit) -> Layer:
        model, plan = self.job.model, self.job.plan
        if isinstance(unit, End):
            starts = unit is End.HEAD and not self.layers[-1].has_backward
            tensors = self._end_tensors(unit)
            return with_frozen_weights(layer, tensors, (), self.job, starts_gradients=starts)
        alike = [each._replace(is_repeated=unit.is_repeated) for each in self.layers]
        index = alike.index(unit)
        tensors, added = held_tensors(model, plan, index), adapters(model, plan, index)
        starts = unit.starts_gradients
        return with_frozen_weights(layer, tensors, added, self.job, starts_gradients=starts)

    def _whole_layer(self, unit: Unit) -> Layer:
        model, plan, shape = self.job.model, self.job.plan, self.shape
        match unit:
            case End.EMBEDDING:
                return embedding_layer(model, plan, shape, padded_vocab(self.job))
            case End.HEAD:
                return head_layer(model, plan, shape, padded_vocab(self.job))
            case End.LOSS:
                return loss_layer(model, plan, shape, padded_vocab(self.job))
            case End.JOIN:
                return join_layer(model, plan, shape)
            case LayerUnit(kind):
                return model_layer(model, kind, plan, shape)

    def _cost(self, unit: Unit) -> UnitCost:
        plan, layer = self.job.plan, self.divided(unit)
        if not self._has_backward(unit):
            alone = _alone(layer, self.shape.element_bytes)
            return _forward_only(layer, alone, self.timer, self._hiding, self._host_work(unit))
        is_repeated = isinstance(unit, LayerUnit) and unit.is_repeated
        recompute = plan.recompute if is_repeated else "none"
        outcome = self._recomputation(layer, recompute)
        if unit is End.HEAD and plan.makes_logits_again:
            outcome = replace(outcome, repeated={"head": 1.0})
        gathers_input = plan.partition_activations and is_repeated
        times = partial(self._times, unit, layer, outcome.repeated, gathers_input=gathers_input)
        if gathers_input:
            outcome = kept_in_parts(outcome, layer, self.job.choices.tensor_ranks)
        owner = Owner.LOGITS if unit in (End.HEAD, End.LOSS) else Owner.ACTIVATIONS
        saved = _blocks(owner, outcome.kept_bytes)
        passing_bytes = outcome.passing_bytes + layer.passing_bytes + layer.buffer_bytes
        if unit is End.LOSS:
            repeated = (self.divided(each) for each in self.layers if each.is_repeated)
            passing_bytes += cached_copy_bytes(plan, repeated)
        # Without reentrant autograd no function of its own computes a layer again.
        calls_backward = recompute == "full" and not plan.stack.recompute_stops_early
        backward = Backward(
            layer,
            outcome,
            owner,
            self.shape.element_bytes,
            weight_bytes=self._added_bytes,
            calls_backward=calls_backward and is_repeated,
            is_end=isinstance(unit, End) and unit is not End.JOIN,
            more=head_placeholder(self.job) if unit is End.HEAD else (),
        )
        return UnitCost(
            saved=saved,
            passing=_blocks(Owner.TEMPORARIES, passing_bytes),
            alone=_alone(layer, self.shape.element_bytes),
            backward=backward,
            halves=self._halves(layer, outcome, owner, saved),
            _timed=times,
            freed=_blocks(Owner.TEMPORARIES, layer.freed_bytes),
            reduced=_blocks(Owner.TEMPORARIES, self._reduced_bytes(unit, layer)),
            turns=_turns(layer, outcome.kept_bytes, self.shape.element_bytes),
        )

    def _reduced_bytes(self, unit: Unit, layer: Layer) -> tuple[float, ...]:
        """Sums of forward that are free once their scattered parts, or they, are read [B].

        What the embedding adds up in place is the first layer's input.
        Source: pytorch/pytorch, pull requests 76861 and 148590, and issue 124260.
        """
        stack, kinds = self.job.plan.stack, set[CollectiveKind]()
        if stack.records_streams:
            kinds.add(CollectiveKind.REDUCE_SCATTER)
        if (stack.records_streams or stack.records_sums) and not isinstance(unit, End):
            kinds.add(CollectiveKind.ALL_REDUCE)
        return tuple(
            piece.num_bytes
            for piece in layer.pieces
            if isinstance(piece, Exchange) and piece.axis is Axis.TENSOR and piece.forward in kinds
        )

    def _times(
        self, unit: Unit, layer: Layer, repeated: Mapping[str, float], *, gathers_input: bool
    ) -> UnitTimes:
        """Times of a unit with backward, which repeats such shares of its pieces."""
        time = layer_time(layer, self.timer, self._hiding, repeated)
        if gathers_input:
            time = with_input_gathered(time, layer, self.timer)
        captured, launched = captured_pieces(self.job, layer, is_end=isinstance(unit, End)), time
        if captured:
            launched = layer_time(without(layer, captured), self.timer, self._hiding, repeated)
        # A graph of the router leaves the modules around it to Python (assumption: and its own).
        modules = time if self.job.plan.cuda_graphs == "router" else launched
        return UnitTimes(
            time,
            launched,
            graphs=1 if captured and self.job.plan.cuda_graphs != "full" else 0,
            waits=expert_waits(self.job, layer, captured, self.timer, self._hiding),
            repeats_waits="routing" in repeated,
            hooks_s=hooks_s(self.job, layer, None if isinstance(unit, End) else unit.kind),
            unit_hooks_s=unit_hooks_s(self.job) if isinstance(unit, LayerUnit) else 0.0,
            host_work=self._host_work(unit),
            python_s=python_s(self._beside_launches_s(unit), time, modules),
        )

    def _host_work(self, unit: Unit) -> float:
        """Host time per launch of a unit, over that of a layer with experts."""
        stack = self.job.plan.stack
        if isinstance(unit, End) or unit.kind.mlp != "dense" or stack.dense_host_work == 1.0:
            return 1.0
        written = written_share(self.job, unit.kind, self._whole_layer(unit), self.shape)
        return mixed_host_work(stack.dense_host_work, stack.host_work_per_launch, written)

    def _beside_launches_s(self, unit: Unit) -> float:
        """Host time of a layer of experts beside its launches, forward and backward [s]."""
        if isinstance(unit, End) or unit.kind.mlp != "experts":
            return 0.0
        work = self.job.plan.stack.host_work_per_expert_layer
        return self.job.cluster.profile.kernels.launch_s * work

    @property
    def _added_bytes(self) -> float:
        """Of a weight's gradient that is added to the one that is kept, per element [B]."""
        fused = self.job.choices.fuses_accumulation and self.job.plan.tensor_grid is None
        return 0.0 if fused else state_bytes(self.job).gathered

    def _has_backward(self, unit: Unit) -> bool:
        if isinstance(unit, LayerUnit):
            return unit.has_backward
        return unit is not End.EMBEDDING or self._trains_embedding

    def repeated_flop(self, unit: LayerUnit) -> float:
        """FLOP of a layer that backward repeats, per token of a whole sequence."""
        if unit.in_bf16:
            return self._wide.repeated_flop(unit._replace(in_bf16=False))
        if not unit.is_repeated:
            return 0.0
        job = self.job
        shape = microbatch_shape(job.plan, 1, job.batch.seq_len)
        layer = model_layer(job.model, unit.kind, job.plan, shape)
        outcome = self._recomputation(layer, job.plan.recompute)
        flop = math.fsum(
            outcome.share_of_operations(each) * whole_flop(each) for each in layer.pieces
        )
        return flop / shape.tokens

    def _recomputation(self, layer: Layer, recompute: Recompute) -> Recomputation:
        plan, runs_cudnn = self.job.plan, self.job.choices.flash_kernel == "best"
        drops = plan.stack.fused_elementwise or not plan.stack.repeats_last_product
        return recomputation(
            layer,
            recompute,
            plan.stack.selective_policy,
            modules=plan.recompute_modules,
            named=plan.stack.named_outputs,
            compiled=plan.stack.fused_elementwise,
            stops_early=plan.stack.recompute_stops_early and drops,
            keeps_attention=not (runs_cudnn and plan.stack.repeats_cudnn_attention),
            hands_out_key_values=plan.stack.hands_out_key_values,
            by_part=plan.stack.recomputes_parts,
            knows_products=not (plan.stack.repeats_fp4_products and plan.precision == "nvfp4"),
        )

    def _halves(self, layer: Layer, outcome: Recomputation, owner: Owner, saved: Memory) -> Halves:
        if self.job.plan.stack.keeps_graph_for_weights:
            return whole_until_the_end(saved, _blocks(Owner.RECOMPUTE, outcome.restored_bytes))
        shape = self.shape
        ranks = self.job.choices.tensor_ranks
        sizes = pending_bytes(layer, ranks, shape.element_bytes, shape.gemm_bytes)
        return freed_half_way(saved, _blocks(owner, sizes))


def _turns(layer: Layer, kept_bytes: Sequence[float], element_bytes: float) -> tuple[Memory, ...]:
    """What pieces make and nobody keeps, one block at a time; equal ones lie in one place.

    A block is taken for one that is kept where that is as large (assumption).
    """
    kept = Counter(kept_bytes)
    made = gradient_sizes(layer, element_bytes)[1:]
    gone: dict[float, None] = {}
    for size in made:
        if kept[size]:
            kept[size] -= 1
        else:
            gone[size] = None
    return tuple(_blocks(Owner.TEMPORARIES, (size,)) for size in gone)


def _alone(layer: Layer, element_bytes: float) -> Memory:
    """What forward holds if nothing is kept: the residual stream, and what a piece reads and makes.

    Of what the loss computes from logits, everything.
    """
    sizes = (*layer.passing_bytes, *(saved.num_bytes for saved in layer.saved))
    if not layer.working_bytes:
        pairs = pairwise(gradient_sizes(layer, element_bytes))
        sizes = (layer.input_bytes, *max(pairs, key=sum))
    return _blocks(Owner.TEMPORARIES, (*sizes, *layer.buffer_bytes))


def _forward_only(
    layer: Layer, alone: Memory, timer: PieceTimer, hiding: Hiding, host_work: float
) -> UnitCost:
    """A unit through which no gradient goes: it keeps nothing."""
    nothing = replace(layer, saved=(), working_bytes=(), buffer_bytes=())

    def times() -> UnitTimes:
        forward = layer_time(layer, timer, hiding, {}).forward
        time = LayerTime(forward, PassTime(), PassTime(), PassTime())
        return UnitTimes(time, time, host_work=host_work)

    return UnitCost(
        saved=(),
        passing=alone,
        alone=alone,
        backward=Backward(nothing, Recomputation({}, (), ()), Owner.ACTIVATIONS, 0.0, is_end=True),
        halves=Halves((), (), ()),
        _timed=times,
    )


def _axis_groups(job: Job) -> dict[Axis, Group]:
    groups = {
        Axis.TENSOR: tensor_group(job),
        Axis.CONTEXT: context_group(job),
        Axis.EXPERT: expert_group(job),
        Axis.EXPERT_TENSOR: expert_tensor_group(job),
    }
    if job.plan.cp_method == "all_to_all+ring":
        groups[Axis.CONTEXT_HEADS], groups[Axis.CONTEXT] = context_lines(job)
    if job.plan.tensor_grid is not None:
        lines = GRID_LINES[job.plan.tensor_grid.method]
        groups.update(zip(lines, grid_groups(job), strict=True))
    return groups


def _blocks(owner: Owner, sizes: tuple[float, ...]) -> Memory:
    return tuple((owner, num_bytes) for num_bytes in sizes if num_bytes)
