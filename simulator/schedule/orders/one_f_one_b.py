"""Orders that alternate one forward with one backward once the pipeline is full."""

from __future__ import annotations

from simulator.schedule.slots import Order, Phase, Slot, alternate, joined, slots_of


def one_f_one_b(stages: int, chunks: int, microbatches: int) -> Order:
    """Each rank runs ahead just far enough that its first gradient finds it waiting.

    Rank r runs p - r forwards, then one backward and one forward in turn, then the rest of
    the backwards. PipeDream, PipeDream-2BW, DAPPLE (its policy A) and SageMaker's interleaved
    pipeline (on the two ranks that its documentation draws) run this same order; they differ
    in when weights change and how many versions are kept.

    Source:
        PipeDream-Flush (arXiv 2006.09503, figure 4); the runtime order of torch's
        ``Schedule1F1B`` (its printed plan mislabels the forwards of the last rank).
    """
    del chunks
    order: Order = []
    for rank in range(stages):
        forward = slots_of(Phase.FORWARD, rank, range(microbatches))
        backward = slots_of(Phase.BACKWARD, rank, range(microbatches))
        ahead = stages - rank
        order.append(forward[:ahead] + alternate(backward, forward[ahead:]))
    return order


def one_ahead(microbatches: int) -> list[Slot]:
    """One rank without a pipeline, a forward ahead, so that passes of two microbatches can pair.

    Source:
        Megatron-Core's combined forward and backward without a pipeline.
    """
    forward = slots_of(Phase.FORWARD, 0, range(microbatches))
    backward = slots_of(Phase.BACKWARD, 0, range(microbatches))
    return forward[:1] + joined(alternate(forward[1:], backward))


def interleaved_one_f_one_b(stages: int, chunks: int, microbatches: int) -> Order:
    """1F1B over several chunks per rank: the bubble shrinks by the number of chunks.

    Microbatches pass a rank in rounds: one round through chunk 0, the same round through
    chunk 1, and so on. Rounds are p microbatches long, or slightly longer where p does not
    divide m.

    Source:
        Narayanan et al. (arXiv 2104.04473, section 2.2) and Megatron-LM; longer rounds as
        in torch's ``ScheduleInterleaved1F1B``.
    """
    parts = (_interleaved_parts(rank, stages, chunks, microbatches) for rank in range(stages))
    return [warm_up + rest for warm_up, rest in parts]


def paired_interleaved(stages: int, chunks: int, microbatches: int) -> Order:
    """The same order; after the warm-up every forward is joined with the backward after it.

    Source:
        Megatron-Core: without overlapped sends one exchange serves both, and with overlapped
        expert exchanges both run side by side.
    """
    parts = (_interleaved_parts(rank, stages, chunks, microbatches) for rank in range(stages))
    return [warm_up + joined(rest) for warm_up, rest in parts]


def _interleaved_parts(
    rank: int, stages: int, chunks: int, microbatches: int
) -> tuple[list[Slot], list[Slot]]:
    """The forwards that run ahead on a rank, and what alternates after them."""
    forward = interleaved_slots(Phase.FORWARD, rank, stages, chunks, microbatches)
    backward = interleaved_slots(Phase.BACKWARD, rank, stages, chunks, microbatches)
    # A first gradient needs the first round through all other chunks, and the way to the
    # last rank and back.
    ahead = (chunks - 1) * round_length(stages, microbatches) + 2 * (stages - 1 - rank)
    return forward[:ahead], alternate(forward[ahead:], backward)


def round_length(stages: int, microbatches: int) -> int:
    """Microbatches that pass one chunk before the rank turns to the next chunk."""
    return microbatches // max(1, microbatches // stages)


def interleaved_slots(
    phase: Phase, rank: int, stages: int, chunks: int, microbatches: int
) -> list[Slot]:
    """All slots of one phase on one rank, round by round and chunk by chunk."""
    length = round_length(stages, microbatches)
    mine = [rank + chunk * stages for chunk in range(chunks)]
    if phase is not Phase.FORWARD:
        mine.reverse()
    return [
        Slot(phase, stage, microbatch)
        for start in range(0, microbatches, length)
        for stage in mine
        for microbatch in range(start, start + length)
    ]
