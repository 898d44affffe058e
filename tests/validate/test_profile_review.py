"""Is what a profile leaves open or predicts strangely remarked upon, and nothing else?"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.calibrate.profile_text import with_value
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.documents import parse_yaml
from simulator.described.load import load_profile, profile_file, profile_from_document
from simulator.validate.profile_review import neighbours_of, remarks

BASE = "h100-sxm-80gb"


def names(profile: HardwareProfile) -> set[str]:
    return {other.name for other in neighbours_of(profile)}


def with_kernels(**update: Any) -> HardwareProfile:
    base = load_profile(BASE)
    return base.model_copy(update={"kernels": base.kernels.model_copy(update=update)})


def unlike(profile: HardwareProfile) -> list[str]:
    return [remark.path for remark in remarks(profile) if remark.kind == "unlike"]


def test_neighbours_are_of_the_same_generation():
    assert names(load_profile(BASE)) == {
        "gh200-144gb", "gh200-96gb", "h100-hbm2e-96gb-500w", "h100-nvl-94gb", "h100-pcie-80gb",
        "h200-nvl-141gb", "h200-sxm-141gb", "h800",
    }  # fmt: skip
    assert names(load_profile("a100-pcie-80gb")) == {
        "a100-pcie-40gb", "a100-sxm-40gb", "a100-sxm-64gb", "a100-sxm-80gb", "a30-24gb",
        "a800-sxm-80gb",
    }  # fmt: skip
    assert names(load_profile("mi300x")) == {"mi300a", "mi325x"}
    assert names(load_profile("h20")) == set()


def test_a_profile_of_ones_own_is_compared_with_its_base_too():
    own = load_profile(BASE).model_copy(update={"name": "ours"})
    assert BASE in names(own)


def test_a_profile_like_its_neighbours_draws_no_remark():
    assert remarks(load_profile(BASE)) == []


def test_a_network_in_bytes_where_bits_were_meant_is_doubtful():
    network = load_profile(BASE).network
    fabric = network.fabric.model_copy(update={"nic_bytes_per_s": 400e9})
    network = network.model_copy(update={"fabric": fabric})
    profile = load_profile(BASE).model_copy(update={"network": network})
    (remark,) = remarks(profile)
    assert (remark.kind, remark.path) == ("doubtful", "network.fabric.nic")
    assert remark.text.endswith("did you mean 400 Gbit/s?")


def test_half_the_rate_of_all_neighbours_is_remarked_upon_with_theirs():
    gemm = dict(load_profile(BASE).kernels.gemm)
    gemm["bf16"] = gemm["bf16"].model_copy(update={"efficiency": 0.4})
    (remark,) = [r for r in remarks(with_kernels(gemm=gemm)) if r.path.startswith("large bf16")]
    assert remark.kind == "unlike"
    assert "h200-sxm-141gb" in remark.text
    assert "median" in remark.text


@pytest.mark.parametrize(
    ("field", "value", "behaviour"),
    [
        ("memory_efficiency", 0.5, "copy of memory [share of bandwidth]"),
        ("memory_floor_s", 20e-6, "smallest kernel [s]"),
        ("launch_s", 50e-6, "launch of a kernel [s]"),
        ("sustained_clock", 0.5, "clock under load [share]"),
    ],
)
def test_each_number_that_is_far_off_is_found(field, value, behaviour):
    assert unlike(with_kernels(**{field: value})) == [behaviour]


def test_slow_links_are_found():
    base = load_profile(BASE)
    up = base.network.scale_up.model_copy(
        update={
            "efficiency": 0.3,
            "in_switch_efficiency": 0.2,
            "latency_s": 40e-6,
            "bulk_latency_s": 50e-6,
            "in_switch_latency_s": 4e-4,
        }
    )
    slow = base.model_copy(update={"network": base.network.model_copy(update={"scale_up": up})})
    assert unlike(slow) == [
        "all_reduce of 8 GPUs, 1 GiB [share of link]",
        "all_reduce of 8 GPUs, 1 KiB [s]",
    ]


def test_a_format_with_a_peak_but_no_kernels_is_missing():
    gemm = {k: v for k, v in load_profile(BASE).kernels.gemm.items() if k != "fp8"}
    assert [r.path for r in remarks(with_kernels(gemm=gemm))] == ["kernels.gemm.fp8"]


def test_a_number_taken_by_default_is_missing():
    text = profile_file(BASE).read_text()
    before, _, fabric = text.rpartition("    bulk_latency:")
    profile = profile_from_document(parse_yaml(before + fabric.partition("\n")[2]))
    (remark,) = remarks(profile)
    assert str(remark) == "missing: network.fabric.bulk_latency: 20 us by default"


def test_a_written_value_is_not_missing():
    text = with_value(profile_file(BASE).read_text(), ["kernels", "launch"], "4 us")
    assert all(r.kind != "missing" for r in remarks(profile_from_document(parse_yaml(text))))
