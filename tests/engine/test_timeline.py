"""A timeline as a table."""

from __future__ import annotations

import numpy as np

from simulator.engine.replay import replay
from simulator.engine.timeline import STREAMS
from simulator.program.ir import Kind, Program, Work
from tests.jobs import pipeline_program


def test_a_transfer_has_a_row_on_each_side():
    program = pipeline_program("1f1b", 2, 1, 3, transfer=Work(0.5))
    timeline = replay(program)
    assert len(timeline.operation) == len(program.operations) + 2 * 3
    assert np.bincount(timeline.operation).tolist() == [
        len(operation.lanes) for operation in program.operations
    ]


def test_rows_are_ordered_by_class_stream_and_start():
    timeline = replay(pipeline_program("1f1b", 3, 1, 4, transfer=Work(0.5)))
    keys = list(zip(timeline.rank_class, timeline.stream, timeline.start_s, strict=True))
    assert keys == sorted(keys)


def test_columns_of_the_frame_say_what_the_program_does():
    timeline = replay(pipeline_program("interleaved-1f1b", 2, 2, 4, transfer=Work(0.5)))
    frame = timeline.to_frame()
    assert list(frame.columns) == [
        "rank_class", "stage", "stream", "kind", "category", "microbatch", "chunk",
        "first_layer", "end_layer", "start_s", "end_s", "flop", "bytes",
    ]  # fmt: skip
    assert set(frame["kind"]) <= {kind.value for kind in Kind}
    assert set(frame["stream"]) <= {stream.value for stream in STREAMS}
    assert frame["end_s"].max() == timeline.step_time_s
    forward = frame[(frame["kind"] == "forward") & (frame["stage"] == 1)]
    assert sorted(zip(forward["microbatch"], forward["chunk"], strict=True)) == [
        (microbatch, chunk) for microbatch in range(4) for chunk in range(2)
    ]


def test_an_empty_program_has_an_empty_table():
    timeline = replay(Program(()))
    assert timeline.step_time_s == 0.0
    assert len(timeline.to_frame()) == 0
