"""The pipeline picture: the right boxes, in the right place, in the right colour."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb

from simulator.plots import style
from simulator.plots.pipeline import blend, build_pipeline_figure, build_pipelines_figure
from simulator.plots.style import save
from simulator.program.ir import (
    Category,
    Kind,
    Operation,
    Part,
    Program,
    RankClass,
    Stream,
    Work,
)
from simulator.results.simulation import run_step
from simulator.results.step import StepResult
from simulator.results.views.pipeline_boxes import Look, bands, build_scene, row_layout
from tests.factories import Pipeline, replay, step_result, with_title
from tests.jobs import host_profile, small_job
from tests.plots.drawn import artists, face

FULL = Pipeline(
    stages=4,
    microbatches=8,
    chunks=2,
    recompute_s=0.5,
    tensor_parallel_s=0.25,
    transfer_s=0.125,
    gradient_s=1.0,
    gather_s=0.5,
    optimizer_s=0.25,
)
LONG = Pipeline(stages=8, microbatches=400)


def corners(collection: PolyCollection) -> np.ndarray:
    """Corner points, shape (boxes, 4, 2)."""
    return np.array([path.vertices[:4] for path in collection.get_paths()]).reshape(-1, 4, 2)


def area_of(collection: PolyCollection) -> float:
    """Seconds times rows."""
    size = np.ptp(corners(collection), axis=1)
    return float(np.sum(size[:, 0] * size[:, 1]))


def test_there_is_one_box_per_microbatch_stage_and_direction() -> None:
    found = artists(build_pipeline_figure(Pipeline(stages=4, microbatches=8).result()))
    assert len(corners(found["forward 0"])) == 4 * 8
    assert len(corners(found["backward 0"])) == 4 * 8


def test_boxes_lie_where_their_operations_ran() -> None:
    # Two stages, one microbatch: F on 0..1 and 1..2, B on 2..4 and 4..6.
    figure = build_pipeline_figure(Pipeline(stages=2, microbatches=1).result())
    forward = corners(artists(figure)["forward 0"])
    backward = corners(artists(figure)["backward 0"])
    assert forward[:, (0, 1), 0].tolist() == [[0, 1], [1, 2]]
    assert backward[:, (0, 1), 0].tolist() == [[4, 6], [2, 4]]
    assert np.floor(forward[:, 0, 1]).tolist() == [0, 1]


def test_no_box_leaves_its_row() -> None:
    for collection in artists(build_pipeline_figure(FULL.result())).values():
        y = corners(collection)[:, :, 1]
        assert (np.floor(y.min(axis=1)) == np.ceil(y.max(axis=1)) - 1).all()


def test_work_and_waits_fill_every_row_exactly() -> None:
    result = FULL.result()
    area = {
        name: area_of(collection)
        for name, collection in artists(build_pipeline_figure(result)).items()
        if not name.startswith("lane")
    }
    top, bottom = row_layout(result).compute
    assert sum(area.values()) == pytest.approx(4 * result.step_time_s * (bottom - top))
    assert area["wait bubble"] == pytest.approx(
        4 * result.breakdown_s[Category.BUBBLE] * (bottom - top)
    )


def test_the_area_of_a_band_is_its_share_of_the_time() -> None:
    timeline = FULL.timeline()
    operation = next(o for o in timeline.program.operations if o.kind is Kind.BACKWARD)
    shares = dict(bands(operation))  # 2 s of work, 0.5 s recompute, 0.25 s communication
    assert shares[None] == pytest.approx(2 / 2.75)
    assert shares[Category.RECOMPUTE] == pytest.approx(0.5 / 2.75)
    assert shares[Category.TENSOR_PARALLEL] == pytest.approx(0.25 / 2.75)


def test_boxes_have_the_colour_of_what_they_are_and_chunks_differ() -> None:
    found = artists(build_pipeline_figure(FULL.result()))
    assert face(found["forward 0"]) == style.KIND_COLOR[Kind.FORWARD]
    assert face(found["backward 0"]) == style.KIND_COLOR[Kind.BACKWARD]
    assert face(found["forward 1"]) == style.chunk_shade(style.BLUE, 1, 2) != style.BLUE
    assert face(found["backward 1 recompute"]) == style.CATEGORY_COLOR[Category.RECOMPUTE]
    assert face(found["lane reduce_scatter"]) == style.KIND_COLOR[Kind.REDUCE_SCATTER]


def test_every_wait_is_hatched_and_no_work_is() -> None:
    for name, collection in artists(build_pipeline_figure(FULL.result())).items():
        assert bool(collection.get_hatch()) == name.startswith("wait")


def test_bubble_is_pale_and_exposed_communication_has_its_colour() -> None:
    found = artists(build_pipeline_figure(FULL.result()))
    assert min(to_rgb(face(found["wait bubble"]))) > 0.9
    hatch = to_hex(found["wait data_parallel"].get_edgecolor()[0]).upper()
    assert hatch == style.CATEGORY_COLOR[Category.DATA_PARALLEL]


def test_transfers_are_drawn_once_on_the_lane_of_the_sender() -> None:
    result = FULL.result()
    sends = sum(o.kind is Kind.SEND_RECV for o in result.timeline.program.operations)
    assert len(corners(artists(build_pipeline_figure(result))["lane send_recv"])) == sends


def test_microbatch_numbers_stand_in_their_boxes() -> None:
    figure = build_pipeline_figure(Pipeline(stages=2, microbatches=2).result())
    found = {(t.get_position(), t.get_text()) for t in figure.axes[0].texts}
    numbers = sorted((round(x, 6), text) for (x, y), text in found if y < 1)
    # Stage 0 runs F0 0..1, F1 1..2, B0 4..6, B1 7..9.
    assert numbers == [(0.5, "0"), (1.5, "1"), (5.0, "0"), (8.0, "1")]


def split_forward() -> StepResult:
    """One stage, one microbatch: forward in pieces on 0..1, 1..3 and, after a wait, 5..6."""
    program = Program((RankClass("stage 0", 0, 1, 0),))
    lane = ((0, Stream.COMPUTE),)
    for seconds, category in ((1.0, Category.FORWARD), (2.0, Category.TENSOR_PARALLEL)):
        work = Work(seconds, (Part("piece", category, seconds),))
        program.add(Operation(Kind.FORWARD, lane, work, Category.FORWARD, microbatch=0, chunk=0))
    work = Work(5.0, (Part("all_gather", Category.DATA_PARALLEL, 5.0),))
    lanes = ((0, Stream.DATA_PARALLEL),)
    gather = program.add(Operation(Kind.ALL_GATHER, lanes, work, Category.DATA_PARALLEL))
    work = Work(1.0, (Part("piece", Category.FORWARD, 1.0),))
    last = Operation(
        Kind.FORWARD, lane, work, Category.FORWARD, after=(gather,), microbatch=0, chunk=0
    )
    program.add(last)
    return step_result(replay(program))


def test_pieces_of_a_microbatch_without_a_gap_are_one_box() -> None:
    found = artists(build_pipeline_figure(split_forward()))
    assert sorted(corners(found["forward 0"])[:, (0, 1), 0].tolist()) == [[0, 3], [5, 6]]
    band = corners(found["forward 0 tensor_parallel"])
    assert band[:, (0, 1), 0].tolist() == [[0, 3]]
    top, bottom = row_layout(split_forward()).compute
    assert np.ptp(band[0, :, 1]) == pytest.approx((bottom - top) * 2 / 3)


def test_a_microbatch_in_pieces_is_numbered_once_on_the_longest() -> None:
    texts = build_pipeline_figure(split_forward()).axes[0].texts
    assert [(t.get_text(), t.get_position()[0]) for t in texts] == [("0", 1.5)]


def test_finely_split_operations_do_not_turn_a_short_step_into_an_overview() -> None:
    program = Program((RankClass("stage 0", 0, 1, 0),))
    lane = ((0, Stream.COMPUTE),)
    for microbatch in range(500):  # 5 s of slivers, then 100 s in ten boxes
        piece = 0.01 if microbatch < 490 else 10.0
        work = Work(piece, (Part("piece", Category.FORWARD, piece),))
        operation = Operation(Kind.FORWARD, lane, work, Category.FORWARD, microbatch=microbatch)
        program.add(operation)
    assert len(build_pipeline_figure(step_result(replay(program))).axes) == 1


def test_numbers_are_only_where_they_fit() -> None:
    figure = build_pipeline_figure(Pipeline(stages=8, microbatches=32).result())
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert 0 < len(axes.texts) < 2 * 8 * 32  # too wide for some boxes
    boxes = np.concatenate([corners(c) for c in artists(figure).values()])
    centres = boxes.mean(axis=1)
    for text in axes.texts:
        box = boxes[np.abs(centres - text.get_position()).sum(axis=1).argmin()]
        left, right = axes.transData.transform(box[:2])[:, 0]
        extent = text.get_window_extent()
        assert extent.x0 >= left - 0.5
        assert extent.x1 <= right + 0.5


def test_the_title_names_the_job_and_its_figures() -> None:
    result = Pipeline(stages=4, microbatches=8).result()  # bubble 3/11
    title = " ".join(t.get_text() for t in build_pipeline_figure(result).texts)
    assert result.title in title
    assert "step 33.0 s" in title
    assert "MFU 40.4 %" in title
    assert "bubble 27.3 %" in title


@pytest.mark.parametrize("plan", [FULL, Pipeline(16, 32), LONG, Pipeline(64, 96), Pipeline(1, 2)])
def test_nothing_is_clipped_and_the_legend_covers_no_panel(plan: Pipeline) -> None:
    figure = build_pipeline_figure(plan.result())
    figure.draw_without_rendering()
    width, height = figure.get_size_inches() * figure.dpi
    legend = figure.legends[0].get_window_extent()
    for axes in figure.axes:
        extent = axes.get_tightbbox()
        assert extent.x0 >= 0
        assert extent.x1 <= width
        assert extent.y1 <= height
        assert not extent.overlaps(legend)
    assert legend.x1 <= width
    assert legend.y0 >= 0


@pytest.mark.parametrize("length", [20, 90, 400])
def test_a_title_of_any_length_stays_inside_the_picture(length: int) -> None:
    title = ("Llama 3.1 405B on 16384 x H100, tp8 pp16 dp128, " * 9)[:length]
    figure = build_pipeline_figure(with_title(Pipeline(2, 2).result(), title))
    figure.draw_without_rendering()
    width = figure.get_size_inches()[0] * figure.dpi
    assert all(text.get_window_extent().x1 <= width for text in figure.texts)


def test_names_of_rows_never_overlap() -> None:
    for stages in (4, 16, 64):
        figure = build_pipeline_figure(Pipeline(stages, 16).result())
        figure.draw_without_rendering()
        extents = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
        tops = sorted((e.y0, e.y1) for e in extents)
        assert all(a[1] <= b[0] for a, b in pairwise(tops))


def test_the_legend_names_everything_in_the_picture_once() -> None:
    legend = build_pipeline_figure(FULL.result()).legends[0]
    names = [text.get_text() for text in legend.get_texts()]
    assert sorted(names) == sorted(
        [
            "forward (chunks 0 to 1)",
            "backward (chunks 0 to 1)",
            "optimizer",
            "recompute",
            "tensor parallel",
            "send recv",
            "all gather",
            "reduce scatter",
            "data parallel, exposed",
            "pipeline, exposed",
            "bubble",
        ]
    )


def test_few_stages_stand_for_many_from_the_first_to_the_last() -> None:
    figure = build_pipeline_figure(Pipeline(16, 16).result(), max_stages=4)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["stage 0", "stage 5", "stage 10", "stage 15"]


def test_a_long_step_becomes_an_overview_with_three_close_ups() -> None:
    result = LONG.result()
    figure = build_pipeline_figure(result)
    assert len(figure.axes) == 4
    assert figure.axes[0].get_xlim() == (0, result.step_time_s)
    first, middle, last = (axes.get_xlim() for axes in figure.axes[1:])
    assert first[0] == 0
    assert sum(middle) / 2 == pytest.approx(result.step_time_s / 2)
    assert last[1] == pytest.approx(result.step_time_s)


def test_close_ups_draw_only_what_is_in_view() -> None:
    figure = build_pipeline_figure(LONG.result())
    for panel in (1, 2, 3):
        start, end = figure.axes[panel].get_xlim()
        for collection in artists(figure, panel).values():
            x = corners(collection)[:, :, 0]
            assert (x.min(axis=1) < end).all()
            assert (x.max(axis=1) > start).all()


def test_blending_in_one_column_gives_the_mean_colour_of_the_stage() -> None:
    # One stage, one microbatch: 1 s forward, 2 s backward, no wait.
    result = Pipeline(stages=1, microbatches=1).result()
    layout = row_layout(result)
    image = blend(build_scene(result, [0], layout), layout, 1, result.step_time_s, 1)
    blue, green = np.array(to_rgb(style.BLUE)), np.array(to_rgb(style.GREEN))
    np.testing.assert_allclose(image[0, 0], (blue + 2 * green) / 3, atol=1e-12)


def test_blending_keeps_pure_colours_where_one_thing_runs() -> None:
    result = Pipeline(stages=1, microbatches=1).result()
    layout = row_layout(result)
    image = blend(build_scene(result, [0], layout), layout, 1, result.step_time_s, 3)
    expected = [to_rgb(style.BLUE), to_rgb(style.GREEN), to_rgb(style.GREEN)]
    np.testing.assert_allclose(image[0], expected, atol=1e-12)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_is_written_and_the_same_step_gives_the_same_bytes(tmp_path, suffix) -> None:
    result = FULL.result()
    for name in ("a", "b"):
        save(build_pipeline_figure(result), tmp_path / f"{name}.{suffix}")
    first = (tmp_path / f"a.{suffix}").read_bytes()
    assert first.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    assert first == (tmp_path / f"b.{suffix}").read_bytes()


def test_pictures_leave_no_window_manager_behind() -> None:
    import sys

    build_pipeline_figure(Pipeline(2, 2).result())
    loaded = sys.modules.get("matplotlib.pyplot")
    assert loaded is None or not loaded.get_fignums()


def test_copies_and_cpus_have_lanes_below_the_work() -> None:
    plan = {"stack": "deepspeed", "zero": 2, "offload": {"optimizer": "cpu"}}
    result = run_step(small_job(profile=host_profile(), global_batch=2, **plan))
    layout = row_layout(result)
    assert set(layout.host) == {Stream.TO_HOST, Stream.HOST, Stream.TO_DEVICE}
    edges = [layout.compute, *sorted(layout.host.values())]
    assert all(above[1] < below[0] for above, below in pairwise(edges))
    scene = build_scene(result, [0], layout)
    assert {Look(Kind.COPY_TO_HOST), Look(Kind.COPY_TO_DEVICE)} <= set(scene.lanes)


RUNS = [
    ("quick", Pipeline(stages=2, microbatches=4)),
    ("slow", Pipeline(stages=4, microbatches=16)),
]


def test_steps_of_several_jobs_share_one_axis_that_is_as_long_as_the_longest() -> None:
    results = [(name, plan.result()) for name, plan in RUNS]
    figure = build_pipelines_figure("both", results)
    longest_s = max(result.step_time_s for _, result in results)
    assert len(figure.axes) == 2
    for axes, (name, result) in zip(figure.axes, results, strict=True):
        assert axes.get_xlim() == pytest.approx((0.0, longest_s))
        heading = axes.get_title(loc="left")
        assert heading.startswith(f"{name}: step ")
        assert f"bubble {100 * result.bubble_fraction:.1f} %" in heading
    ends = [
        max(corners(each)[..., 0].max() for each in artists(figure, panel).values())
        for panel in range(2)
    ]
    assert ends == pytest.approx([result.step_time_s for _, result in results])


def test_every_look_of_several_jobs_is_in_one_legend_once() -> None:
    results = [(name, plan.result()) for name, plan in RUNS]
    figure = build_pipelines_figure("both", results)
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert len(labels) == len(set(labels))
    alone = build_pipeline_figure(results[1][1])
    for_one = [text.get_text() for legend in alone.legends for text in legend.get_texts()]
    assert set(for_one) <= set(labels)
