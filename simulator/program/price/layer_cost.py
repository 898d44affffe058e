"""What does one layer, or one end of the model, cost one rank in time and memory?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from simulator.cost.collectives import Group
from simulator.described.job import Job
from simulator.described.plan.plan import Recompute
from simulator.program.grid.expert_tokens import ExpertShare
from simulator.program.grid.rank_groups import (
    context_group,
    context_lines,
    expert_group,
    expert_tensor_group,
    grid_groups,
    tensor_group,
)
from simulator.program.grid.stage_layers import recomputed_layers
from simulator.program.ir import Memory, Owner
from simulator.program.layer.block import Shape, microbatch_shape
from simulator.program.layer.layer_kinds import layer_kinds, model_layer
from simulator.program.layer.layer_part import LayerKind
from simulator.program.layer.model_ends import embedding_layer, head_layer, join_layer, loss_layer
from simulator.program.layer.model_totals import model_flop_per_token
from simulator.program.layer.pieces import Axis, Exchange, Layer, MemoryBound, Piece, Role
from simulator.program.price.layer_time import (
    Hiding,
    LayerTime,
    layer_time,
    whole_flop,
    with_input_gathered,
)
from simulator.program.price.piece_time import PieceTimer
from simulator.program.states.resident import padded_vocab, state_bytes
from simulator.program.strategies.divided_layer import divided
from simulator.program.strategies.grid_parallel import GRID_LINES
from simulator.program.strategies.recompute import Recomputation, kept_in_parts, recomputation
from simulator.program.strategies.split_backward import (
    Halves,
    backward_peak,
    checkpoint_ends,
    freed_half_way,
    pending_bytes,
    whole_until_the_end,
)


class LayerUnit(NamedTuple):
    """Layers that cost the same.

    Attributes:
        kind: What they consist of.
        is_repeated: Whether backward computes them again, as far as the plan says.
    """

    kind: LayerKind
    is_repeated: bool


class End(Enum):
    """What a model has beside its layers."""

    EMBEDDING = "embedding"
    HEAD = "head"
    LOSS = "loss"
    JOIN = "join"
    """Joins the hidden state and an embedding for multi-token prediction."""


Unit = LayerUnit | End


@dataclass(frozen=True, slots=True)
class UnitCost:
    """Time and memory of one layer or end.

    Attributes:
        time: All directions.
        launched: What of them the host launches kernel by kernel.
        graphs: CUDA graphs that it launches for each of them beside.
        saved: Kept from forward to backward.
        passing: Held while forward runs.
        working: Held while backward runs.
        peaks_in_attention: Whether backward holds the most while attention runs.
        halves: What the halves of a split backward take and free.
    """

    time: LayerTime
    launched: LayerTime
    graphs: int
    saved: Memory
    passing: Memory
    working: Memory
    peaks_in_attention: bool
    halves: Halves


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
        repeated = recomputed_layers(self.job)
        kinds = layer_kinds(self.job.model)
        return tuple(LayerUnit(kind, index in repeated) for index, kind in enumerate(kinds))

    @cached_property
    def shape(self) -> Shape:
        """Sizes of one microbatch on one rank."""
        batch, plan = self.job.batch, self.job.plan
        return microbatch_shape(plan, batch.micro_batch, batch.seq_len // plan.cp)

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
            accumulate_fp32=adds_up and fused and gradient_bytes > element_bytes,
            accumulation_bytes=element_bytes + 2 * gradient_bytes if adds_up and not fused else 0.0,
        )

    @cached_property
    def _hiding(self) -> Hiding:
        choices = self.job.choices
        ranks = choices.tensor_ranks
        chunks = ranks if choices.overlaps_tensor_collectives and ranks > 1 else 0
        return Hiding(choices.hides_input_collectives, chunks)

    def of(self, unit: Unit) -> UnitCost:
        """The cost of a unit."""
        if unit not in self._costs:
            self._costs[unit] = self._cost(unit)
        return self._costs[unit]

    def divided(self, unit: Unit) -> Layer:
        """What one rank runs of a unit."""
        return divided(self._whole_layer(unit), self.job, self.shape, self.share)

    def _whole_layer(self, unit: Unit) -> Layer:
        model, plan, shape = self.job.model, self.job.plan, self.shape
        match unit:
            case End.EMBEDDING:
                return embedding_layer(model, plan, shape)
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
        is_repeated = isinstance(unit, LayerUnit) and unit.is_repeated
        recompute = plan.recompute if is_repeated else "none"
        outcome = self._recomputation(layer, recompute)
        time = layer_time(layer, self.timer, self._hiding, outcome.repeated)
        if plan.partition_activations and is_repeated:
            outcome = kept_in_parts(outcome, layer, self.job.choices.tensor_ranks)
            time = with_input_gathered(time, layer, self.timer)
        owner = Owner.LOGITS if unit in (End.HEAD, End.LOSS) else Owner.ACTIVATIONS
        saved = _blocks(owner, outcome.kept_bytes)
        passing_bytes = outcome.passing_bytes + layer.passing_bytes + layer.buffer_bytes
        # Without reentrant autograd no function of its own computes a layer again.
        calls_backward = recompute == "full" and not plan.stack.recompute_stops_early
        ends = checkpoint_ends(layer) if calls_backward else ()
        peak = backward_peak(layer, outcome.restored_bytes)
        captured = self._captured(unit, layer)
        return UnitCost(
            time=time,
            launched=self._launched(layer, captured, time, outcome.repeated),
            graphs=1 if captured and plan.cuda_graphs == "layer" else 0,
            saved=saved,
            passing=_blocks(Owner.TEMPORARIES, passing_bytes),
            working=ends + peak.memory,
            peaks_in_attention=peak.in_attention,
            halves=self._halves(layer, outcome, owner, saved),
        )

    def _captured(self, unit: Unit, layer: Layer) -> Collection[Piece]:
        """Pieces that the host replays as a CUDA graph."""
        graphs, experts = self.job.plan.cuda_graphs, self.job.model.experts
        if graphs == "none" or (graphs == "layer" and isinstance(unit, End)):
            return ()
        if graphs == "layer" and experts is not None and experts.capacity_factor is None:
            routed = _routed_pieces(layer)
            return [piece for piece in layer.pieces if piece not in routed]
        return layer.pieces

    def _launched(
        self, layer: Layer, captured: Collection[Piece], time: LayerTime,
        repeated: Mapping[str, float],
    ) -> LayerTime:  # fmt: skip
        """The times of a layer with those pieces alone that are not captured."""
        if not captured:
            return time
        rest = tuple(piece for piece in layer.pieces if piece not in captured)
        return layer_time(replace(layer, pieces=rest), self.timer, self._hiding, repeated)

    def repeated_flop(self, unit: LayerUnit) -> float:
        """FLOP of a layer that backward repeats, per token of a whole sequence."""
        if not unit.is_repeated:
            return 0.0
        job = self.job
        shape = microbatch_shape(job.plan, 1, job.batch.seq_len)
        layer = model_layer(job.model, unit.kind, job.plan, shape)
        outcome = self._recomputation(layer, job.plan.recompute)
        flop = sum(outcome.share_of_operations(each) * whole_flop(each) for each in layer.pieces)
        return flop / shape.tokens

    def _recomputation(self, layer: Layer, recompute: Recompute) -> Recomputation:
        plan = self.job.plan
        return recomputation(
            layer,
            recompute,
            plan.stack.selective_policy,
            modules=plan.recompute_modules,
            compiled=plan.stack.fused_elementwise,
            stops_early=plan.stack.recompute_stops_early,
        )

    def _halves(self, layer: Layer, outcome: Recomputation, owner: Owner, saved: Memory) -> Halves:
        if self.job.plan.stack.keeps_graph_for_weights:
            return whole_until_the_end(saved, _blocks(Owner.RECOMPUTE, outcome.restored_bytes))
        shape = self.shape
        ranks = self.job.choices.tensor_ranks
        sizes = pending_bytes(layer, ranks, shape.element_bytes, shape.gemm_bytes)
        return freed_half_way(saved, _blocks(owner, sizes))


def _routed_pieces(layer: Layer) -> Sequence[Piece]:
    """What is between sending tokens to their experts and having them back, both included."""
    ends = (Role.PERMUTE, Role.UNPERMUTE)
    found = [
        index
        for index, piece in enumerate(layer.pieces)
        if (isinstance(piece, MemoryBound) and piece.role in ends)
        or (isinstance(piece, Exchange) and piece.axis in (Axis.EXPERT, Axis.EXPERT_TENSOR))
    ]
    return layer.pieces[found[0] : found[-1] + 1] if found else ()


def hardware_flop_per_token(job: Job) -> float:
    """FLOP that one token of training executes: what the model needs, and what is repeated.

    As of MFU, attention counts over the whole sequence, and only products and attention count.
    """
    costs = UnitCosts(job)
    repeated = sum(
        count * costs.repeated_flop(unit) for unit, count in Counter(costs.layers).items()
    )
    return model_flop_per_token(job.model, job.batch.seq_len) + repeated


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
