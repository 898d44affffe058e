"""How much memory do weights take while they are gathered, and gradients until they are sharded?

Parameters that share a collective are whole together. Gradients are copied into a bucket one by
one, and leave when it is full. Where that bucket is a buffer that is always there, no other
gradient is whole than the one that is copied. Where none stay from the step before, the first
backward of a step makes them. Under ZeRO 2 the first of several backwards of one virtual stage
makes them, the later ones add to them, and the reductions after the last one shard them.

Where one rank holds both ends of the model, the table of tokens and the output matrix are one
parameter, whose gradient comes in two parts: the head's when backward begins, that of the lookup,
as large, when it ends. PyTorch's autograd hands on neither before their sum, so the head's part
waits in the engine all through backward. The sum is a third tensor: the gradient of a linear
layer's weight is a view, to which autograd adds nothing. Where the product adds to the gradient
itself and that stays from step to step, its part is a stand-in of zeros, which takes the lookup's.

Ignores: the memory traffic of adding up, and that frameworks may add up in fp32; further uses of a
tied embedding by multi-token prediction, and a weight gradient that is computed on its own.
Source: DeepSpeed 0.3.13, deepspeed/runtime/zero/stage3.py, ``reduce_ipg_grads``; PyTorch's
``zero_grad(set_to_none=True)``; PyTorch 2.13, torch/csrc/autograd/input_buffer.cpp, ``accumulate``
and ``can_accumulate_inplace``; Megatron-Core, ``zero_out_wgrad`` of
``LinearWithGradAccumulationAndAsyncCommunication`` and ``LanguageModule``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, Protocol, TypeVar

from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Memory, Owner, total_bytes
from simulator.program.layer.adapters import frozen
from simulator.program.layer.model_ends import embedding_tensors
from simulator.program.states.gather_units import Piece, Unit, Units
from simulator.program.states.gradient_buckets import copies_into_bucket
from simulator.program.states.resident import (
    frozen_bytes,
    new_gradient_bytes,
    padded_vocab,
    shard_numel,
    slice_tensors,
    state_bytes,
    tensor_parameters,
)
from simulator.program.states.separate_parameters import (
    kept_embedding_numel,
    whole_in_attention,
    whole_parameters,
)

_Found = TypeVar("_Found")


class OfUnits(Generic[_Found]):
    """What follows from units, wherever they are, found once for those of the same parameters."""

    def __init__(self, find: Callable[[Sequence[Unit]], _Found]) -> None:
        self._find = find
        self._same: dict[tuple[int, ...], tuple[Sequence[Unit], _Found]] = {}
        """By the identity of units, which are thereby kept."""
        self._alike: dict[tuple[float, ...], _Found] = {}
        """By the identity of what they consist of, and what products hold of it."""

    def __call__(self, units: Sequence[Unit]) -> _Found:
        """What follows from units."""
        key = tuple(map(id, units))
        known = self._same.get(key)
        if known is None:
            known = self._same[key] = tuple(units), self._of_alike(units)
        return known[1]

    def _of_alike(self, units: Sequence[Unit]) -> _Found:
        key = tuple(
            [id(held) for u in units for held in (u.parameters, u.partial, u.separate, u.parts)]
        ) + tuple(unit.held_numel for unit in units)
        if key not in self._alike:
            self._alike[key] = self._find(units)
        return self._alike[key]


class UnitMemory:
    """Memory of the units of one job.

    Attributes:
        weights: Gathered weights of units that are whole from before their use until after it.
        kept_weights: Weights that stay whole from forward to backward, where others do not.
        gradients: Gradients before they are sharded. Only ZeRO 2 and 3 make them anew; otherwise
            they live in resident buffers.
        reduced: Whole gradients of ZeRO 2 and 3 that are reduced, if they are a copy.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._choices = job.choices
        self._state = state_bytes(job)
        self.weights = OfUnits(self._weights)
        self.kept_weights = OfUnits(self._kept_weights)
        self.gradients = OfUnits(self._gradients)
        self.reduced = OfUnits(self._reduced)

    def _weights(self, units: Sequence[Unit]) -> Memory:
        return self._held_weights(units) + self._free_weights(units)

    def _held_weights(self, units: Sequence[Unit]) -> Memory:
        return self._gathered(unit.held_numel for unit in units)

    def _free_weights(self, units: Sequence[Unit]) -> Memory:
        return self._gathered(u.parameters.total - u.held_numel for u in units if not u.separate)

    def _gathered(self, numels: Iterable[float]) -> Memory:
        per = self._state.gathered
        return tuple((Owner.GATHERED_WEIGHTS, numel * per) for numel in numels if numel)

    def _kept_weights(self, units: Sequence[Unit]) -> Memory:
        return self._gathered(unit.separate.kept_numel for unit in units if unit.separate)

    def given_back(self, units: Sequence[Unit], *, is_forward: bool) -> Memory:
        """Gathered weights that are free after a pass: after backward what forward kept, too."""
        if is_forward:
            return self._free_weights(units)
        return self.weights(units) + self._held_weights(units) + self.kept_weights(units)

    def weights_in_turn(
        self, piece: Piece, *, is_forward: bool, in_attention: bool = False
    ) -> Memory:
        """The most that is gathered at once while parameters come and go one after another."""
        all_separate = [unit.separate for unit in piece.needs if unit.separate]
        if in_attention:
            each = [whole_in_attention(separate, self.job) for separate in all_separate]
        else:
            each = [
                whole_parameters(separate, self.job, is_forward=is_forward)
                for separate in all_separate
            ]
        numels = [*max(each, key=sum, default=[]), piece.ahead_numel]
        if not piece.run.has_embedding:
            numels.append(kept_embedding_numel(self.job))
        per = self._state.gathered
        return tuple((Owner.GATHERED_WEIGHTS, numel * per) for numel in numels if numel)

    def shard(self, units: Sequence[Unit]) -> Memory:
        """Shards that lie on the GPU between their copy and their gather."""
        per = self._state.weights or self._state.master
        numel = math.fsum(shard_numel(self.job, unit.parameters) for unit in units)
        untrained_bytes = math.fsum(frozen_bytes(self.job, unit.parameters) for unit in units)
        return ((Owner.GATHERED_WEIGHTS, numel * per + untrained_bytes),)

    def _gradients(self, units: Sequence[Unit]) -> Memory:
        if not self._choices.shards_gradients:
            return ()
        if copies_into_bucket(self.job):
            numels = (unit.parameters.largest for unit in units)
            return tuple((Owner.GRADIENTS, n * self._state.gathered) for n in numels if n)
        parts = [[part] for unit in units for part in unit.parts]
        others = [unit for unit in units if not unit.parts]
        made = [*parts, others] if others else parts
        return tuple((Owner.GRADIENTS, self._unsharded(u) * self._state.gathered) for u in made)

    def added_up(self, unit: Unit) -> Memory:
        """Whole gradients of a unit that are added up over a step, in the format of their sum."""
        return ((Owner.GRADIENTS, unit.parameters.trained * self._state.reduced),)

    @property
    def copies_gradients(self) -> bool:
        """Whether gradients of ZeRO 2 and 3 are free once they are in the reduced buffer."""
        return self._choices.frees_copied_gradients

    def _reduced(self, units: Sequence[Unit]) -> Memory:
        state = self._state
        is_copy = state.reduced != state.gathered or self.copies_gradients
        if not (self._choices.shards_gradients and is_copy):
            return ()
        return ((Owner.COMMUNICATION, self._unsharded(units) * state.reduced),)

    def _unsharded(self, units: Sequence[Unit]) -> float:
        bucket_numel = self._choices.least_bucket_bytes / self._state.reduced
        return math.fsum(unsharded_numel(unit, bucket_numel) for unit in units)


