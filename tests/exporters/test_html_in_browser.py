"""The page of a deep pipeline in a real browser: it opens, hovers, zooms, hides, prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.exporters.html.run_report import Run
from tests.exporters.chromium import NEEDS_CHROMIUM, WatchedPage
from tests.exporters.pages import HOSTILE, compare_page, page_of, result_of

pytestmark = NEEDS_CHROMIUM


GUTTER_PX = 104
"""Width of the names on the left."""

PLACE = """([stream, name]) => {
    const { timeline, view } = clustersim;
    const slot = timeline.slots.find(({ lane }) => lane.rankClass === 3 && lane.stream === stream);
    const { lane } = slot;
    const row = lane.sheet.findIndex(
        (sheet, row) => timeline.sheets[sheet].name === name && lane.start[row] >= view.from);
    const plot = timeline.elements.canvas.clientWidth - GUTTER;
    return [timeline.x((lane.start[row] + lane.end[row]) / 2, plot), slot.top + slot.height / 2];
}"""
"""Where on the canvas the middle of the first such operation of stage 3 is."""

PIXELS = """() => {
    const canvas = clustersim.timeline.elements.canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const colors = {};
    for (let i = 0; i < data.length; i += 4) {
        const color = `${data[i]},${data[i + 1]},${data[i + 2]}`;
        colors[color] = (colors[color] || 0) + 1;
    }
    return colors;
}"""
"""How many pixels of the timeline have each colour."""


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """16 stages, 128 microbatches."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page_of(result_of(name=HOSTILE)), encoding="utf-8")
    return path


