"""A trace file is read event by event, whatever its size, and refused where it is none."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulator import files
from simulator.errors import InputError
from simulator.validate.measured_trace import rows as kept
from simulator.validate.measured_trace import trace_events as reader
from simulator.validate.measured_trace.rows import read_rows
from simulator.validate.measured_trace.trace_events import TraceFile
from tests.validate.kineto import operator, world, write_trace

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
EVENTS = st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=5)


@settings(max_examples=40)
@given(events=EVENTS, chunk=st.integers(1, 40), header=VALUES)
@example(events=[], chunk=1, header=0.0)
def test_every_event_survives_any_size_of_the_window(tmp_path_factory, events, chunk, header):
    path = tmp_path_factory.mktemp("trace") / "t.json"
    write_trace(path, events, distributedInfo=header, other=header)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_CHUNK_BYTES", chunk)
        file = TraceFile(path)
        assert list(file.events()) == events
    assert file.header == {"distributedInfo": header}


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t.trace"])
def test_a_trace_is_told_packed_or_not_by_its_content(tmp_path, name):
    events = [{"name": "a"}, {"name": "b"}]
    plain = write_trace(tmp_path / "plain.json", events, **world(1, 2)).read_bytes()
    path = tmp_path / name
    path.write_bytes(gzip.compress(plain) if name.endswith(".gz") else plain)
    file = TraceFile(path)
    assert list(file.events()) == events
    assert file.header == world(1, 2)


def test_fields_behind_the_events_are_read_too(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [], "distributedInfo": {"rank": 3}}')
    file = TraceFile(path)
    assert list(file.events()) == []
    assert file.header == {"distributedInfo": {"rank": 3}}


GOOD = json.dumps({"traceEvents": [operator("aten::mm", 1.0, 2.0)]}).encode()
PACKED = gzip.compress(GOOD)


def test_an_archive_that_is_made_to_take_time_is_refused_soon_after_its_first_bytes(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(files, "_ALWAYS_UNPACKED_BYTES", 2**20)
    read, read_bytes = files.Unpacked.read, []
    monkeypatch.setattr(
        files.Unpacked, "read", lambda self, n: read_bytes.append(n) or read(self, n)
    )
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 60 * 2**20 + b"]}", 1))
    with pytest.raises(InputError, match="unpacks to more than 40 times its size"):
        list(TraceFile(path).events())
    assert sum(read_bytes) < 60 * 2**20


DAMAGED = {
    "empty": (b"", "is cut off"),
    "cut text": (GOOD[:-20], "is cut off"),
    "cut in a string": (GOOD[:24], "is cut off"),
    "cut archive": (PACKED[:-12], "is cut off"),
    "damaged archive": (PACKED[:20] + bytes(20) + PACKED[40:], "cannot be read"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(100), "is not a trace"),
    "a job": (b"model: llama3.1-8b\n", "is not a trace"),
    "a list": (b'[{"ph": "X"}]', "is not a trace"),
    "other JSON": (b'{"hidden_size": 4096}', "no list traceEvents"),
    "no list": (b'{"traceEvents": 3}', "one list traceEvents"),
    "two lists": (b'{"traceEvents": [], "traceEvents": []}', "one list traceEvents"),
    "no objects": (b'{"traceEvents": [1, 2]}', "events must be objects"),
    "a missing comma": (b'{"traceEvents": [{} {}]}', "is not JSON"),
    "no key": (b'{3: 4, "traceEvents": []}', "is not JSON"),
    "too deep": (b'{"traceEvents": [' + b'{"a":' * 90_000, "is not JSON"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_no_trace_is_refused_with_the_way_out(tmp_path, name):
    content, rule = DAMAGED[name]
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rule) as raised:
        read_rows(path)
    assert "torch.profiler" in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("name", ["", "none.json"])
def test_what_is_no_file_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path / name)


@pytest.mark.parametrize("value", ["NaN", "1e999", '"soon"', "null", "true"])
def test_times_that_are_no_numbers_are_refused(tmp_path, value):
    path = tmp_path / "t.json"
    event = '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": ' + value + "}"
    path.write_text('{"traceEvents": [' + event + "]}")
    with pytest.raises(InputError, match="times are no numbers"):
        read_rows(path)


def test_a_trace_without_kernels_and_operators_is_refused(tmp_path):
    path = write_trace(tmp_path / "t.json", [{"ph": "X", "name": "a", "cat": "b", "ts": 1.0}])
    with pytest.raises(InputError, match="no kernels and no operators among its 1 events"):
        read_rows(path)


def test_a_value_without_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MAX_VALUE_CHARS", 2000)
    monkeypatch.setattr(reader, "_CHUNK_BYTES", 1000)
    path = write_trace(tmp_path / "t.json", [{"name": "a" * 9000}])
    with pytest.raises(InputError, match="too long"):
        list(TraceFile(path).events())


def test_a_packed_bomb_is_refused_where_it_unpacks_to_more_than_any_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MAX_TEXT_BYTES", 3 * 1024**2)
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 5 * 1024**2 + b"]}"))
    assert path.stat().st_size < 10_000
    with pytest.raises(InputError, match="more than 3145728 bytes"):
        list(TraceFile(path).events())


def test_too_many_events_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "MAX_ROWS", 10)
    events = [operator("aten::mm", float(i), 0.5) for i in range(11)]
    with pytest.raises(InputError, match="record fewer steps"):
        read_rows(write_trace(tmp_path / "t.json", events))


def large_trace(path: Path, events: int) -> Path:
    event = json.dumps(operator("aten::mm", 1.0, 2.0) | {"args": {"Call stack": "x" * 500}})
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write('{"traceEvents": [' + event)
        for _ in range(events - 1):
            file.write("," + event)
        file.write("]}")
    return path


def test_memory_does_not_grow_with_the_text(tmp_path):
    path = large_trace(tmp_path / "t.json.gz", 12_000)  # 8 MB of text, more as objects
    tracemalloc.start()
    rows = read_rows(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(rows.operators.key) == 12_000
    assert peak_bytes < 8 * 1024**2