def unsharded_numel(unit: Unit, bucket_numel: float) -> float:
    """Elements of a unit's gradients that are whole at once: those in the bucket and the largest.

    One that is larger than the bucket stays until others have left it: that of an MLP while
    attention runs backward, which is when most else is there.
    """
    if not unit.separate:
        return unit.parameters.trained
    largest = max(count.trained for count in unit.separate.counts)
    return min(unit.parameters.trained, largest + bucket_numel)


_EMBEDDING, _HEAD = -1, -2
"""Stand for embedding and head among the indices of layers."""


@dataclass(slots=True)
class RankGradients:
    """Gradients of a rank that exist since its last update.

    Attributes:
        owned: Layers, embedding and head whose gradients backward has made.
        made: What it made of them.
        in_turn: Whether those of a turn are kept that goes on.
        added: What was taken for units whose gradients are added up over a step.
    """

    owned: frozenset[int] = frozenset()
    made: Memory = ()
    in_turn: bool = False
    added: dict[Unit, Memory] = field(default_factory=dict)

    def standing(self) -> Hashable:
        """All that decides what the next pass makes."""
        return self.owned, self.made, self.in_turn, frozenset(self.added.items())

    def copy(self) -> RankGradients:
        """The same, whatever happens to these."""
        return replace(self, added={**self.added})


