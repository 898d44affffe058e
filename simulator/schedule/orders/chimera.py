"""Two pipelines in opposite directions over the same ranks."""

from __future__ import annotations

from simulator.schedule.slots import Order, Phase, Slot


def chimera(stages: int, chunks: int, microbatches: int) -> Order:
    """Half of every p microbatches go down the ranks, half go up, each as in 1F1B.

    Every rank holds two stages, one of each copy of the model. With equal times for forward
    and backward and p even the slots of the two directions interlock without a conflict:
    every slot has its place on a grid, and this order is the grid read along time. Units of
    p microbatches follow each other without a gap ("direct concatenation").

    Source:
        Li and Hoefler, Chimera (arXiv 2107.06925, sections 3.1, 3.2 and 3.5).
    """
    del chunks
    grid: list[list[tuple[int, Slot]]] = [[] for _ in range(stages)]
    for index in range(microbatches):
        # Pairs of microbatches start at both ends every second tick, p/2 pairs per unit.
        pair, goes_up = divmod(index, 2)
        unit, pair_in_unit = divmod(pair, stages // 2)
        start = 2 * stages * unit + 2 * pair_in_unit
        for position in range(stages):
            stage = position + stages * goes_up
            rank = stages - 1 - position if goes_up else position
            turned = start + 2 * stages - 1 - position
            grid[rank].append((start + position, Slot(Phase.FORWARD, stage, index)))
            grid[rank].append((turned, Slot(Phase.BACKWARD, stage, index)))
    return [[slot for _, slot in sorted(ticks)] for ticks in grid]
