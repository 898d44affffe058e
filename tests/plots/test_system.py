"""The drawing of a system: its GPUs, its links with their rates, and its tiers."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.network import SwitchTier
from simulator.described.load import load_profile, profile_names
from simulator.plots.machines.system import build_system_figure
from simulator.plots.style import save
from tests.plots.drawn import texts


def texts_on(profile: HardwareProfile) -> list[str]:
    return texts(build_system_figure(profile))


def on_fabric(name: str, **changes: Any) -> HardwareProfile:
    profile = load_profile(name)
    fabric = profile.network.fabric.model_copy(update=changes)
    network = profile.network.model_copy(update={"fabric": fabric})
    return profile.model_copy(update={"network": network})


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_system_is_drawn_with_all_its_gpus(name, tmp_path):
    profile = load_profile(name)
    figure = build_system_figure(profile)
    written = texts(figure)
    gpus = profile.network.scale_up.gpus
    if profile.network.scale_up.torus is not None:
        assert any(text.startswith(f"one pod: {gpus} GPUs") for text in written)
    elif gpus == profile.network.gpus_per_node:
        drawn = {text.replace("\n", " ") for text in written}
        assert {f"GPU {index}" for index in range(gpus)} <= drawn
    else:
        assert {str(index) for index in range(gpus)} <= set(written)
    save(figure, tmp_path / "system.svg")


@pytest.mark.parametrize(
    ("name", "nics"),
    [("h100-sxm-80gb", ["NIC"] * 8), ("gb200-nvl72", ["4\nNIC"] * 18), ("tpu-v5p", ["NIC"] * 4)],
)
def test_nics_are_those_of_every_host_where_they_can_be_told_apart_and_of_one_in_a_pod(name, nics):
    written = [text for text in texts_on(load_profile(name)) if text.endswith("NIC")]
    assert written == nics


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "h100-sxm-80gb",
            ["450 GB/s per GPU, each direction", "scale-up switches, reduce in the switch"],
        ),
        ("mi300x", ["64.0 GB/s per pair, each direction"]),
        ("dgx1-v100-32gb", ["thin 25.0 GB/s, thick 50.0 GB/s, each direction"]),
        ("l40s", ["PCIe through host bridges: 32.0 GB/s per GPU, each direction"]),
        ("tpu-v6e", ["2D torus, 100 GB/s per link, each direction; rings of 16 chips"]),
        ("gb200-nvl72", ["one rack: 72 GPUs in 18 hosts, switched"]),
    ],
)
def test_links_carry_the_rates_of_the_profile(name, words):
    assert set(words) <= set(texts_on(load_profile(name)))


def test_rails_and_scalable_units_are_counted():
    written = texts_on(load_profile("h100-sxm-80gb"))
    assert written.count("8 rails, 32 nodes\n256 GPUs") == 2
    assert "non-blocking\n50.0 GB/s per GPU" in written


def test_three_tiers_say_how_narrow_far_and_busy_each_is():
    leaf = SwitchTier(gpus=32, oversubscription=2.0)
    pod = SwitchTier(gpus=1024, oversubscription=4.0, latency="3 us", background_load=0.5)
    written = texts_on(on_fabric("h100-sxm-80gb", leaf=leaf, pod=pod, wiring="fat-tree"))
    assert "2 : 1\n25.0 GB/s per GPU" in written
    assert "4 : 1, +3 us, 50 % taken\n3.12 GB/s per GPU" in written
    assert {"leaf", "core", "pod of 1,024 GPUs"} <= set(written)


def test_a_system_without_nics_says_that_nothing_leaves_the_node():
    assert "none: no NICs" in texts_on(on_fabric("h100-sxm-80gb", nics_per_node=0))


def test_a_fabric_of_unknown_shape_is_not_given_one():
    assert any("topology not given" in text for text in texts_on(load_profile("mi300x")))