class MadeGradients:
    """Gradients that exist from a rank's first backward to its update."""

    def __init__(self, job: Job, units: Units) -> None:
        self._job, self._units = job, units

    def by_backward(self, of_rank: RankGradients, run: Slice) -> Memory:
        """Gradients that a run's first backward makes and that stay until the step.

        Those of ZeRO 2 and 3 are shards, made by the reduction that follows; then ``run`` is what
        it reduces.
        """
        if not self._job.choices.frees_gradients:
            return ()
        owned = set(range(run.first, run.end))
        owned |= {_EMBEDDING} if run.has_embedding else set()
        owned |= {_HEAD} if run.has_head else set()
        if owned <= of_rank.owned:
            return ()
        of_rank.owned |= owned
        num_bytes = new_gradient_bytes(self._job, self._units.whole(run).parameters)
        are_shards = self._job.choices.shards_gradients
        # Shards of a unit are parts of the buffer that its reduction fills.
        made = (
            ((Owner.GRADIENT_SHARDS, num_bytes),) if are_shards else self._by_tensor(run, num_bytes)
        )
        of_rank.made += made
        return made

    def _by_tensor(self, run: Slice, num_bytes: float) -> Memory:
        """One block per parameter, as PyTorch's autograd makes them."""
        job = self._job
        numels = [
            tensor_parameters(job, tensor).trained
            for tensor, layers in slice_tensors(job, run)
            for _ in range(layers)
        ]
        whole = math.fsum(numels)
        return tuple((Owner.GRADIENTS, num_bytes * numel / whole) for numel in numels if numel)

    @staticmethod
    def freed(of_rank: RankGradients) -> Memory:
        """What backward made since the last update; forgotten, because the update frees it."""
        made, of_rank.owned, of_rank.made = of_rank.made, frozenset(), ()
        return made


class WholeGradients:
    """Gradients of a rank whose turn goes on."""

    def __init__(self, memory: UnitMemory) -> None:
        self._memory = memory

    def add_up(self, of_rank: RankGradients, piece: Piece) -> Memory:
        """What a backward takes whose gradients are added up over a step: nothing but at first."""
        new = [unit for unit in piece.makes if unit not in of_rank.added]
        for unit in new:
            of_rank.added[unit] = self._memory.added_up(unit)
        return tuple(block for unit in new for block in of_rank.added[unit])

    @staticmethod
    def added_up(of_rank: RankGradients, unit: Unit) -> Memory:
        """What was taken for a unit, or its parts, since the last update; forgotten."""
        made = [of_rank.added.pop(part, ()) for part in (unit.parts or (unit,))]
        return tuple(block for blocks in made for block in blocks)

    def sums(self, of_rank: RankGradients, units: Iterable[Unit]) -> Memory:
        """What was taken for units since the last update; forgotten."""
        if not of_rank.added:
            return ()
        return tuple(block for unit in units for block in self.added_up(of_rank, unit))

    def keep(self, of_rank: RankGradients, pieces: Iterable[Piece]) -> Memory:
        """What a backward takes whose turn goes on: nothing where an earlier one of it has.

        Args:
            of_rank: Those of the rank.
            pieces: Of the virtual stage, as they will be reduced.
        """
        if of_rank.in_turn:
            return ()
        of_rank.in_turn = True
        made = (piece.makes for piece in pieces if piece.makes)
        return tuple(taken for units in made for taken in self._memory.gradients(units))

    def complete(self, of_rank: RankGradients, piece: Piece) -> Memory:
        """What a backward takes whose gradients are reduced: nothing where they were kept."""
        made = () if of_rank.in_turn else piece.makes
        return self._memory.gradients(made) if made else ()


