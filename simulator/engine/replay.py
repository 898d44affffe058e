"""When does everything happen if nothing is ever in the way of anything else?

The longest path over the program: every operation starts as soon as it heads all its
lanes and its dependencies have ended. Shared ports and streaming multiprocessors are
ignored, so the answer is a lower bound of the simulation's (:mod:`simulator.engine.des`)
and equals it where nothing is shared.
"""

from __future__ import annotations

import numpy as np

from simulator.engine.dependencies import deadlock_error, dependencies
from simulator.engine.timeline import Timeline
from simulator.program.ir import Program


def replay(program: Program) -> Timeline:
    """Timeline of the program without contention.

    Cost is one visit per operation, lane and dependency.
    """
    operations = program.operations
    waits_for, followers = dependencies(program)
    start_s = [0.0] * len(operations)
    end_s = [0.0] * len(operations)
    ready = [index for index, count in enumerate(waits_for) if count == 0]
    finished = 0
    while ready:
        index = ready.pop()
        end = start_s[index] + operations[index].work.seconds
        end_s[index] = end
        finished += 1
        for follower in followers[index]:
            start_s[follower] = max(start_s[follower], end)
            waits_for[follower] -= 1
            if waits_for[follower] == 0:
                ready.append(follower)
    if finished < len(operations):
        raise deadlock_error(program, [i for i, count in enumerate(waits_for) if count])
    return Timeline(program, np.asarray(start_s), np.asarray(end_s))
