"""The comparison of tensor-parallel methods says and draws what was simulated."""

from __future__ import annotations

import pytest

from reports.make.strategies.tensor_methods import GRIDS, METHODS, compare_tensor_methods
from reports.make.strategies.tensor_methods_page import (
    build_tensor_methods_figure,
    comparison_job,
    page_lines,
)


@pytest.fixture(scope="module")
def costs():
    return {"h100-sxm-80gb": compare_tensor_methods(comparison_job(), "h100-sxm-80gb")}


def test_every_grid_is_compared_with_both_lines(costs):
    (listed,) = costs.values()
    assert len(listed) == sum(2 + len(grids) for grids in GRIDS.values())
    assert {cost.method for cost in listed} == set(METHODS)


def test_what_a_method_divides_falls_with_the_gpus(costs):
    """Line by line of the page: 1D sends no less on more GPUs, the others do."""
    (listed,) = costs.values()

    def of(method: str, gpus: int):
        return next(c for c in listed if (c.method, c.gpus) == (method, gpus))

    assert of("1D", 64).sent_bytes > of("1D", 4).sent_bytes
    assert of("2D", 64).sent_bytes < of("2D", 16).sent_bytes < of("2D", 4).sent_bytes
    assert of("3D", 64).sent_bytes < of("3D", 8).sent_bytes
    assert of("2.5D", 64).peak_bytes > of("2D", 64).peak_bytes
    assert of("1D", 64).peak_bytes > 5 * of("2D", 64).peak_bytes


def test_the_page_has_a_row_for_each_and_the_picture_a_bar(costs):
    (listed,) = costs.values()
    rows = [line for line in page_lines(costs) if line.startswith(("| 4 ", "| 8 ", "| 16", "| 64"))]
    assert len(rows) == len(listed)
    figure = build_tensor_methods_figure(costs)
    assert [len(axes.patches) for axes in figure.axes] == [len(listed)] * 3
