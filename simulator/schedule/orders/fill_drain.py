"""Orders that run all forwards before the first backward, or one microbatch at a time."""

from __future__ import annotations

from simulator.schedule.info import ONE_F_ONE_B_BUBBLE, Note, ScheduleInfo
from simulator.schedule.slots import Order, Phase, alternate, slots_of


def naive(stages: int, _chunks: int, microbatches: int) -> Order:
    """One microbatch after the other, so that one rank works at a time.

    Source:
        The unpipelined baseline of GPipe (arXiv 1811.06965, figure 2b).
    """
    todo = range(microbatches)
    return [
        alternate(slots_of(Phase.FORWARD, rank, todo), slots_of(Phase.BACKWARD, rank, todo))
        for rank in range(stages)
    ]


def gpipe(stages: int, _chunks: int, microbatches: int) -> Order:
    """All forwards, then all backwards, both in the order of the microbatches.

    The paper draws the backwards in reverse; torch runs them first come, first served, which
    takes the same time.

    Source:
        GPipe (arXiv 1811.06965, section 2.3); order of torch's ``ScheduleGPipe``, and of the
        simple pipeline of SageMaker's model parallelism (its documentation, "Pipelining a Model").
    """
    todo = range(microbatches)
    return [
        slots_of(Phase.FORWARD, rank, todo) + slots_of(Phase.BACKWARD, rank, todo)
        for rank in range(stages)
    ]


def looped_bfs(stages: int, chunks: int, microbatches: int) -> Order:
    """Breadth first: every chunk takes all microbatches before the next chunk starts.

    Backwards mirror the forwards: last chunk first, last microbatch first.

    Source:
        Lamy-Poirier, Breadth-First Pipeline Parallelism (arXiv 2211.05953, section 4).
    """
    todo = range(microbatches)
    order: Order = []
    for rank in range(stages):
        mine = [rank + chunk * stages for chunk in range(chunks)]
        down = [slot for stage in mine for slot in slots_of(Phase.FORWARD, stage, todo)]
        up = [
            slot
            for stage in reversed(mine)
            for slot in slots_of(Phase.BACKWARD, stage, reversed(todo))
        ]
        order.append(down + up)
    return order


def one_in_flight(_rank: int, _stages: int, _chunks: int, _microbatches: int) -> int:
    """One: a microbatch ends before the next starts."""
    return 1


def all_in_flight(_rank: int, _stages: int, chunks: int, microbatches: int) -> int:
    """All microbatches on all chunks."""
    return chunks * microbatches


def looped_bfs_messages(stages: int, chunks: int, microbatches: int) -> int:
    """What comes back to the first rank while it has microbatches of the chunk before to run."""
    return 0 if chunks == 1 or stages == 1 else max(0, microbatches // stages - 1)


NAIVE = ScheduleInfo(
    name="naive",
    order=naive,
    summary="one microbatch at a time; one rank works, the others wait",
    source="GPipe, arXiv 1811.06965, figure 2b",
    in_flight=one_in_flight,
    waits=True,
    offloads=True,
    note=Note(
        text="One microbatch passes through all ranks and back before the next one starts, so one "
        "rank works and the others wait. No schedule needs less memory, and none is slower.",
        bubble="m * (p - 1) * (tF + tB)",
        activations="1",
    ),
)


GPIPE = ScheduleInfo(
    name="gpipe",
    order=gpipe,
    summary="all forwards, then all backwards",
    source="GPipe, arXiv 1811.06965",
    in_flight=all_in_flight,
    waits=True,
    offloads=True,
    recomputes_blocks=True,
    torch_name="GPipe",
    note=Note(
        text="All forwards, then all backwards. Ranks wait only while the pipeline fills and "
        "drains, so more microbatches make the bubble smaller; but a rank holds the activations "
        "of all of them, so it is usually combined with recomputation.",
        bubble=ONE_F_ONE_B_BUBBLE,
        activations="m",
    ),
)


LOOPED_BFS = ScheduleInfo(
    name="looped-bfs",
    order=looped_bfs,
    summary="breadth-first over the chunks; fewest reductions with ZeRO-2",
    source="Breadth-First Pipeline Parallelism, arXiv 2211.05953",
    in_flight=all_in_flight,
    buffers=looped_bfs_messages,
    chunks=(1, None),
    torch_name="LoopedBFS",
    note=Note(
        text="Interleaved chunks, breadth-first: a chunk processes all microbatches before the "
        "next chunk starts. Sharded weights of a chunk are gathered once per pass and their "
        "gradients reduced early, but as in GPipe all microbatches are held.",
        bubble="(p - 1) * (tF + tB) / v",
        activations="m",
    ),
)


SAGEMAKER_SIMPLE = ScheduleInfo(
    name="sagemaker-simple",
    order=gpipe,
    summary="forwards of all microbatches first: the order of gpipe",
    source="SageMaker model parallelism, arXiv 2111.05972",
    in_flight=all_in_flight,
    note=Note(
        text="The simple pipeline of Amazon's SageMaker library: forwards of all microbatches "
        "end before the first backward starts, which is the order of gpipe.",
        bubble=ONE_F_ONE_B_BUBBLE,
        activations="m",
    ),
)
