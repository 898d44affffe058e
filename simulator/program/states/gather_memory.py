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
from itertools import pairwise

from simulator.described.job import Job
from simulator.program.ir import Memory, Owner
from simulator.program.states.gather_units import Piece, Unit
from simulator.program.states.resident import shard_numel, state_bytes
from simulator.program.states.separate_parameters import LoneParameters, kept_embedding_numel


class UnitMemory:
    """Memory of the units of one job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._choices = job.choices
        self._state = state_bytes(job)

    def weights(self, units: Sequence[Unit]) -> Memory:
        """Gathered weights of units that are whole from before their use until after it."""
        sizes = (u.parameters.total * self._state.gathered for u in units if not u.apart)
        return tuple((Owner.GATHERED_WEIGHTS, num_bytes) for num_bytes in sizes if num_bytes)

    def kept_weights(self, units: Sequence[Unit]) -> Memory:
        """Weights that stay whole from forward to backward, of units where others do not."""
        numels = (unit.apart.kept_numel for unit in units if unit.apart)
        return tuple((Owner.GATHERED_WEIGHTS, n * self._state.gathered) for n in numels if n)

    def weights_in_turn(
        self, piece: Piece, *, is_forward: bool, in_attention: bool = False
    ) -> Memory:
        """The most that is gathered at once while parameters come and go one after another."""
        apart = [unit.apart for unit in piece.needs if unit.apart]
        if in_attention:
            each = [whole_in_attention(lone, self.job) for lone in apart]
        else:
            each = [whole_parameters(lone, self.job, is_forward=is_forward) for lone in apart]
        numels = [*max(each, key=sum, default=[]), piece.ahead_numel]
        if not piece.run.has_embedding:
            numels.append(kept_embedding_numel(self.job))
        per = self._state.gathered
        return tuple((Owner.GATHERED_WEIGHTS, numel * per) for numel in numels if numel)

    def shard(self, units: Sequence[Unit]) -> Memory:
        """Shards that lie on the GPU between their copy and their gather."""
        per = self._state.weights or self._state.master
        numel = sum(shard_numel(self.job, unit.parameters) for unit in units)
        return ((Owner.GATHERED_WEIGHTS, numel * per),)

    def gradients(self, units: Sequence[Unit]) -> Memory:
        """Gradients before they are sharded.

        Only ZeRO 2 and 3 make them anew; otherwise they live in resident buffers.
        """
        if not self._choices.shards_gradients:
            return ()
        parts = [[part] for unit in units for part in unit.parts]
        others = [unit for unit in units if not unit.parts]
        made = [*parts, others] if others else parts
        return tuple((Owner.GRADIENTS, self._unsharded(u) * self._state.gathered) for u in made)

    @property
    def copies_gradients(self) -> bool:
        """Whether gradients of ZeRO 2 and 3 are free once they are in the reduced buffer."""
        return self._choices.frees_copied_gradients

    def reduced(self, units: Sequence[Unit]) -> Memory:
        """Whole gradients of ZeRO 2 and 3 that are reduced, if they are a copy."""
        state = self._state
        is_copy = state.reduced != state.gathered or self.copies_gradients
        if not (self._choices.shards_gradients and is_copy):
            return ()
        return ((Owner.COMMUNICATION, self._unsharded(units) * state.reduced),)

    def _unsharded(self, units: Sequence[Unit]) -> float:
        """Elements of gradients that exist whole at once."""
        bucket_numel = self._choices.least_bucket_bytes / self._state.reduced
        return sum(unsharded_numel(unit, bucket_numel) for unit in units)


def whole_parameters(lone: LoneParameters, job: Job, *, is_forward: bool) -> list[float]:
    """Elements of those parameters that are whole at once, where the most are, but for any kept.

    The next parameter is gathered ahead, that of the next layer with the last of this one; layers
    are taken as alike. What backward keeps of a repeated layer is whole as its gradients begin.
    """
    sizes = [count.total for count in lone.gathered(is_forward=False)]
    turns = [_with_next([used], ahead, job) for used, ahead in pairwise([*sizes, *sizes[:1]])]
    if not is_forward and lone.is_repeated:
        kept, again = lone.kept_and_gathered_twice(job.choices.reuse_numel)
        numels = [one.count.total for one in kept]
        turns.append(_with_next(numels, again[0].count.total, job) if again else numels)
    return max(turns, key=sum, default=[])


def whole_in_attention(lone: LoneParameters, job: Job) -> list[float]:
    """The same while attention itself runs backward, after its output's weight and before others.

    What is kept for the gradients of these, or else the next of them, which is gathered ahead.
    """
    kept, _ = lone.kept_and_gathered_twice(job.choices.reuse_numel)
    inputs = [one for one in lone.each if one.in_attention and not one.is_small][:-1]
    waiting = [one.count.total for one in kept if one in inputs] if lone.is_repeated else []
    coming = [one for one in inputs if not one.stays]
    return waiting or (_with_next([], coming[-1].count.total, job) if coming else [])


def _with_next(whole: list[float], ahead: float, job: Job) -> list[float]:
    """With the one that is gathered ahead, once more where a list of shards is made of it."""
    limit = job.choices.live_numel
    live = kept_embedding_numel(job) + sum(whole)
    if limit is not None and live >= limit:
        return whole
    return [*whole, *[ahead] * (2 if job.choices.lists_shards else 1)]


def unsharded_numel(unit: Unit, bucket_numel: float) -> float:
    """Elements of a unit's gradients that are whole at once: those in the bucket and the largest.

    One that is larger than the bucket stays until others have left it: that of an MLP while
    attention runs backward, which is when most else is there.
    """
    if not unit.apart:
        return unit.parameters.total
    largest = max(count.total for count in unit.apart.counts)
    return min(unit.parameters.total, largest + bucket_numel)
