"""The bound of a plan's memory, against the simulated peaks of all plans of a space."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.planning.bound import plan_bounds
from simulator.planning.space import plan_space
from simulator.results.run import run_step
from tests.jobs import small_job, small_model

WHOLE = {
    "plan.tp": [1, 2],
    "plan.pp": [1, 4],
    "plan.zero": [0, 1],
    "plan.schedule": ["1f1b", "gpipe"],
    "plan.recompute": ["none", "full"],
}
"""Plans whose passes run one by one and as a whole, if there are several microbatches: the only
backward is the last, which reductions may cut."""

CUT = {
    "plan.pp": [1, 4],
    "plan.zero": [2, 3],
    "plan.vpp": [1, 2],
    "plan.schedule": [None, "zb-h1", "zb-v", "chimera"],
}
"""Plans of which pieces, buffers or halves of passes are left out."""


def bounded_and_simulated(vary, **plan):
    """What the fullest GPU of every plan holds in tensors: bound, and at the simulated peak."""
    job = small_job(small_model(layers=8), gpus=8, global_batch=64, **plan)
    space = plan_space(job, vary)
    context = job.cluster.profile.device.context_bytes
    simulated = [
        max(
            memory.peak_allocated_bytes
            for memory in run_step(space.plan_job(plan), "replay").memory
        )
        for plan in range(len(space))
    ]
    assert len(space) > 8
    return plan_bounds(space).peak_device_bytes - context, np.asarray(simulated), space


@pytest.mark.parametrize("stack", ["megatron-core", "megatron-lm-2021", "internevo"])
def test_the_bound_is_the_simulated_peak_where_passes_are_whole(stack):
    bound, simulated, space = bounded_and_simulated(WHOLE, stack=stack)
    several = space.microbatches > 1
    assert np.count_nonzero(several) > 100
    assert bound[several] == pytest.approx(simulated[several], rel=1e-6)
    assert (bound <= simulated * (1 + 1e-6)).all()


@pytest.mark.parametrize("stack", ["megatron-core", "torchtitan"])
def test_no_plan_holds_less_than_its_bound(stack):
    bound, simulated, _ = bounded_and_simulated(CUT, stack=stack)
    assert (bound <= simulated).all()
    assert (bound > 0.2 * simulated).all()
