"""Which parameters are gathered and reduced together, and which layers wait for them?

Parameters that share one collective are a *unit*. ZeRO 3 has a unit per layer, and the
stack says where embedding and head belong, or that the parameters of a unit come one by one.
Otherwise units are buckets: parameters in the order in which backward reaches them, cut
wherever a bucket is full, which may be inside a layer. Dense parameters and routed experts have
buckets of their own, because other ranks hold copies of them.

A pass is run in *pieces*, so that units can be gathered before and reduced after the layers
that use them. Pieces are whole layers: a bucket that fills up inside a layer is reduced when
that layer's backward has ended.

Source: DistributedDataParallel (arXiv 2006.15704, section 3.2.3; ``Reducer`` of PyTorch 2.x
for the order after the first step); Megatron-Core's ``ParamAndGradBuffer``; FSDP (arXiv
2304.11277, section 3.2) and ``fully_shard`` for the root.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from simulator.described.job import Job
from simulator.program.grid.rank_groups import shard_group
from simulator.program.grid.stage_layers import Slice, cut, recomputed_layers
from simulator.program.grid.stand_ins import StandIns
from simulator.program.layer.adapters import frozen_in_layer, held_tensors
from simulator.program.layer.layer_kinds import layer_kinds
from simulator.program.layer.layer_part import LayerKind
from simulator.program.layer.tensors import (
    ParameterTensor,
    TensorRole,
    TensorSplit,
    padded_shard_numel,
)
from simulator.program.states.resident import (
    ParameterCount,
    added_up,
    end_tensors,
    frozen_share,
    state_bytes,
    tensor_parameters,
)
from simulator.program.states.separate_parameters import (
    SeparateParameter,
    SeparateParameters,
    is_small,
    over_the_loss,
)

_FUSED = {"query": "qkv", "key": "qkv", "value": "qkv", "gate": "up"}
"""Projections of one input, and the name of what they are part of."""

_Value = TypeVar("_Value")

_Tensors = list[tuple[ParameterTensor, ParameterCount]]


@dataclass(frozen=True, slots=True)
class Unit:
    """Parameters of one rank that share a collective.

    Attributes:
        run: Layers that the parameters belong to; for buckets, those that fill it up.
        parameters: Elements, with padding.
        partial: Elements of each parameter whose gradient the tensor-parallel ranks have to
            add up, because each saw only its part of the sequence.
        stays: Whether gathered weights are kept from forward to backward.
        held_numel: Elements of gathered weights that products hold until their backward, for which
            all are gathered again.
        separate: Each parameter, where each has collectives of its own.
        parts: What each of several pieces reads and makes of it.
    """

    run: Slice
    parameters: ParameterCount
    partial: tuple[float, ...] = ()
    stays: bool = False
    held_numel: float = 0.0
    separate: SeparateParameters | None = None
    parts: tuple[Unit, ...] = ()

    def __hash__(self) -> int:
        """Of the layers alone: few units have the same, and sets of them are asked all the time."""
        return hash(self.run)


@dataclass(frozen=True, slots=True)
class Piece:
    """Layers that run as one operation.

    Attributes:
        run: The layers.
        needs: Units whose weights forward and backward read.
        closes: Units whose gradients are complete after its backward.
        ahead_numel: Elements that are gathered meanwhile, because backward begins with them.
    """

    run: Slice
    needs: tuple[Unit, ...]
    closes: tuple[Unit, ...]
    ahead_numel: float = 0.0

    @property
    def makes(self) -> tuple[Unit, ...]:
        """Units, or parts of them, whose gradients its backward makes."""
        parts = (part for unit in self.needs for part in unit.parts if part.run == self.run)
        return (*parts, *(unit for unit in self.closes if not unit.parts))


class _Bucket(NamedTuple):
    """Parameters whose gradients are reduced together.

    Attributes:
        closer: Index of the part that fills it up.
        parameters, partial: As of a unit.
    """

    closer: int
    parameters: ParameterCount
    partial: tuple[float, ...]


@dataclass
class Units:
    """Units and pieces of any run of one job.

    Attributes:
        job: The job.
        tied_copy: Whether the last stage holds its own copy of the token embedding.
        stand_ins: Which runs stand for equal ones of later ranks.
    """

    job: Job
    tied_copy: bool = False
    stand_ins: StandIns = field(default_factory=StandIns)
    _held: dict[Hashable, _Tensors] = field(default_factory=dict)
    _totals: dict[tuple[Hashable, ...], tuple[ParameterCount, tuple[float, ...]]] = field(
        default_factory=dict
    )
    _equal: dict[Any, Any] = field(default_factory=dict)
    _filled: dict[tuple[Hashable, ...], list[_Bucket]] = field(default_factory=dict)

    def whole(self, run: Slice) -> Unit:
        """All parameters of a run as one unit."""
        parts = _parts(run)
        contents = tuple(map(self._content, parts))
        if contents not in self._totals:
            held = [pair for part in parts for pair in self._tensors(part)]
            self._totals[contents] = added_up(count for _, count in held), self._partial(held)
        return Unit(run, *self._totals[contents])

    def counts(self, run: Slice) -> list[ParameterCount]:
        """What one rank holds of every parameter of a run, in order of the model."""
        return [count for part in _parts(run) for _, count in self._tensors(part)]

    def stored_counts(self, run: Slice) -> tuple[ParameterCount, ...]:
        """The same, where the framework stores projections that are one product as one."""
        return tuple(self._stored(run).values())

    def _stored(self, run: Slice) -> dict[tuple[Slice, str, bool], ParameterCount]:
        """Stored parameters by part of the model, name, and whether they are of attention."""
        fuses = self.job.choices.fuses_projections
        stored: dict[tuple[Slice, str, bool], ParameterCount] = {}
        for part in _parts(run):
            for tensor, count in self._tensors(part):
                names = tensor.name.split(".")
                name = ".".join(_FUSED.get(name, name) if fuses else name for name in names)
                key = part, name, tensor.in_mixer
                stored[key] = stored.get(key, ParameterCount()) + count
        return stored

    def pieces(self, run: Slice) -> tuple[Piece, ...]:
        """How the run of a virtual stage is cut, in order of the model.

        Where gradients or weights exist only while they are used, or gradients from their backward
        on, the loss is a piece of its own, without the head: it has no weights.
        """
        choices = self.job.choices
        if run.has_loss and (choices.shards_gradients or choices.frees_gradients):
            body = run._replace(has_loss=False)
            before = self.pieces(body) if _parts(body) else ()
            ahead = before[-1].ahead_numel if before else 0.0
            return (*before, Piece(Slice(run.end, run.end, has_loss=True), (), (), ahead))
        if not self.job.choices.shards_weights:
            return self._bucket_pieces(run)
        sharding = self.job.choices.sharding_units
        if sharding == "parameters":
            return self._pieces_of_separate_parameters(run)
        if sharding == "layers":
            units = (self._sharding_unit(part, stays=False) for part in cut(run, 1))
            return tuple(Piece(unit.run, (unit,), (unit,)) for unit in units)
        return self._pieces_with_ends(run)

    def _pieces_of_separate_parameters(self, run: Slice) -> tuple[Piece, ...]:
        """Layers and ends of the model; the last ones may stay whole until backward."""
        parts = _parts(run)
        all_separate = [self._separate_parameters(part) for part in parts]
        ahead_numel = 0.0
        if run.has_head:
            all_separate, ahead_numel = over_the_loss(all_separate, self.job)
        pairs = zip(parts, all_separate, strict=True)
        units = (replace(self.whole(part), separate=separate) for part, separate in pairs)
        pieces = [Piece(unit.run, (unit,), (unit,)) for unit in units]
        return (*pieces[:-1], replace(pieces[-1], ahead_numel=ahead_numel))

    def _separate_parameters(self, part: Slice) -> SeparateParameters:
        is_repeated = not _is_end(part) and part.first in recomputed_layers(self.job)
        each = (
            SeparateParameter(count, is_small(count, self.job), in_mixer)
            for (_, _, in_mixer), count in self._stored(part).items()
        )
        return SeparateParameters(tuple(each), is_repeated)

    def _pieces_with_ends(self, run: Slice) -> tuple[Piece, ...]:
        """Every layer is a unit; embedding, norm and head are one root, or two units.

        The gradients of the root are made where it is read, and reduced when backward has ended.
        """
        parts = _parts(run)
        # Tied weights have to be in one unit.
        has_root = self.job.choices.sharding_units == "root" or self.job.model.tied_embeddings
        root_run = Slice(run.first, run.first, run.has_embedding, run.has_head)
        ends = tuple(self._sharding_unit(part, stays=True) for part in parts if _is_end(part))
        root = replace(self._sharding_unit(root_run, stays=True), parts=ends)
        units = {
            part: root
            if has_root and _is_end(part)
            else self._sharding_unit(part, stays=part.has_head)
            for part in parts
        }
        closers = {unit: part for part, unit in reversed(units.items())}
        if has_root and root in closers:
            closers[root] = parts[0]
        pieces = [
            Piece(part, (units[part],), tuple(u for u, at in closers.items() if at == part))
            for part in parts
        ]
        if has_root and root in closers and root not in pieces[0].needs:
            # The root module runs before its layers, whatever of its own comes behind them.
            pieces[0] = replace(pieces[0], needs=(root, *pieces[0].needs))
        return tuple(pieces) or (Piece(run, (), ()),)

    def _sharding_unit(self, run: Slice, *, stays: bool) -> Unit:
        asked = self.job.plan.reshard_after_forward
        keeps = stays if asked is None else not asked
        whole, total = self.whole(run), ParameterCount()
        if not self.job.choices.pads_shards:
            held = 0.0 if keeps else self._held_by_products(run)
            return replace(whole, stays=keeps, held_numel=held)
        tensor_ranks = self.job.choices.tensor_ranks
        for part in _parts(run):
            for tensor, count in self._tensors(part):
                padded = float(padded_shard_numel(tensor, tensor_ranks, self._shards))
                total += _padded(count, tensor, padded * frozen_share(self.job, tensor))
        return Unit(run, self._one(total), whole.partial, keeps)

    def _held_by_products(self, run: Slice) -> float:
        """Elements of matrices that products hold: none of tables, or of layers computed again."""
        if not self.job.plan.products_keep_gathered:
            return 0.0
        repeated = recomputed_layers(self.job)
        parts = (part for part in _parts(run) if _is_end(part) or part.first not in repeated)
        return math.fsum(
            count.total
            for part in parts
            for tensor, count in self._tensors(part)
            if tensor.role is TensorRole.MATRIX and not part.has_embedding
        )

    def _bucket_pieces(self, run: Slice) -> tuple[Piece, ...]:
        parts = _parts(run)[::-1]
        buckets = self._buckets(tuple(map(self._content, parts)), parts)
        pieces, start = [], 0
        for closer in sorted({bucket.closer for bucket in buckets}):
            joined = _joined(parts[start : closer + 1])
            units = tuple(
                Unit(joined, bucket.parameters, bucket.partial)
                for bucket in buckets
                if bucket.closer == closer
            )
            pieces.append(Piece(joined, units, units))
            start = closer + 1
        if start < len(parts):
            # What is frozen at the front fills no bucket.
            pieces.append(Piece(_joined(parts[start:]), (), ()))
        return tuple(reversed(pieces)) or (Piece(run, (), ()),)

    def _buckets(self, contents: tuple[Hashable, ...], parts: list[Slice]) -> list[_Bucket]:
        """Buckets in order of backward.

        Runs that hold the same have the same ones.
        """
        if contents not in self._filled:
            held = [
                (index, pair)
                for index, part in enumerate(parts)
                for pair in reversed(self._tensors(part))
            ]
            dense = [(index, pair) for index, pair in held if not pair[1].expert]
            expert = [(index, pair) for index, pair in held if pair[1].expert]
            self._filled[contents] = [*self._fill(dense), *self._fill(expert)]
        return self._filled[contents]

    def _fill(
        self, held: Sequence[tuple[int, tuple[ParameterTensor, ParameterCount]]]
    ) -> Iterator[_Bucket]:
        reduced, choices = state_bytes(self.job).reduced, self.job.choices
        sizes = [count.trained * reduced for _, (_, count) in held]
        start = 0
        for end in bucket_ends(sizes, choices.first_bucket_bytes, choices.bucket_bytes):
            pairs = [pair for _, pair in held[start : end + 1]]
            total = added_up(count for _, count in pairs)
            yield _Bucket(held[end][0], self._one(total), self._one(self._partial(pairs)))
            start = end + 1

    def _one(self, value: _Value) -> _Value:
        """One object for all that are equal, so that what follows from it is found once."""
        found: _Value = self._equal.setdefault(value, value)
        return found

    def _partial(self, held: _Tensors) -> tuple[float, ...]:
        """In order of backward; norms, and whatever else every rank holds whole."""
        if not self.job.plan.cuts_sequence:
            return ()
        whole = (
            count.dense
            for tensor, count in held
            if tensor.split is TensorSplit.REPLICATED and not tensor.is_frozen
        )
        return tuple(whole)[::-1]

    def _tensors(self, part: Slice) -> _Tensors:
        """Tensors of a part, each with what one rank holds of it, in order of forward."""
        content = self._content(part)
        if content not in self._held:
            tensors: Iterable[ParameterTensor]
            if _is_end(part):
                tensors = end_tensors(self.job, part, tied_copy=self.tied_copy)
            else:
                tensors = held_tensors(self.job.model, self.job.plan, part.first)
            self._held[content] = [(each, tensor_parameters(self.job, each)) for each in tensors]
        return self._held[content]

    def _content(self, part: Slice) -> Hashable:
        """What the tensors of a part follow from."""
        if _is_end(part):
            return part[2:]
        return self._layers[part.first]

    @cached_property
    def _shards(self) -> int:
        return shard_group(self.job).ranks

    @cached_property
    def _layers(self) -> list[tuple[LayerKind, frozenset[str]]]:
        model, plan = self.job.model, self.job.plan
        kinds = enumerate(layer_kinds(model))
        return [(kind, frozen_in_layer(model, plan, index)) for index, kind in kinds]


def _padded(count: ParameterCount, tensor: ParameterTensor, numel: float) -> ParameterCount:
    """A tensor that one rank holds whole, with its padding; routed experts have none."""
    if tensor.is_routed:
        return count
    return ParameterCount(frozen_dense=numel) if tensor.is_frozen else ParameterCount(numel)


def bucket_ends(sizes: Iterable[float], first_bytes: float, bucket_bytes: float) -> list[int]:
    """Index of the last parameter of each bucket.

    A bucket is closed by the parameter that brings it to its size; the last bucket holds
    what is left.
    """
    ends: list[int] = []
    filled, cap, index = 0.0, first_bytes or bucket_bytes, -1
    for index, size in enumerate(sizes):
        filled += size
        if filled >= cap:
            ends.append(index)
            filled, cap = 0.0, bucket_bytes
    return ends if filled == 0.0 else [*ends, index]


def whole_parameter_shares(
    counts: Sequence[ParameterCount], ranks: int
) -> list[list[ParameterCount]]:
    """The parameters of each rank that has any, where ranks take whole ones.

    The largest goes first, to the rank that has least.

    Source: PyTorch's ``ZeroRedundancyOptimizer._partition_parameters``; InternEvo's
    ``HybridZeroOptimizer._partition_param_list`` does the same.
    """
    shares: list[list[ParameterCount]] = [[] for _ in range(ranks)]
    held = [0.0] * ranks
    for count in sorted(counts, key=lambda count: -count.total):
        least = held.index(min(held))
        shares[least].append(count)
        held[least] += count.total
    return [share for share in shares if share]


def _parts(run: Slice) -> list[Slice]:
    """Embedding, each layer, and head with loss of a run, in order."""
    ends = [Slice(run.first, run.first, has_embedding=True)] if run.has_embedding else []
    layers = [Slice(index, index + 1) for index in range(run.first, run.end)]
    head = [Slice(run.end, run.end, has_head=True, has_loss=run.has_loss)] if run.has_head else []
    return [*ends, *layers, *head]


def _joined(parts: Sequence[Slice]) -> Slice:
    first, last = parts[-1], parts[0]
    return Slice(first.first, last.end, first.has_embedding, last.has_head, last.has_loss)


def _is_end(part: Slice) -> bool:
    return part.first == part.end