class PlainCosts(Protocol):
    """Activations of a run of layers."""

    def saved(self, run: Slice) -> Memory:
        """Kept from forward to backward."""

    def plain_working_bytes(self, run: Slice) -> float:
        """What backward holds beyond that, but for gradients of a tied embedding [B]."""


@dataclass(frozen=True)
class TiedGradient:
    """Parts of the gradient of one job's tied embedding.

    Attributes:
        job: The job.
        costs: Of its layers.
    """

    job: Job
    costs: PlainCosts

    @cached_property
    def waiting(self) -> Memory:
        """The head's part, from its backward to that of the embedding; empty where none waits."""
        job = self.job
        if not job.choices.holds_tied_gradients:
            return ()
        tokens, *_ = frozen(embedding_tensors(job.model, padded_vocab(job)), job.plan)
        numel, state = tensor_parameters(job, tokens).trained, state_bytes(job)
        # Gradients that PyTorch keeps as its own have the format of their parameters.
        is_own = job.choices.frees_gradients and not job.choices.shards_gradients
        if not numel:
            return ()
        return ((Owner.GRADIENTS, numel * (state.gradients if is_own else state.gathered)),)

    def working(self, run: Slice, plain_bytes: float, made_bytes: float, *, is_new: bool) -> Memory:
        """What a piece of backward holds at its fullest because of the two parts.

        Args:
            run: The piece. The head's part is in it where it has head and loss, else taken.
            plain_bytes: What it holds at its fullest beyond what forward saved, without the two
                parts. Only what these need more than that counts [B].
            made_bytes: Gradients that it makes one after another; all are there at its end [B].
            is_new: Whether the sum becomes the gradient itself, which the backward takes.
        """
        if not self.waiting:
            return ()
        booked = total_bytes(self.costs.saved(run)) + plain_bytes
        moments = self._moments(run, made_bytes, is_new=is_new)
        more_bytes = max(moments, default=0.0) - booked
        return ((Owner.GRADIENTS, more_bytes),) if more_bytes > 0 else ()

    def _moments(self, run: Slice, made_bytes: float, *, is_new: bool) -> Iterator[float]:
        """What is there after the loss while the head, layers and embedding of a piece run [B]."""
        part = total_bytes(self.waiting)
        first, end, has_embedding = run.first, run.end, run.has_embedding
        waits = part if run.has_loss and run.has_head else 0.0
        if waits:
            body, layers = run._replace(has_loss=False), Slice(first, end, has_embedding)
            yield waits + self._held(body, Slice(end, end, has_head=True))
            yield waits + self._held(layers, Slice(first, end))
        if has_embedding:
            lookup = Slice(first, first, has_embedding)
            parts = waits + part * (self._makes_sum + (not is_new))
            yield made_bytes + parts + self._held(lookup, lookup)

    def _held(self, saved: Slice, running: Slice) -> float:
        return total_bytes(self.costs.saved(saved)) + self.costs.plain_working_bytes(running)

    @property
    def _makes_sum(self) -> bool:
        choices = self.job.choices
        adds_up = choices.frees_gradients or not choices.fuses_accumulation
        return adds_up and self.job.plan.makes_sums_of_gradients
