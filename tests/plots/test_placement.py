"""The map of ranks: what is drawn, what is folded, what it says."""

from __future__ import annotations

import pytest

from simulator.plots.machines.placement import build_placement_figure, layout_of
from simulator.plots.style import save
from simulator.program.grid.placement import placement
from tests.jobs import network_profile, small_job
from tests.plots.drawn import texts


def test_every_rank_of_a_small_job_has_a_cell_with_its_coordinates():
    job = small_job(gpus=32, tp=4, pp=4)
    written = texts(build_placement_figure(placement(job)))
    for rank in range(32):
        assert f"{rank}: t{rank % 4} d{rank // 4 % 2} p{rank // 8}" in written
    assert [f"pp {stage}" in written for stage in range(4)] == [True] * 4


def test_the_lines_below_name_the_links_that_each_group_crosses():
    written = texts(build_placement_figure(placement(small_job(gpus=32, tp=4, pp=4))))
    assert written.count("scale-up links") == 1
    assert written.count("leaf switches") == 2


def test_a_large_cluster_is_folded_to_what_repeats_and_says_so():
    job = small_job(gpus=16384, global_batch=4096, tp=4, pp=4)
    figure = build_placement_figure(placement(job))
    assert figure.get_size_inches()[1] < 12
    written = texts(figure)
    assert len(written) < 400
    assert any("alike" in text for text in written)
    assert "node 4095" in " ".join(written)


@pytest.mark.parametrize(("gpus", "plan"), [(1, {}), (2, {"tp": 2}), (12, {"tp": 4}), (64, {})])
def test_any_size_is_drawn_to_the_edge_of_the_page_and_not_beyond(gpus, plan, tmp_path):
    placed = placement(small_job(gpus=gpus, global_batch=192, **plan))
    layout = layout_of(placed)
    widest = max(len(row) for row in layout.rows if row is not None)
    assert widest * layout.box_in[0] < 10
    save(build_placement_figure(placed), tmp_path / "map.svg")
    assert (tmp_path / "map.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_a_job_above_one_leaf_names_the_leaf_of_each_node():
    profile = network_profile(fabric={"leaf": {"gpus": 8}})
    written = texts(build_placement_figure(placement(small_job(gpus=16, tp=4, profile=profile))))
    assert "node 3   ranks 12 to 15   leaf 1" in written
