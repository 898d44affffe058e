"""What memories and multiprocessors allow every kernel."""

from __future__ import annotations

import pytest

from simulator.cost.kernel_time import many_tensors_efficiency
from tests.tiny import tiny_profile


def waiting(share: float):
    """A device whose multiprocessors alone keep so much of its bandwidth under way."""
    profile = tiny_profile()
    rate = share * profile.device.memory_bandwidth_bytes_per_s / profile.device.sm_count
    kernels = profile.kernels.model_copy(update={"many_tensors_bytes_per_s": rate})
    return profile.model_copy(update={"kernels": kernels})


def test_where_waiting_and_the_memory_alone_reach_as_much_both_reach_a_cube_root_of_two_less():
    alone = waiting(1.0).kernels.memory_efficiency
    reached = many_tensors_efficiency(waiting(alone), is_half=False)
    assert reached == pytest.approx(alone / 2 ** (1 / 3))


def test_multiprocessors_that_never_wait_leave_the_memory_what_it_streams():
    alone = waiting(1.0).kernels.memory_efficiency
    assert many_tensors_efficiency(waiting(1e6), is_half=False) == pytest.approx(alone)
