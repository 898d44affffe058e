"""Orders that alternate one forward with one backward once the pipeline is full."""

from __future__ import annotations

from simulator.schedule.info import ONE_F_ONE_B_BUBBLE, Note, ScheduleInfo
from simulator.schedule.slots import Order, Phase, Slot, alternate, joined, slots_of


def one_f_one_b(stages: int, _chunks: int, microbatches: int) -> Order:
    """Each rank runs ahead just far enough that its first gradient finds it waiting.

    Rank r runs p - r forwards, then one backward and one forward in turn, then the rest of
    the backwards. PipeDream, PipeDream-2BW, DAPPLE (its policy A) and SageMaker's interleaved
    pipeline (on the two ranks that its documentation draws) run this same order; they differ
    in when weights change and how many versions are kept.

    Source:
        PipeDream-Flush (arXiv 2006.09503, figure 4); the runtime order of torch's
        ``Schedule1F1B`` (its printed plan mislabels the forwards of the last rank).
    """
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
    ahead = _interleaved_ahead(rank, stages, chunks, microbatches)
    return forward[:ahead], alternate(forward[ahead:], backward)


def _interleaved_ahead(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """What a first gradient needs: a round through all other chunks, and the way there and back."""
    return other_chunks_round(stages, chunks, microbatches) + 2 * (stages - 1 - rank)


def other_chunks_round(stages: int, chunks: int, microbatches: int) -> int:
    """Passes of the first round through all chunks of a rank but one."""
    return (chunks - 1) * round_length(stages, microbatches)


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


def one_f_one_b_in_flight(rank: int, stages: int, _chunks: int, microbatches: int) -> int:
    """The fewer the deeper the rank: p - r (arXiv 2006.09503, section 2.1)."""
    return min(stages - rank, microbatches)


def interleaved_in_flight(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """One more than run ahead."""
    ahead = _interleaved_ahead(rank, stages, chunks, microbatches)
    return min(ahead + 1, chunks * microbatches)


def whole_rounds(stages: int, _chunks: int, microbatches: int) -> tuple[str, str] | None:
    """Microbatches fill whole rounds."""
    rounds = max(1, microbatches // stages)
    if microbatches % rounds == 0:
        return None
    rule = f"microbatches must be a multiple of microbatches // pp = {rounds}"
    return rule, f"use {microbatches // stages * stages} microbatches"


def fills_pipeline(stages: int, _chunks: int, microbatches: int) -> tuple[str, str] | None:
    """No more than one update lies between a forward and its backward (arXiv 2006.09503, 3.1)."""
    if microbatches >= stages:
        return None
    return "needs at least pp microbatches per update", f"use {stages} microbatches"


def stashed_versions(rank: int, stages: int) -> int:
    """PipeDream: one weight version per microbatch in flight (arXiv 1806.03377, section 3.3)."""
    return stages - rank


def microbatches_ahead(rank: int, stages: int) -> int:
    """PipeDream: one update for each later microbatch in flight (arXiv 1806.03377, section 3.3)."""
    return stages - 1 - rank


def one_update(_rank: int, stages: int) -> int:
    """PipeDream-2BW: gradients are of the weights before the last update, on every rank.

    Source: arXiv 2006.09503, section 3.1. One rank alone would not be stale.
    """
    return min(1, stages - 1)


def two_versions(_rank: int, _stages: int) -> int:
    """PipeDream-2BW: the newest weights and those that old microbatches use."""
    return 2


def interleaved_messages(stages: int, _chunks: int, microbatches: int) -> int:
    """Rounds longer than p come back to the first rank before it turns to them.

    Where a forward and a backward exchange in one call, as in Megatron's, none are needed.
    """
    length = round_length(stages, microbatches)
    return 0 if stages == 1 or microbatches < 2 * stages else max(1, length - stages)


ONE_F_ONE_B = ScheduleInfo(
    name="1f1b",
    order=one_f_one_b,
    summary="one forward, one backward; activations of at most p microbatches",
    source="PipeDream-Flush, arXiv 2006.09503; Megatron-LM, arXiv 2104.04473",
    in_flight=one_f_one_b_in_flight,
    waits=True,
    offloads=True,
    recomputes_blocks=True,
    in_megatron=True,
    torch_name="1F1B",
    note=Note(
        text="PipeDream's order with a flush before each weight update. The bubble is that of "
        "GPipe, but rank r has only p - r microbatches in flight, however many there are in a "
        "step.",
        bubble=ONE_F_ONE_B_BUBBLE,
        activations="min(m, p)",
    ),
)


DAPPLE = ScheduleInfo(
    name="dapple",
    order=one_f_one_b,
    summary="early backward, policy A: the order of 1f1b",
    source="DAPPLE, arXiv 2007.01045",
    in_flight=one_f_one_b_in_flight,
    waits=True,
    offloads=True,
    torch_name="1F1B",
    note=Note(
        text="The early-backward schedule of DAPPLE. With its policy A, a rank admits p - r "
        "microbatches, which is the order of 1f1b.",
        bubble=ONE_F_ONE_B_BUBBLE,
        activations="min(m, p)",
    ),
)


PIPEDREAM = ScheduleInfo(
    name="pipedream",
    order=one_f_one_b,
    summary="1F1B without flush; a weight version per microbatch in flight",
    source="PipeDream, arXiv 1806.03377",
    in_flight=one_f_one_b_in_flight,
    synchronous=False,
    updates_every_microbatch=True,
    weight_versions=stashed_versions,
    staleness=microbatches_ahead,
    note=Note(
        text="One forward and one backward in turn, without a flush: weights change after every "
        "microbatch. A microbatch must see the same weights in its backward as in its forward. So "
        "a rank keeps one version of its weights for each microbatch in flight: p versions on the "
        "first rank, one on the last. Gradients of old weights change the result of "
        "training: it is not synchronous, unlike the other schedules.",
        bubble="0",
        activations="p",
    ),
)


PIPEDREAM_2BW = ScheduleInfo(
    name="pipedream-2bw",
    order=one_f_one_b,
    summary="1F1B without flush; two weight versions",
    source="PipeDream-2BW, arXiv 2006.09503",
    in_flight=one_f_one_b_in_flight,
    synchronous=False,
    weight_versions=two_versions,
    staleness=one_update,
    rule=fills_pipeline,
    note=Note(
        text="PipeDream with gradients summed over at least p microbatches before the weights "
        "change, so two versions are enough on every rank. The applied gradient is one update old.",
        bubble="0",
        activations="p",
    ),
)


INTERLEAVED_1F1B = ScheduleInfo(
    name="interleaved-1f1b",
    order=interleaved_one_f_one_b,
    summary="1F1B over several chunks per rank, which divides the bubble by their number",
    source="Megatron-LM, arXiv 2104.04473; torch ScheduleInterleaved1F1B",
    in_flight=interleaved_in_flight,
    buffers=interleaved_messages,
    chunks=(2, None),
    rule=whole_rounds,
    offloads=True,
    recomputes_blocks=True,
    in_megatron=True,
    torch_name="Interleaved1F1B",
    paired_order=paired_interleaved,
    note=Note(
        text="Every rank holds v chunks that are p stages apart. A microbatch passes each rank v "
        "times, so filling takes chunks instead of whole ranks, and the bubble is v times "
        "smaller. The price is v times the messages between ranks, and the activations of one "
        "more round.",
        bubble="(p - 1) * (tF + tB) / v",
        activations="min(m, (p * (v + 1) - 1) / v)",
    ),
)


SAGEMAKER_INTERLEAVED = ScheduleInfo(
    name="sagemaker-interleaved",
    order=one_f_one_b,
    summary="backwards come first, forwards between them: the order of 1f1b",
    source="SageMaker model parallelism, arXiv 2111.05972",
    in_flight=one_f_one_b_in_flight,
    note=Note(
        text="The interleaved pipeline of Amazon's SageMaker library: a rank prefers backwards "
        "and alternates them with forwards. Its documentation draws two ranks, where the first "
        "runs its first backward before its third forward, as in 1f1b; that it does so on more "
        "ranks is an assumption. No chunks are interleaved, whatever the name says.",
        bubble=ONE_F_ONE_B_BUBBLE,
        activations="min(m, p)",
    ),
)
