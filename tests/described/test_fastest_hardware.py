"""Is a rate that no hardware reaches called doubtful, with what its author may have meant?"""

from __future__ import annotations

import pytest

from simulator.described.load import load_job, load_profile, profile_names
from simulator.described.rules.profile_rules import rates_beyond_hardware


@pytest.mark.parametrize("name", profile_names())
def test_no_shipped_profile_is_doubtful(name):
    assert list(rates_beyond_hardware(load_profile(name))) == []


@pytest.mark.parametrize(
    ("field", "value", "meant"),
    [
        ("network.fabric.nic", "400 GB/s", "did you mean 400 Gbit/s?"),
        ("network.fabric.nic", "25 TB/s", "did you mean 25 GB/s?"),
        ("network.fabric.nic", "400 TB/s", "check the unit"),
        ("network.scale_up.bandwidth", "7200 GB/s", "did you mean 7.20 Tbit/s?"),
        ("network.scale_up.bandwidth", "450 TB/s", "did you mean 450 GB/s?"),
        ("device.memory_bandwidth", "3350 TB/s", "did you mean 3350 GB/s?"),
        ("device.peak.bf16", "989 PFLOP/s", "did you mean 989 TFLOP/s?"),
        ("device.peak.fp32", "67 PFLOP/s", "did you mean 67 TFLOP/s?"),
        ("device.peak.fp8", "1979 EFLOP/s", "check the unit"),
    ],
)
def test_a_slip_of_a_unit_is_doubtful_with_what_was_meant(field, value, meant):
    job = load_job("llama3-70b-64xh100", {f"cluster.{field}": value})
    [fault] = rates_beyond_hardware(job.cluster.profile)
    assert (fault.path, fault.hint) == (field, meant)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("network.fabric.nic", "1600 Gbit/s"),
        ("network.scale_up.bandwidth", "1.8 TB/s"),
        ("device.memory_bandwidth", "22 TB/s"),
        ("device.peak.fp4", "50 PFLOP/s"),
    ],
)
def test_the_fastest_announced_parts_are_not_doubtful(field, value):
    job = load_job("llama3-70b-64xh100", {f"cluster.{field}": value})
    assert list(rates_beyond_hardware(job.cluster.profile)) == []
