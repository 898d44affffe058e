"""The page of a step: one file, nothing fetched, nothing run that a job file says."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
import yaml

import simulator as sim
from simulator.exporters.html.page import render
from simulator.exporters.html.run_report import headline, write_run_report
from simulator.exporters.html.timeline_data import WAITS, source_blocks
from simulator.plots import style
from simulator.program.ir import Kind
from simulator.units import format_bytes
from tests.exporters.pages import HOSTILE, advice_of, column, data_in, page_of, result_of

SMALL = {"layers": 4, "gpus": 8, "pp": 4, "microbatches": 8}


class Tags(HTMLParser):
    """Tags and attributes of a page, and the text of each script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._in_script = False

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(result_of(**SMALL))


def test_a_page_asks_for_nothing_from_anywhere(page):
    fetching = {"src", "href", "srcset", "data", "action", "poster", "background"}
    asked = [
        value
        for tag, attributes in Tags(page).found
        for name, value in attributes.items()
        if name in fetching and not (tag == "a" and str(value).startswith("#"))
    ]
    assert asked == []
    assert "url(" not in page
    assert "@import" not in page


def test_the_policy_forbids_every_request_and_every_other_script(page):
    tags = Tags(page)
    policies = [a["content"] for t, a in tags.found if a.get("http-equiv")]
    code = tags.scripts[-1]
    digest = b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert len(policies) == 1
    assert policies[0].startswith(f"default-src 'none'; script-src 'sha256-{digest}';")


def test_a_model_called_like_a_script_is_only_a_name():
    hostile = page_of(result_of(**SMALL, name=HOSTILE))
    tags = Tags(hostile)
    assert [a.get("type") for t, a in tags.found if t == "script"] == ["application/json", None]
    assert "alert(1)" not in "".join(tags.scripts)
    title = re.search(r"<h1>(.*?)</h1>", hostile)
    assert title
    assert unescape(title.group(1)).startswith(HOSTILE)


def test_data_cannot_end_the_block_that_holds_it():
    page = render("base.html", {"title": "x"}, data={"name": "</script><b>"})
    assert "</script><b>" not in page
    assert data_in(page) == {"name": "</script><b>"}


def test_the_timeline_of_a_page_is_the_step_row_by_row(page):
    result = result_of(**SMALL)
    timeline, data = result.timeline, data_in(page)["timeline"]
    lanes = [lane for lane in data["lanes"] if lane["stream"] != WAITS]
    rows = sum(lane["count"] for lane in lanes)
    assert rows == timeline.operation.size
    np.testing.assert_array_equal(column(data, "start_s")[:rows], timeline.start_s)
    np.testing.assert_array_equal(column(data, "end_s")[:rows], timeline.end_s)
    names = [data["sheets"][i]["name"] for i in column(data, "sheet")[:rows]]
    assert names == [style.words(operation.kind) for operation in timeline.operations]
    microbatches = [operation.microbatch for operation in timeline.operations]
    assert column(data, "microbatch")[:rows].tolist() == microbatches
    assert data["step_s"] == result.step_time_s


def test_no_lane_of_a_page_goes_back_in_time(page):
    data = data_in(page)["timeline"]
    start_s, end_s = column(data, "start_s"), column(data, "end_s")
    for lane in data["lanes"]:
        rows = slice(lane["first"], lane["first"] + lane["count"])
        assert np.all(end_s[rows][:-1] <= start_s[rows][1:] * (1 + 1e-12)), lane
    assert any(lane["stream"] == WAITS for lane in data["lanes"])


def test_an_operation_says_its_kernels_and_where_their_numbers_come_from(page):
    data = data_in(page)
    forward = next(s for s in data["timeline"]["sheets"] if s["name"] == Kind.FORWARD.value)
    assert forward["alone_s"] == pytest.approx(sum(part[2] for part in forward["parts"]))
    assert set(forward["sources"]) == {"kernels", "network.scale_up"}
    assert "fitted" in data["sources"]["kernels"]
    transfer = next(s for s in data["timeline"]["sheets"] if s["name"] == "send recv")
    assert "kernels" not in transfer["sources"]


def test_colours_are_those_of_the_pictures(page):
    sheets = data_in(page)["timeline"]["sheets"]
    forward = next(sheet for sheet in sheets if sheet["name"] == "forward")
    assert forward["bands"][0][0] == [style.KIND_COLOR[Kind.FORWARD]] * 2
    optimizer = next(sheet for sheet in sheets if sheet["name"] == "optimizer")
    light, dark = optimizer["bands"][0][0]
    assert light == style.KIND_COLOR[Kind.OPTIMIZER]
    assert style.luminance(dark) > 4 * style.luminance(light)


def test_waits_of_a_page_are_called_what_pictures_call_them(page):
    legend = re.findall(r'swatch wait".*?</i> ([^<]+)</li>', page)
    assert {"bubble", "tensor parallel, exposed"} <= set(legend)
    assert set(legend) <= {sheet["name"] for sheet in data_in(page)["timeline"]["sheets"]}


