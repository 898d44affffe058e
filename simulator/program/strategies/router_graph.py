"""What stays of a layer that was computed again because a module keeps what its router gave?

Without reentrant autograd, what recomputation makes has a graph of its own that no backward runs
through, so nothing frees what it saved. It goes with the last name for one of its results: a
module that keeps scores or a loss of its router keeps all that was saved on the way to them, until
its next forward gives it others.

Source: PyTorch, ``_recomputation_hook`` of ``torch/utils/checkpoint.py``, which returns what it
saves to the new graph, too. Assumption: all that was saved before the router's scores is on the
way to them.
"""

from __future__ import annotations

from simulator.program.ir import Memory, Owner
from simulator.program.layer.experts import ROUTER_SCORES
from simulator.program.strategies.backward_memory import Backward


def router_graph(backward: Backward) -> Memory:
    """A layer's input, and what was made again until its tokens had scores; else nothing."""
    names = [saved.name for saved in backward.layer.saved]
    if ROUTER_SCORES not in names or not backward.outcome.restored_bytes:
        return ()
    again = backward.outcome.restored_bytes[: names.index(ROUTER_SCORES) + 1]
    inputs = tuple((backward.owner, num_bytes) for num_bytes in backward.inputs)
    return inputs + tuple((Owner.RECOMPUTE, num_bytes) for num_bytes in again if num_bytes)