class Seen(WatchedPage):
    """A page under test, with what it asked for."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        super().__init__(browser, **options)
        self.requests: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.canvas = self.page.locator("#timeline")

    def span_s(self) -> float:
        return self.ask("clustersim.view.span")

    def place(self, stream: str, name: str) -> tuple[float, float]:
        """Where on the screen the middle of the first such operation of stage 3 is."""
        box = self.canvas.bounding_box()
        x, y = self.page.evaluate(PLACE, [stream, name])
        return box["x"] + x, box["y"] + y

    def hover(self, stream: str, name: str) -> str:
        self.page.mouse.move(*self.place(stream, name))
        return self.page.locator("#tooltip").inner_text()

    def redrawn(self) -> None:
        self.ask("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


@pytest.fixture
def seen(browser, file) -> Iterator[Seen]:
    page = Seen(browser, file)
    yield page
    assert page.errors == []
    page.page.close()


def test_a_page_opens_without_an_error_and_asks_for_nothing_else(seen, file):
    assert seen.requests == [file.as_uri()]
    assert HOSTILE in seen.page.locator("h1").inner_text()
    assert seen.ask("clustersim.timeline.rows") > 10_000
    assert seen.ask("typeof alerted") == "undefined"


def test_hovering_an_operation_shows_its_numbers_and_sources(seen):
    seen.ask("clustersim.view.show(0, clustersim.view.stepS / 50)")
    text = seen.hover("compute", "forward")
    assert text.startswith("forward of microbatch 0")
    assert "stage 3 (2 ranks of the class), compute" in text
    assert "TFLOP/s" in text
    assert "kernels: " in text
    assert "bubble" in seen.hover("waits", "bubble")
    seen.page.mouse.move(5, 5)
    assert seen.page.locator("#tooltip").is_hidden()


def test_the_wheel_zooms_around_the_pointer_and_dragging_moves(seen):
    whole_s = seen.span_s()
    box = seen.canvas.bounding_box()
    x, y = box["x"] + 700, box["y"] + 40
    share = (x - box["x"] - GUTTER_PX) / (box["width"] - GUTTER_PX)
    time_at = f"clustersim.view.from + {share} * clustersim.view.span"
    before_s = seen.ask(time_at)
    seen.page.mouse.move(x, y)
    seen.page.keyboard.down("Control")
    for _ in range(6):
        seen.page.mouse.wheel(0, -100)
    seen.page.keyboard.up("Control")
    seen.until(f"clustersim.view.span < {whole_s / 8}")
    assert seen.ask(time_at) == pytest.approx(before_s, rel=1e-6)
    seen.page.mouse.down()
    seen.page.mouse.move(x - 200, y, steps=4)
    seen.page.mouse.up()
    moved_s = 200 / (box["width"] - GUTTER_PX) * seen.span_s()
    assert seen.ask(time_at) == pytest.approx(before_s + moved_s, rel=1e-3)
    seen.page.get_by_role("button", name="whole step").click()
    assert seen.span_s() == whole_s


def test_the_wheel_alone_scrolls_the_page(seen):
    box = seen.canvas.bounding_box()
    seen.page.mouse.move(box["x"] + 300, box["y"] + 40)
    seen.page.mouse.wheel(0, 300)
    seen.until("scrollY > 0")
    assert seen.span_s() == seen.ask("clustersim.view.stepS")


def test_clicking_an_operation_lists_what_it_is_made_of(seen):
    seen.ask("clustersim.view.show(0, clustersim.view.stepS / 50)")
    seen.page.mouse.click(*seen.place("compute", "forward"))
    details = seen.page.locator("#details")
    assert details.locator("h3").inner_text() == "forward of microbatch 0"
    kernels = details.locator("tbody tr td:first-child").all_inner_texts()
    assert {"qkv", "attention", "mlp_up"} <= set(kernels)


def test_the_keyboard_alone_reaches_every_operation(seen):
    seen.canvas.focus()
    title = seen.page.locator("#details h3")
    titles = []
    for _ in range(3):
        seen.page.keyboard.press("ArrowRight")
        titles.append(title.inner_text())
    assert titles == [
        f"{what} of microbatch {i}"
        for what, i in [("forward", 0), ("send recv", 0), ("forward", 1)]
    ]
    where = "clustersim.timeline.chosen.lane.rankClass"
    for _ in range(40):
        seen.page.keyboard.press("ArrowDown")
    assert seen.ask(where) == 15
    whole_s = seen.span_s()
    seen.page.keyboard.press("f")
    assert seen.span_s() < whole_s / 20
    seen.page.keyboard.press("-")
    seen.page.keyboard.press("Shift+ArrowLeft")
    seen.page.keyboard.press("0")
    assert seen.span_s() == whole_s
    seen.page.keyboard.press("Escape")
    assert seen.ask("clustersim.timeline.chosen") is None


def test_streams_can_be_hidden(seen):
    seen.redrawn()
    forward = "0,114,178"
    seen.ask("clustersim.view.show(0, clustersim.view.stepS / 50)")
    seen.redrawn()
    assert seen.ask(PIXELS).get(forward, 0) > 1000
    seen.page.get_by_label("compute", exact=True).uncheck()
    seen.redrawn()
    assert seen.ask(PIXELS).get(forward, 0) == 0


def test_streams_that_are_switched_on_find_room(seen):
    room = "clustersim.timeline.elements.canvas.clientHeight"
    few = seen.ask(room)
    for box in seen.page.locator("#streams input").all():
        box.check()
    assert seen.ask(room) == pytest.approx(0.7 * 900, abs=3)
    assert few < 500
    # Scrolled down, the last row is in sight.
    last = """() => {
        const { timeline } = clustersim, { scroller, canvas } = timeline.elements;
        scroller.scrollTop = 1e6;
        const bottom = timeline.classes.length * timeline.rowHeight - timeline.scrolled;
        return canvas.clientHeight - AXIS_PX - bottom;
    }"""
    assert abs(seen.ask(last)) <= 3


def test_seen_from_afar_each_pixel_is_the_mean_of_what_happened_in_it(seen):
    # The same step, drawn blended and added up from its operations.
    shares = seen.ask(
        """() => {
            const { timeline, view } = clustersim;
            const lane = timeline.lanes.find((each) => each.rankClass === 7);
            const palette = timeline.palettes[0], width = 97, out = new Float64Array(width * 4);
            lane.prepare(palette);
            lane.blend(view.from, view.to, width, out);
            const slice = view.span / width, direct = new Float64Array(width);
            for (let row = 0; row < lane.count; row++) {
                for (let x = 0; x < width; x++) {
                    const from = Math.max(lane.start[row], x * slice);
                    const to = Math.min(lane.end[row], (x + 1) * slice);
                    direct[x] += Math.max(0, to - from) / slice;
                }
            }
            return [[...direct], [...out].filter((_, i) => i % 4 === 0)];
        }"""
    )
    assert shares[1] == pytest.approx(shares[0], abs=1e-9)
    assert max(shares[0]) > 0.9


def test_the_picture_of_memory_follows_the_timeline_and_reads_out(seen):
    seen.page.locator("#memory").hover(position={"x": 600, "y": 100})
    text = seen.page.locator("#memory-now").inner_text()
    assert re.match(r"[\d.]+ ms: \d+ MiB \(activations ", text)
    assert seen.page.locator("#memory-class option").count() == 16


@pytest.mark.parametrize(("scheme", "ground"), [("light", "255,255,255"), ("dark", "22,24,28")])
def test_a_page_follows_the_light_and_dark_of_its_reader(browser, file, scheme, ground):
    seen = Seen(browser, file, color_scheme=scheme)
    seen.redrawn()
    pixels = seen.ask(PIXELS)
    assert max(pixels, key=pixels.get) == ground
    body = seen.ask("getComputedStyle(document.body).backgroundColor")
    assert body.replace(" ", "") == f"rgb({ground})"
    assert seen.errors == []


def test_a_dark_page_is_printed_light_and_whole(browser, file, tmp_path):
    seen = Seen(browser, file, color_scheme="dark")
    seen.ask("dispatchEvent(new Event('beforeprint'))")
    pixels = seen.ask(PIXELS)
    assert max(pixels, key=pixels.get) == "255,255,255"
    seen.page.pdf(path=str(tmp_path / "page.pdf"))
    assert (tmp_path / "page.pdf").stat().st_size > 20_000
    seen.ask("dispatchEvent(new Event('afterprint'))")
    assert "22,24,28" in seen.ask(PIXELS)
    assert seen.errors == []


def test_timelines_that_are_compared_share_one_axis(browser, tmp_path):
    results = [result_of(layers=4, gpus=8, pp=pp, microbatches=8) for pp in (4, 2)]
    runs = [Run(f"pp {r.job.plan.pp}", r, r.job) for r in results]
    file = tmp_path / "compare.html"
    file.write_text(compare_page(runs), encoding="utf-8")
    seen = Seen(browser, file)
    longest_s = max(result.step_time_s for result in results)
    assert seen.span_s() == longest_s
    assert "not from zero" in seen.page.locator("th.bars").inner_text()
    seen.page.get_by_role("button", name="+").click()
    assert seen.span_s() == pytest.approx(longest_s / 2)
    for canvas in seen.page.locator("canvas.timeline").all():
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        assert box["width"] > 1000
        seen.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 12)
        assert seen.page.locator("#details h3").count() == 1
        seen.page.keyboard.press("Escape")
    assert seen.errors == []
    assert seen.requests == [file.as_uri()]
