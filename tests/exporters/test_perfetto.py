"""Perfetto's own trace processor reads our trace and agrees with our numbers.

Needs the package perfetto and the program ``trace_processor_shell`` on the path, or where
the variable TRACE_PROCESSOR_SHELL says.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from simulator.api import Result, simulate
from simulator.program.ir import Kind, Stream
from simulator.spec.load import job_from_document

perfetto = pytest.importorskip("perfetto.trace_processor", reason="perfetto is not installed")
SHELL = os.environ.get("TRACE_PROCESSOR_SHELL") or shutil.which("trace_processor_shell")
pytestmark = pytest.mark.skipif(not SHELL, reason="no trace_processor_shell on this machine")

Query = Callable[[str], list[Any]]


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
def query(result, tmp_path_factory) -> Iterator[Query]:
    path = result.write_trace(tmp_path_factory.mktemp("trace") / "trace.json.gz")
    config = perfetto.TraceProcessorConfig(bin_path=SHELL)
    with perfetto.TraceProcessor(trace=str(path), config=config) as processor:
        yield lambda sql: list(processor.query(sql))


def test_its_step_is_ours(query, result):
    [row] = query("select max(ts + dur) - min(ts) as step from slice")
    assert row.step / 1e9 == pytest.approx(result.step_time_s, rel=1e-6)


def test_its_busy_shares_are_ours(query, result):
    timeline = result.timeline
    rows = query(
        "select process.name as name, sum(slice.dur) as busy from slice "
        "join thread_track on slice.track_id = thread_track.id "
        "join thread using (utid) join process using (upid) "
        "where thread.name = 'compute' group by process.pid order by process.pid"
    )
    assert len(rows) == len(timeline.program.classes)
    for index, row in enumerate(rows):
        ids = timeline.program.lanes[index, Stream.COMPUTE]
        busy_s = sum(timeline.operation_end_s[i] - timeline.operation_start_s[i] for i in ids)
        assert row.busy / 1e9 == pytest.approx(busy_s, rel=1e-6)


def test_its_peak_memory_is_ours(query, result):
    rows = query(
        "select process.pid as pid, max(counter.value) as peak from counter "
        "join process_counter_track on counter.track_id = process_counter_track.id "
        "join process using (upid) where process_counter_track.name like 'allocated%' "
        "group by process.pid order by process.pid"
    )
    peaks = [memory.peak_allocated_bytes / 1024**3 for memory in result.memory]
    assert [row.peak for row in rows] == pytest.approx(peaks, rel=1e-5)


def test_its_flows_are_our_transfers(query, result):
    [row] = query("select count(*) as arrows from flow")
    operations = result.timeline.program.operations
    assert row.arrows == sum(operation.kind is Kind.SEND_RECV for operation in operations)
