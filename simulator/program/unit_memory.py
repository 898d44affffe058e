"""How much memory do weights take while they are gathered, and gradients until they are sharded?

Parameters that share a collective are whole together. Where every parameter has collectives of its
own, one is whole after another while a layer runs: the one in use and the next, which is gathered
beside it unless too much is there already, and what backward of a repeated layer keeps for its
second use. Gradients are copied into a bucket one by one, and leave when it is full.

Source: DeepSpeed 0.3.13, deepspeed/runtime/zero/stage3.py, ``prefetch_next_sub_modules``,
``release_sub_module``, ``_keep_for_later`` and ``reduce_ipg_grads``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from simulator.cost.parameters import embedding_tensors
from simulator.program.ir import Memory, Owner
from simulator.program.layout import recomputed_layers
from simulator.program.lone_parameters import gathered, gathered_twice
from simulator.program.states import padded_vocab, shard_numel, state_bytes, tensor_parameters
from simulator.program.units import Unit
from simulator.spec.job import Job


class UnitMemory:
    """Memory of the units of one job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._zero = job.plan.zero
        self._state = state_bytes(job)

    def weights(self, units: Sequence[Unit]) -> Memory:
        """Gathered weights of units that are whole from before their use until after it."""
        sizes = (u.parameters.total * self._state.gathered for u in units if not u.apart)
        return tuple((Owner.GATHERED_WEIGHTS, num_bytes) for num_bytes in sizes if num_bytes)

    def weights_in_turn(self, units: Sequence[Unit], *, is_forward: bool) -> Memory:
        """The most that is gathered at once of units whose parameters come one after another."""
        apart = [unit for unit in units if unit.apart]
        each = (whole_parameters(unit, self.job, is_forward=is_forward) for unit in apart)
        numels = max(each, key=sum, default=[])
        if not any(unit.run.has_embedding for unit in apart):
            numels = [*numels, self._embedding_numel]
        per = self._state.gathered
        return tuple((Owner.GATHERED_WEIGHTS, numel * per) for numel in numels if numel)

    @cached_property
    def _embedding_numel(self) -> float:
        """Elements of a token embedding that stays whole because it is the output matrix, too."""
        job = self.job
        if not (job.model.tied_embeddings and job.plan.stack.keeps_tied_embedding):
            return 0.0
        tokens, *_ = embedding_tensors(job.model, padded_vocab(job))
        return tensor_parameters(job, tokens).total

    def shard(self, units: Sequence[Unit]) -> Memory:
        """Shards that lie on the GPU between their copy and their gather."""
        per = self._state.weights or self._state.master
        numel = sum(shard_numel(self.job, unit.parameters) for unit in units)
        return ((Owner.GATHERED_WEIGHTS, numel * per),)

    def gradients(self, units: Sequence[Unit]) -> Memory:
        """Gradients before they are sharded.

        Only ZeRO 2 and 3 make them anew; otherwise they live in resident buffers.
        """
        if self._zero < 2:
            return ()
        return ((Owner.GRADIENTS, self._unsharded(units) * self._state.gathered),)

    def reduced(self, units: Sequence[Unit]) -> Memory:
        """Whole gradients of ZeRO 2 and 3 in the format they are reduced in, if it is another."""
        state = self._state
        if self._zero < 2 or state.reduced == state.gathered:
            return ()
        return ((Owner.COMMUNICATION, self._unsharded(units) * state.reduced),)

    def _unsharded(self, units: Sequence[Unit]) -> float:
        """Elements of gradients that exist whole at once."""
        bucket_numel = self.job.plan.stack.bucket_bytes / self._state.reduced
        return sum(unsharded_numel(unit, bucket_numel) for unit in units)


def whole_parameters(unit: Unit, job: Job, *, is_forward: bool) -> list[float]:
    """Elements of those of a unit's parameters that are whole at once, where the most are.

    The next parameter is gathered ahead, that of the next layer with the last of this one; layers
    are taken as alike.
    """
    counts = gathered(unit, job)
    sizes = [count.total for count in counts]
    if len(sizes) < 2:
        return sizes
    limit = job.plan.stack.live_numel
    turns = (
        [used, ahead] if limit is None or used < limit else [used]
        for used, ahead in pairwise([*sizes, sizes[0]])
    )
    most = max(turns, key=sum)
    layers = range(unit.run.first, unit.run.end)
    if is_forward or not layers or not recomputed_layers(job).issuperset(layers):
        return most
    released = list(gathered_twice(unit, job))
    kept = [count.total for count in counts if not any(count is other for other in released)]
    return max(most, kept, key=sum)


def unsharded_numel(unit: Unit, bucket_numel: float) -> float:
    """Elements of a unit's gradients that are whole at once: the newest and those in the bucket."""
    if not unit.apart:
        return unit.parameters.total
    largest = max(count.total for count in unit.apart)
    return min(unit.parameters.total, largest + bucket_numel)
