"""Pictures of rooflines: a point for each kernel that computes, below the roof."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.plots.roofline import build_roofline_figure
from simulator.plots.style import save
from simulator.program.price.roofline import KernelPoint

PEAK, RATE = 1e15, 3e12
POINTS = [
    KernelPoint("mlp", "layer", "forward", 1e12, 1e9, 2e-3, PEAK, RATE),
    KernelPoint("mlp", "layer", "weight gradient", 1e12, 1e9, 2.5e-3, PEAK, RATE),
    KernelPoint("norm", "layer", "forward", 0.0, 3e8, 1.25e-4, PEAK, RATE),
]


def test_shares_of_the_roof_by_hand():
    assert [point.share_of_roof for point in POINTS] == pytest.approx([0.5, 0.4, 0.8])
    assert POINTS[0].intensity == 1000


def test_what_only_moves_bytes_has_a_bar_and_no_point():
    roof, bars = build_roofline_figure(POINTS, "x").axes
    assert len(roof.collections) == 2
    assert [round(patch.get_width()) for patch in bars.patches] == [100, 40, 100, 50, 100, 80]


def near(direction: str, seconds: float) -> KernelPoint:
    return KernelPoint("mlp", "layer", direction, 1e12, 1e9, seconds, PEAK, RATE)


def test_kernels_that_would_hide_one_another_are_slices_of_one_mark():
    together = [near("forward", 2e-3), near("input gradient", 2.04e-3)]
    apart = near("weight gradient", 4e-3)
    roof, _ = build_roofline_figure([*together, apart], "x").axes
    places = [tuple(collection.get_offsets()[0]) for collection in roof.collections]
    assert len(places) == 3
    assert len(set(places)) == 2
    colors = {tuple(collection.get_facecolor()[0]) for collection in roof.collections}
    assert len(colors) == 3
    rates = sorted({rate for _, rate in places})
    assert rates == pytest.approx([250.0, 2e12 / 4.04e-3 / 1e12])


def test_points_lie_below_the_roof():
    roof, _ = build_roofline_figure(POINTS, "x").axes
    for collection in roof.collections:
        [[intensity, tflop_per_s]] = collection.get_offsets()
        assert tflop_per_s <= min(PEAK, intensity * RATE) / 1e12


def test_no_kernels_are_no_picture():
    with pytest.raises(InputError, match="no kernel"):
        build_roofline_figure([], "x")


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_picture_is_written(tmp_path, suffix):
    path = tmp_path / f"roofline{suffix}"
    save(build_roofline_figure(POINTS, "a layer"), path)
    assert path.stat().st_size > 5000


def test_kernels_that_two_kinds_of_layers_have_are_told_apart():
    name, other = "attention_output", "weight gradient"
    points = [
        KernelPoint(name, "dense layer", other, 1e12, 1e9, 2.0, 1e15, 1e12),
        KernelPoint(name, "expert layer", other, 1e12, 1e9, 1.0, 1e15, 1e12),
        KernelPoint("expert_up", "expert layer", other, 1e12, 1e9, 0.5, 1e15, 1e12),
    ]
    _, bars = build_roofline_figure(points, "x").axes
    labels = [label.get_text() for label in bars.get_yticklabels()]
    assert labels[0].startswith("dense: attention output")
    assert labels[1].startswith("expert: attention output")
    assert labels[2] == "expert up, weight gradient"