def test_the_job_of_a_page_can_be_run_again(page):
    found = re.search(r'<pre id="job">(.*?)</pre>', page, re.DOTALL)
    assert found
    assert yaml.safe_load(unescape(found.group(1))) == dict(result_of(**SMALL).job.document)


def test_a_page_says_the_verdict_the_gains_and_what_is_assumed(page):
    for text in (
        "raising vpp from 1 to 2 gains 6.2 %",
        "+6.2 %",
        '<tr class="assumed"><th scope="row"><code>kernels.gemm.bf16.efficiency</code>',
    ):
        assert text in page


def test_too_many_operations_leave_out_whole_classes_and_the_page_says_so():
    result = result_of(**SMALL)
    page = page_of(result, most_rows=result.timeline.operation.size * 2 // 3)
    data = data_in(page)["timeline"]
    names = [each["name"] for each in data["classes"]]
    assert {"stage 0", "stage 3"} <= set(names) < {f"stage {i}" for i in range(4)}
    assert "are left out to keep the page quick" in page
    assert {lane["rank_class"] for lane in data["lanes"]} == set(range(len(names)))


def test_the_same_step_gives_the_same_page_and_half_a_page_never_stands(tmp_path):
    result = result_of(**SMALL)
    for name in ("a.html", "b.html"):
        write_run_report(result, result.job, advice_of(result), tmp_path / "new" / name)
    first, second = (tmp_path / "new" / name for name in ("a.html", "b.html"))
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in first.parent.iterdir()) == ["a.html", "b.html"]


def test_memory_of_a_page_reaches_the_peak_of_each_class(page):
    result, memory = result_of(**SMALL), data_in(page)["memory"]
    assert len(memory["classes"]) == len(result.memory)
    for shown, whole in zip(memory["classes"], result.memory, strict=True):
        curves = [owner["bytes"] for owner in shown["owners"]]
        held = [np.frombuffer(b64decode(c)) if isinstance(c, str) else c for c in curves]
        assert np.max(sum(held)) == pytest.approx(whole.peak_allocated_bytes)
    assert {each["capacity_bytes"] for each in memory["classes"]} == {result.capacity_bytes}


def test_a_result_shows_itself_in_a_notebook_without_scripts_and_with_its_name_escaped():
    shown = result_of(**SMALL, name=HOSTILE)._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;alert(1)" in shown
    assert "MFU" in shown
    widths = [float(width) for width in re.findall(r"width: ([\d.]+)%", shown)]
    assert sum(widths) == pytest.approx(100, abs=0.05)


def test_the_fullest_class_is_in_the_tables_however_many_there_are():
    result = result_of(layers=66, gpus=132, pp=66, microbatches=4)
    used = [memory.peak_device_bytes for memory in result.memory]
    places = (33, 65)  # one that an even choice of 64 leaves out, and one that it has
    for place in places:
        memory = list(result.memory)
        memory[place] = replace(memory[place], peak_device_bytes=2 * max(used))
        page = page_of(replace(result, memory=tuple(memory)))
        table = page.partition("At the peak, of")[2].partition("</table>")[0]
        assert f'<th scope="row">stage {place}</th>' in table
        left = 66 - table.count('<th scope="row">')
        assert f"({left} more classes are left out)" in table


@pytest.fixture(scope="module")
def mixed() -> sim.Result:
    """A step on two kinds of GPUs whose memories differ; the smaller one comes second."""
    names = ("h200-sxm-141gb", "a100-sxm-80gb")
    pools = [{"profile": name, "gpus": 8} for name in names]
    job = result_of(**SMALL).job.replace({"cluster": {"pools": pools}, "batch.global": 32})
    return sim.simulate(job)


def test_a_page_of_several_pools_names_the_gpu_of_every_class_and_what_it_has(mixed):
    page = page_of(mixed)
    memory = data_in(page)["memory"]
    found = {each["name"].split(" on ")[-1]: each["capacity_bytes"] for each in memory["classes"]}
    assert found == {
        pool.profile.name: pool.profile.device.memory_bytes for pool in mixed.job.cluster.pools
    }
    assert "the profiles h200-sxm-141gb and a100-sxm-80gb" in page
    least = min(found.values())
    assert dict(headline(mixed))["fullest GPU"].endswith(format_bytes(least))


def test_a_page_of_several_pools_counts_the_numbers_of_all_of_them(mixed):
    def counted(job) -> int:
        words = ", ".join(source_blocks(job).values())
        return sum(int(number) for number in re.findall(r"\d+", words))

    alone = [
        mixed.job.replace({"cluster": {"profile": pool.profile.name, "gpus": 16}})
        for pool in mixed.job.cluster.pools
    ]
    assert counted(mixed.job) == sum(map(counted, alone))


def test_advice_on_several_pools_tries_changes_on_all_of_them(mixed, tmp_path):
    found = mixed.advice()
    assert found.what_ifs
    assert not found.influences  # a number belongs to one kind of GPU
    page = mixed.write_html(tmp_path / "mixed.html").read_text(encoding="utf-8")
    assert found.what_ifs[0].words in page
