"""Which weights does ZeRO 3 gather where every parameter has collectives of its own?

Those smaller than a threshold are whole while the model runs, and come together after the update.
The others come before every use, unless it is near: DeepSpeed counts the elements that modules use
between two uses of a weight, and gives it up only where they are more than a limit. In a layer
that backward computes again, the two uses of a weight lie around the later ones. From forward to
backward these are all the weights behind it: once in forward, and in backward once, or twice where
a layer is computed again. An embedding that is the output matrix, too, belongs to the whole model,
which uses it anew as backward begins. While the loss runs, the first weight that backward lacks is
gathered ahead. Parameters come and go one after another while a layer runs: the one in use and the
next, which is gathered beside it unless too much is there already, and what backward of a repeated
layer keeps for its second use.

Ignored: the first step of a training, which only records the order and keeps nothing.

Source: DeepSpeed 0.3.13, deepspeed/runtime/zero/stage3.py, ``persistent_parameters``,
``release_sub_module``, ``get_reuse_distance_in_numel``, ``_keep_for_later`` and
``prefetch_next_sub_modules``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from simulator.described.job import Job
from simulator.program.layer.model_ends import embedding_tensors
from simulator.program.states.resident import ParameterCount, padded_vocab, tensor_parameters


@dataclass(frozen=True, slots=True)
class SeparateParameter:
    """A parameter with collectives of its own.

    Attributes:
        count: Its elements on one rank.
        is_small: Whether it is whole while the model runs.
        in_attention: Whether it is of attention, and not of what follows it in a layer.
        stays: Whether it stays whole from forward to backward, which soon uses it again.
    """

    count: ParameterCount
    is_small: bool = False
    in_attention: bool = False
    stays: bool = False


@dataclass(frozen=True, slots=True)
class SeparateParameters:
    """Parameters of a layer or an end of the model, in order of the model.

    Attributes:
        each: The parameters.
        is_repeated: Whether backward computes the layer again before it uses its weights.
    """

    each: tuple[SeparateParameter, ...]
    is_repeated: bool = False

    @property
    def counts(self) -> list[ParameterCount]:
        """Elements of every parameter."""
        return [one.count for one in self.each]

    @property
    def numel(self) -> float:
        """Elements of all."""
        return math.fsum(one.count.total for one in self.each)

    @property
    def kept_numel(self) -> float:
        """Elements that stay whole from forward to backward."""
        return math.fsum(one.count.total for one in self.each if one.stays)

    def gathered(self, *, is_forward: bool) -> list[ParameterCount]:
        """What comes before a pass, one by one."""
        return [one.count for one in self._large if is_forward or not one.stays]

    def gathered_twice(self, reuse_numel: float | None) -> list[ParameterCount]:
        """What backward gathers to compute a repeated layer, and again for the gradients."""
        return [one.count for one in self.kept_and_gathered_twice(reuse_numel)[1]]

    def kept_and_gathered_twice(
        self, reuse_numel: float | None
    ) -> tuple[list[SeparateParameter], list[SeparateParameter]]:
        """What backward of a repeated layer keeps for the gradients, and gathers again for them.

        Both in the order of the gradients, without what is whole all the time.
        """
        kept, again, later = list[SeparateParameter](), list[SeparateParameter](), 0.0
        for one in reversed(self.each):
            far = reuse_numel is not None and self.is_repeated and 2 * later >= reuse_numel
            if far and not one.is_small:
                again.append(one)
            elif not one.is_small and not one.stays:
                kept.append(one)
            later += one.count.total
        return kept, again

    def first_of_backward(self) -> float:
        """Elements of the first weight that backward has to gather; 0 without any."""
        lacking = self.gathered(is_forward=False)
        if not lacking:
            return 0.0
        return (lacking[0] if self.is_repeated else lacking[-1]).total

    @property
    def _large(self) -> Iterable[SeparateParameter]:
        return (one for one in self.each if not one.is_small)


def is_small(count: ParameterCount, job: Job) -> bool:
    """Whether a parameter is whole while the model runs, not gathered before every use."""
    return count.total < job.choices.small_numel


def over_the_loss(
    parts: Sequence[SeparateParameters], job: Job
) -> tuple[list[SeparateParameters], float]:
    """Parts of a run that ends in the loss with what stays, and elements gathered ahead then."""
    choices, tied_numel = job.choices, kept_embedding_numel(job)
    if choices.reuse_numel is None:
        return list(parts), 0.0
    kept = kept_for_backward(parts, tied_numel, choices.reuse_numel)
    whole_numel = tied_numel + math.fsum(part.kept_numel for part in kept)
    if choices.live_numel is not None and whole_numel >= choices.live_numel:
        return kept, 0.0
    firsts = (part.first_of_backward() for part in reversed(kept))
    return kept, next((numel for numel in firsts if numel), 0.0)


def kept_embedding_numel(job: Job) -> float:
    """Elements of a token embedding that stays whole because it is the output matrix, too."""
    if not job.choices.keeps_tied_embedding:
        return 0.0
    tokens, *_ = embedding_tensors(job.model, padded_vocab(job))
    return tensor_parameters(job, tokens).total


def kept_for_backward(
    parts: Sequence[SeparateParameters], tied_numel: float, reuse_numel: float
) -> list[SeparateParameters]:
    """Parts of a model whose weights stay whole until backward, where it uses them soon.

    Args:
        parts: Of a run that ends in the loss, in order of the model.
        tied_numel: Elements that the whole model uses as backward begins.
        reuse_numel: A weight stays if fewer other elements are used before it.
    """
    kept, between = [], tied_numel
    for part in reversed(parts):
        total, before, each = part.numel, 0.0, []
        for one in part.each:
            after = total - before - one.count.total
            distance = between + after + (before if part.is_repeated else after)
            each.append(replace(one, stays=not one.is_small and distance < reuse_numel))
            before += one.count.total
        kept.append(replace(part, each=tuple(each)))
        between += total * (3 if part.is_repeated else 2)
    return kept[::-1]


def whole_parameters(separate: SeparateParameters, job: Job, *, is_forward: bool) -> list[float]:
    """Elements of those parameters that are whole at once, where the most are, but for any kept.

    The next parameter is gathered ahead, that of the next layer with the last of this one; layers
    are taken as equal. What backward keeps of a repeated layer is whole as its gradients begin.
    """
    sizes = [count.total for count in separate.gathered(is_forward=False)]
    turns = [_with_next([used], ahead, job) for used, ahead in pairwise([*sizes, *sizes[:1]])]
    if not is_forward and separate.is_repeated:
        kept, again = separate.kept_and_gathered_twice(job.choices.reuse_numel)
        numels = [one.count.total for one in kept]
        turns.append(_with_next(numels, again[0].count.total, job) if again else numels)
    return max(turns, key=sum, default=[])


def whole_in_attention(separate: SeparateParameters, job: Job) -> list[float]:
    """The same while attention itself runs backward, after its output's weight and before others.

    What is kept for the gradients of these, or else the next of them, which is gathered ahead.
    """
    kept, _ = separate.kept_and_gathered_twice(job.choices.reuse_numel)
    inputs = [one for one in separate.each if one.in_attention and not one.is_small][:-1]
    waiting = [one.count.total for one in kept if one in inputs] if separate.is_repeated else []
    coming = [one for one in inputs if not one.stays]
    return waiting or (_with_next([], coming[-1].count.total, job) if coming else [])


def _with_next(whole: list[float], ahead: float, job: Job) -> list[float]:
    """With the one that is gathered ahead, once more where a list of shards is made of it."""
    limit = job.choices.live_numel
    live = kept_embedding_numel(job) + math.fsum(whole)
    if limit is not None and live >= limit:
        return whole
    return [*whole, *[ahead] * (2 if job.choices.lists_shards else 1)]
