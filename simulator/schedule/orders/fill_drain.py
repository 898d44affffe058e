"""Orders that run all forwards before the first backward, or one microbatch at a time."""

from __future__ import annotations

from simulator.schedule.slots import Order, Phase, alternate, slots_of


def naive(stages: int, chunks: int, microbatches: int) -> Order:
    """One microbatch after the other, so that one rank works at a time.

    Source:
        The unpipelined baseline of GPipe (arXiv 1811.06965, figure 2b).
    """
    del chunks
    todo = range(microbatches)
    return [
        alternate(slots_of(Phase.FORWARD, rank, todo), slots_of(Phase.BACKWARD, rank, todo))
        for rank in range(stages)
    ]


def gpipe(stages: int, chunks: int, microbatches: int) -> Order:
    """All forwards, then all backwards, both in the order of the microbatches.

    The paper draws the backwards in reverse; torch runs them first come, first served, which
    takes the same time.

    Source:
        GPipe (arXiv 1811.06965, section 2.3); order of torch's ``ScheduleGPipe``, and of the
        simple pipeline of SageMaker's model parallelism (its documentation, "Pipelining a Model").
    """
    del chunks
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
