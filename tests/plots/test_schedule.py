"""Pictures of schedules: the right boxes, in the right place; and a gallery of all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from PIL import Image

from reports.make.galleries import schedule_gallery as gallery
from simulator.plots import style
from simulator.plots.schedule import (
    build_schedule_comparison_figure,
    build_schedule_figure,
)
from simulator.plots.style import save
from simulator.program.ir import Kind
from simulator.schedule import SCHEDULES
from simulator.schedule.unit_run import run_schedule
from tests.plots.drawn import artists, face

SHIPPED = Path(__file__).parents[2] / "reports" / "schedules"


def extents(collection: PolyCollection) -> list[tuple[float, float, int]]:
    """(start, end, row) of every box."""
    boxes = [path.get_extents() for path in collection.get_paths()]
    return [(box.x0, box.x1, int(box.y0)) for box in boxes]


def texts(figure: Figure, panel: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[panel].texts]


def legend_labels(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_boxes_and_gaps_lie_where_two_ranks_of_1f1b_run_and_wait() -> None:
    found = artists(build_schedule_figure(run_schedule("1f1b", 2, 2)))
    assert extents(found["forward 0"]) == [(0, 1, 0), (1, 2, 0), (1, 2, 1), (4, 5, 1)]
    assert extents(found["backward 0"]) == [(4, 6, 0), (7, 9, 0), (2, 4, 1), (5, 7, 1)]
    assert extents(found["idle"]) == [(2, 4, 0), (6, 7, 0), (0, 1, 1), (7, 9, 1)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_slot_is_a_box_with_its_number_and_boxes_and_gaps_fill_the_picture(name) -> None:
    run = run_schedule(name, 4, 8)
    figure = build_schedule_figure(run)
    slots = [box for rank in range(4) for box in run.boxes(rank)]
    filled = [c for gid, c in artists(figure).items() if gid.split()[-1].isdigit()]
    assert sum(len(c.get_paths()) for c in filled) == len(slots)
    assert texts(figure) == [str(box.slot.microbatch) for box in slots]
    shown = [*filled, artists(figure)["idle"]]
    area = sum(end - start for c in shown for start, end, _ in extents(c))
    assert area == pytest.approx(4 * run.span)


def test_phases_have_the_colours_of_all_pictures_and_chunks_their_shades() -> None:
    found = artists(build_schedule_figure(run_schedule("zb-v", 4, 8)))
    colors = {name: face(c) for name, c in found.items() if name[-1].isdigit()}
    assert colors == {
        f"{kind} {chunk}": style.chunk_shade(style.KIND_COLOR[kind], chunk, 2)
        for kind in (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
        for chunk in (0, 1)
    }
    assert face(found["forward 1 foot"]) == style.KIND_COLOR[Kind.FORWARD]


@pytest.mark.parametrize("name", ["chimera", "dualpipe"])
def test_two_directions_are_told_apart(name) -> None:
    run = run_schedule(name, 4, 8)
    figure = build_schedule_figure(run)
    found = artists(figure)
    for part in (0, 1):
        # Down the ranks, the first forwards of ranks 0, 1, ... follow each other; up, backwards.
        boxes = extents(found[f"forward {part}"])
        starts = [min(start for start, _, row in boxes if row == rank) for rank in range(4)]
        assert starts == sorted(starts, reverse=part == 1)
    assert "forward (down, up)" in legend_labels(figure)
    assert "2 copies of the model" in figure.texts[1].get_text()


def test_slots_that_run_together_share_a_frame() -> None:
    run = run_schedule("dualpipe", 4, 8)
    frames = extents(artists(build_schedule_figure(run))["joint"])
    joint = [slot for slots in run.order for slot in slots if slot.overlaps_next]
    assert len(frames) == len(joint) > 0
    assert {end - start for start, end, _ in frames} == {3}  # a forward and a backward


def test_a_schedule_that_never_drains_says_so_and_points_onwards() -> None:
    figure = build_schedule_figure(run_schedule("pipedream", 4, 8))
    assert "never drains; 4 to 1 weight versions" in figure.texts[1].get_text()
    arrows = [line for line in figure.axes[0].lines if line.get_gid() == "continues"]
    assert len(arrows[0].get_xdata()) == 4
    assert not list(build_schedule_figure(run_schedule("1f1b", 4, 8)).axes[0].lines)


def test_activations_are_drawn_to_one_scale_with_their_peaks() -> None:
    figure = build_schedule_figure(run_schedule("1f1b", 4, 8))
    areas = artists(figure, panel=1)["held"].get_paths()
    heights = np.array([path.get_extents().height for path in areas])
    assert heights / heights[-1] == pytest.approx([4, 3, 2, 1])
    assert texts(figure, panel=1) == ["4", "3", "2", "1"]


def test_a_comparison_has_a_panel_per_schedule_on_one_time_axis() -> None:
    runs = [run_schedule(name, 4, 8) for name in ("1f1b", "zb-v", "dualpipe", "pipedream")]
    figure = build_schedule_comparison_figure(runs)
    assert [axes.get_title(loc="left").partition(":")[0] for axes in figure.axes] == [
        "1f1b", "zb-v", "dualpipe", "pipedream",
    ]  # fmt: skip
    assert {axes.get_xlim() for axes in figure.axes} == {(0, 33)}
    assert max(end for _, end, _ in extents(artists(figure, 1)["idle"])) == 25.5


def test_pictures_of_long_schedules_leave_the_numbers_out() -> None:
    figure = build_schedule_figure(run_schedule("1f1b", 16, 200))
    assert texts(figure) == []
    assert len(artists(figure)["forward 0"].get_paths()) == 16 * 200


def test_the_suffix_names_the_format(tmp_path) -> None:
    save(build_schedule_figure(run_schedule("1f1b", 2, 2)), tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("name", [*SCHEDULES, "families"])
def test_the_gallery_has_a_small_picture_of_every_schedule(name) -> None:
    path = SHIPPED / f"{name}.png"
    with Image.open(path) as picture:
        assert picture.width == style.WIDTH_IN * style.PNG_DPI
    assert path.stat().st_size < 200_000


def test_the_page_of_the_gallery_is_the_one_that_would_be_written_now() -> None:
    page = gallery.gallery_page(map(gallery.example, SCHEDULES))
    assert (SHIPPED / "README.md").read_text(encoding="utf-8") == page, "run: make schedules"
    assert all(f"## {name}\n" in page and f"({name}.png)" in page for name in SCHEDULES)


def test_the_gallery_is_written_page_and_pictures(tmp_path, monkeypatch) -> None:
    few = {name: SCHEDULES[name] for name in ("1f1b", "chimera")}
    monkeypatch.setattr(gallery, "SCHEDULES", few)
    monkeypatch.setattr(gallery, "FAMILIES", tuple(few))
    written = list(gallery.write_gallery(tmp_path / "new"))
    assert [path.name for path in written] == [
        "1f1b.png", "chimera.png", "families.png", "README.md",
    ]  # fmt: skip
    assert all(path.exists() for path in written)
