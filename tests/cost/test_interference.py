"""Computing beside communication: closed forms with round numbers, and what was measured."""

from __future__ import annotations

import pytest

from simulator.cost.interference import link_bytes_per_s, rate_beside, taken_share
from simulator.described.cluster.common import shipped_common
from simulator.described.cluster.hardware import Device
from simulator.described.load import load_job, load_profile
from simulator.errors import InputError

COMMON = shipped_common().model_copy(update={"memory_accesses_per_link_byte": 2.0})


def gpu(sm_count: int, memory_bytes_per_s: float) -> Device:
    """An A100 with other numbers."""
    sizes = {"sm_count": sm_count, "memory_bandwidth_bytes_per_s": memory_bytes_per_s}
    return load_profile("a100-sxm-40gb").device.model_copy(update=sizes)


def test_a_collective_takes_its_multiprocessors_and_two_accesses_of_memory_per_byte():
    """20 of 100, and 2 x 100 GB/s of 1000 GB/s."""
    assert taken_share(20, 100e9, gpu(100, 1e12), COMMON) == pytest.approx(0.4)


def test_what_holds_no_multiprocessors_takes_nothing():
    assert taken_share(0, 100e9, gpu(100, 1e12), COMMON) == 0.0


def test_bytes_of_both_kinds_of_links_count_and_those_of_switches_above_do_not():
    ports = {"scale_up": 6e9, "fabric": 2e9, "leaf_uplink": 5e9}
    assert link_bytes_per_s(ports, 2.0) == 4e9


def test_half_of_the_device_is_left_at_the_least():
    assert rate_beside(0.3, COMMON) == 0.7
    assert rate_beside(0.9, COMMON) == COMMON.least_rate == 0.5


def test_a_measured_rate_beside_collectives_stands_for_what_they_hold():
    """A collective of 1 s beside 2 s of products: 2.79 s where they save 21 % of its time."""
    measured = COMMON.model_copy(update={"rate_beside_collectives": 0.21})
    taken = taken_share(20, 100e9, gpu(100, 1e12), measured)
    rate = rate_beside(taken, measured)
    assert rate == pytest.approx(0.21)
    assert 1.0 + (2.0 - rate * 1.0) == pytest.approx(2.79)
    assert taken_share(0, 100e9, gpu(100, 1e12), measured) == 0.0


@pytest.mark.parametrize("field", ["least_rate", "rate_beside_collectives"])
def test_computing_beside_a_collective_never_stands_still(field):
    """At a rate of 0 it would not end before the collective does, which may wait for it."""
    with pytest.raises(InputError, match=field):
        load_job("llama3-8b-8xh100", {f"cluster.common.{field}": 0})
