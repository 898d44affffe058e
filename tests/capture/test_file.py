"""Captures on disk: what is written is read, and nothing else is believed."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from simulator.capture import file
from simulator.capture.file import is_capture, read_capture, write_capture
from simulator.capture.make import merged
from simulator.capture.result import simulate_capture
from simulator.capture.table import COLUMNS, Exchange
from simulator.described.load import load_profile
from simulator.errors import InputError
from tests.capture.made_up import Step, capture_of


@pytest.fixture
def written(tmp_path):
    step = Step()
    first = step.kernel()
    step.exchange(Exchange("all_reduce", 0, 1 << 20, "dp", -1, False), after=[first])
    step.block(1 << 30, 1, 2)
    path = tmp_path / "step.capture"
    write_capture(capture_of(step, groups=[(0, 2, 4, 6), (5, 1)]), path)
    return path


def test_equal_captures_have_equal_bytes_whenever_they_are_written(written, monkeypatch):
    first = written.read_bytes()
    monkeypatch.setattr(zipfile.time, "time", lambda: 2e9)
    write_capture(read_capture(written), written)
    assert written.read_bytes() == first


def test_what_is_written_is_read(written):
    step = Step()
    first = step.kernel()
    step.exchange(Exchange("all_reduce", 0, 1 << 20, "dp", -1, False), after=[first])
    step.block(1 << 30, 1, 2)
    expected = capture_of(step, groups=[(0, 2, 4, 6), (5, 1)])
    read = read_capture(written)
    for each in fields(read):
        if each.name != "tables":
            assert getattr(read, each.name) == getattr(expected, each.name)
    for each in fields(read.tables[0]):
        mine, theirs = (getattr(c.tables[0], each.name) for c in (read, expected))
        same = np.array_equal(mine, theirs) if each.name in COLUMNS else mine == theirs
        assert same, each.name


def test_jobs_and_missing_files_are_no_captures(written, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text("model: gpt2\n", encoding="utf-8")
    assert is_capture(written)
    assert not is_capture(job)
    assert not is_capture(tmp_path / "nothing")


def test_a_damaged_file_is_refused(written):
    written.write_bytes(written.read_bytes()[:-40])
    with pytest.raises(InputError, match="damaged"):
        read_capture(written)


@pytest.mark.parametrize(
    ("name", "content", "rule"),
    [
        ("rank0/call.npy", np.asarray([7, 0]), "points beyond"),
        ("rank0/phase.npy", np.asarray([0, 99]), "points beyond"),
        ("rank0/stream.npy", np.asarray([0]), "differ in length"),
        ("rank0/stream.npy", np.asarray([0.5, 0.5]), "not a column of whole numbers"),
        ("rank0/stream.npy", np.asarray([{}, {}], dtype=object), "not a column of whole numbers"),
        ("capture.json", {"format": "clustersim-capture", "version": 99}, "version 99"),
        ("capture.json", {"format": "another"}, "not a capture"),
    ],
)
def test_contents_that_are_wrong_are_refused(written, name, content, rule):
    with zipfile.ZipFile(written) as archive:
        parts = {each: archive.read(each) for each in archive.namelist()}
    if isinstance(content, dict):
        parts[name] = json.dumps(content).encode()
    else:
        stored = io.BytesIO()
        np.save(stored, content, allow_pickle=True)
        parts[name] = stored.getvalue()
    with zipfile.ZipFile(written, "w") as archive:
        for each, data in parts.items():
            archive.writestr(each, data)
    with pytest.raises(InputError, match=rule):
        unpacked(read_capture(written))


def test_only_what_is_asked_for_is_unpacked(written, monkeypatch):
    asked = []
    read = zipfile.ZipFile.read
    monkeypatch.setattr(
        zipfile.ZipFile, "read", lambda self, name: asked.append(name) or read(self, name)
    )
    (table,) = read_capture(written).tables
    written.unlink()
    assert asked == ["capture.json"]
    assert table.held_bytes.tolist() == table.held_bytes.tolist() == [1 << 30, 0]
    assert asked == ["capture.json", "rank0/change_bytes.npy"]


def test_captures_of_ranks_that_were_read_are_merged(written):
    stages = [read_capture(written), read_capture(written)]
    whole = merged(stages, "train.py", "h100-sxm-80gb")
    assert [table.exchanges for table in whole.tables] == [stages[0].tables[0].exchanges] * 2
    assert [len(table.call) for table in whole.tables] == [2, 2]


def test_small_parts_that_would_be_large_are_refused(written, monkeypatch):
    largest = max(map(len, (getattr(read_capture(written).tables[0], n) for n in COLUMNS)))
    monkeypatch.setattr(file, "_MOST_BYTES", 8 * largest - 1)
    monkeypatch.setattr(file, "_check_sizes", lambda *_: None)
    with pytest.raises(InputError, match="not a column of whole numbers"):
        unpacked(read_capture(written))
    monkeypatch.undo()
    monkeypatch.setattr(file, "_MOST_NAME_BYTES", 8)
    with pytest.raises(InputError, match="names of more than 8 bytes"):
        read_capture(written)


def unpacked(capture):
    """All parts of a capture, asked for."""
    for table in capture.tables:
        assert all(hasattr(table, each.name) for each in fields(table))
    return capture


def test_a_file_of_version_1_knows_no_past_and_is_read():
    (path, *_) = sorted((Path(__file__).parents[2] / "reports" / "captures").glob("*.capture"))
    capture = read_capture(path)
    assert not any(len(table.past_block) or len(table.past_bytes) for table in capture.tables)
    assert simulate_capture(capture, load_profile("h100-sxm-80gb")).memory
