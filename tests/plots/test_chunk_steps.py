"""A collective drawn step by step."""

from __future__ import annotations

import pytest
from matplotlib.collections import PolyCollection

from simulator.engine.chunked import ChunkedCollective, simulate_collectives
from simulator.plots.machines.chunk_steps import build_chunk_steps_figure
from simulator.plots.style import save

RATE = 50e9


def figure_of(algorithm: str, ranks: int, chunks: int = 1):
    one = ChunkedCollective(algorithm, 64e6, range(ranks), chunks)
    return build_chunk_steps_figure(one, simulate_collectives([one], RATE, 5e-6)[0], RATE)


def headings(figure) -> list[str]:
    return [t.get_text() for t in figure.axes[0].texts if t.get_weight() == "bold"]


def test_a_ring_of_four_has_a_panel_for_the_start_and_each_of_its_six_steps():
    assert headings(figure_of("ring_all_reduce", 4)) == [
        "start", *(f"after step {step}" for step in range(1, 7)),
    ]  # fmt: skip


def test_every_chunk_is_a_box_on_its_link():
    figure = figure_of("ring_all_reduce", 4)
    (boxes,) = (c for c in figure.axes[1].collections if isinstance(c, PolyCollection))
    assert len(boxes.get_paths()) == 4 * 6
    names = [label.get_text() for label in figure.axes[1].get_yticklabels()]
    assert names == ["0 to 1", "1 to 2", "2 to 3", "3 to 0"]


def test_a_large_ring_shows_its_first_and_last_steps_and_some_between():
    shown = headings(figure_of("ring_all_reduce", 12))
    assert len(shown) == 15
    assert (shown[0], shown[-1]) == ("start", "after step 22")


@pytest.mark.parametrize(
    ("algorithm", "ranks", "chunks"),
    [
        ("ring_all_reduce", 1, 1),
        ("ring_all_gather", 2, 4),
        ("tree_all_reduce", 16, 2),
        ("chain_broadcast", 8, 8),
        ("pairwise_all_to_all", 6, 1),
    ],
)
def test_every_algorithm_is_drawn_on_one_page(algorithm, ranks, chunks, tmp_path):
    figure = figure_of(algorithm, ranks, chunks)
    assert figure.get_size_inches()[1] < 18
    save(figure, tmp_path / "steps.png")
    assert (tmp_path / "steps.png").stat().st_size > 5_000
