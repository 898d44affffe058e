"""Traces: valid JSON, lanes without overlap, paired arrows, memory that returns."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from simulator.api import Result, simulate
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.exporters.chrome_trace import scaled_parts, trace_events, write_trace
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
from simulator.results.step import StepResult
from simulator.results.traffic import class_traffic, link_loads
from simulator.results.views.rank_classes import classes_of
from tests.factories import Pipeline, replay, step_result

FULL = Pipeline(
    stages=4,
    microbatches=8,
    chunks=2,
    forward_s=1e-3 / 3,  # thirds of nanoseconds must round without overlap
    backward_s=2e-3 / 3,
    recompute_s=1e-4 / 7,
    tensor_parallel_s=1e-4 / 3,
    transfer_s=1e-5 / 3,
    gradient_s=1e-3 / 7,
    gather_s=5e-4 / 7,
    optimizer_s=1e-4 / 3,
    ranks_per_stage=128,
)


def trace_of(result: StepResult, path: Path, **options: Any) -> dict[str, Any]:
    """The trace as a viewer reads it."""
    write_trace(result, path, **options)
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(data)


def phase(trace: dict[str, Any], letter: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == letter]


def lanes(trace: dict[str, Any]) -> dict[tuple[str, str], list[tuple[int, int, dict[str, Any]]]]:
    """(start, end, event) in whole nanoseconds, by names of process and thread."""
    names = {(e["name"], e["pid"], e["tid"]): e["args"].get("name") for e in phase(trace, "M")}
    process = {pid: n for (kind, pid, _), n in names.items() if kind == "process_name"}
    thread = {(pid, tid): n for (kind, pid, tid), n in names.items() if kind == "thread_name"}
    found = defaultdict(list)
    for event in phase(trace, "X"):
        start = round(event["ts"] * 1000)
        key = process[event["pid"]], thread[event["pid"], event["tid"]]
        found[key].append((start, start + round(event["dur"] * 1000), event))
    return found


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_a_trace_is_json_with_an_event_per_operation_and_lane(tmp_path, name: str) -> None:
    result = FULL.result()
    trace = trace_of(result, tmp_path / name)
    operations = [e for e in phase(trace, "X") if e["cat"] != "wait"]
    assert len(operations) == result.timeline.operation.size
    assert all(e["ph"] in "XMCsf" for e in trace["traceEvents"])


def test_processes_say_how_many_ranks_they_stand_for(tmp_path) -> None:
    trace = trace_of(FULL.result(), tmp_path / "t.json")
    names = [e["args"]["name"] for e in phase(trace, "M") if e["name"] == "process_name"]
    assert names == [f"stage {i} (x128 ranks)" for i in range(4)]


@pytest.mark.parametrize("kernels", [False, True])
def test_events_of_a_lane_never_overlap(tmp_path, kernels: bool) -> None:
    for spans in lanes(trace_of(FULL.result(), tmp_path / "t.json", kernels=kernels)).values():
        ordered = sorted((start, end) for start, end, _ in spans)
        assert all(a[1] <= b[0] for a, b in pairwise(ordered))


def test_work_and_waits_together_last_the_step(tmp_path) -> None:
    result = FULL.result()
    found = lanes(trace_of(result, tmp_path / "t.json"))
    for rank_class in result.timeline.program.classes:
        process = f"{rank_class.name} (x128 ranks)"
        spans = found[process, "compute"] + found[process, "waits"]
        assert sum(end - start for start, end, _ in spans) == round(result.step_time_s * 1e9)


def test_kernels_fill_their_operations_exactly(tmp_path) -> None:
    found = lanes(trace_of(FULL.result(), tmp_path / "t.json", kernels=True))
    for (process, thread), spans in list(found.items()):
        if thread != "compute":
            continue
        kernels = found[process, "compute kernels"]
        for start, end, _ in spans:
            inside = [(a, b) for a, b, _ in kernels if a >= start and b <= end]
            assert sum(b - a for a, b in inside) == end - start


def test_kernels_are_left_out_unless_asked_for(tmp_path) -> None:
    trace = trace_of(FULL.result(), tmp_path / "t.json")
    assert "compute kernels" not in {thread for _, thread in lanes(trace)}
    assert "kernel" not in {e["cat"] for e in phase(trace, "X")}


def test_parts_keep_their_shares_when_contention_stretches_an_operation() -> None:
    parts = (
        Part("qkv", Category.FORWARD, 1.0, repeats=2),
        Part("all_reduce", Category.TENSOR_PARALLEL, 3.0),
    )
    operation = Operation(Kind.FORWARD, ((0, Stream.COMPUTE),), Work(4.0, parts), Category.FORWARD)
    stretched = list(scaled_parts(operation, 1000, 9000))  # 8 us instead of 4 s
    assert stretched == [("qkv x2", 1000, 3000), ("all_reduce", 3000, 9000)]


def test_every_transfer_is_one_arrow_from_sender_to_receiver(tmp_path) -> None:
    result = FULL.result()
    trace = trace_of(result, tmp_path / "t.json")
    starts = {e["id"]: e for e in phase(trace, "s")}
    ends = {e["id"]: e for e in phase(trace, "f")}
    sends = sum(o.kind is Kind.SEND_RECV for o in result.timeline.program.operations)
    assert starts.keys() == ends.keys()
    assert len(starts) == len(phase(trace, "s")) == len(phase(trace, "f")) == sends
    assert all(starts[i]["pid"] != ends[i]["pid"] for i in starts)
    assert all(e["bp"] == "e" for e in ends.values())
    assert all(isinstance(i, int) for i in starts)  # Perfetto drops flows named otherwise


def test_each_lane_has_an_id_of_its_own_and_compute_is_the_main_thread(tmp_path) -> None:
    trace = trace_of(FULL.result(), tmp_path / "t.json")
    names = [e for e in phase(trace, "M") if e["name"] == "thread_name"]
    assert len({e["tid"] for e in names}) == len(names)
    main = [e["args"]["name"] for e in names if e["tid"] == e["pid"]]
    assert main == ["compute"] * FULL.stages


def test_both_ends_of_an_arrow_lie_on_a_transfer(tmp_path) -> None:
    trace = trace_of(FULL.result(), tmp_path / "t.json")
    spans = defaultdict(list)
    for event in phase(trace, "X"):
        spans[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event))
    for arrow in phase(trace, "s") + phase(trace, "f"):
        under = [e for a, b, e in spans[arrow["pid"], arrow["tid"]] if a <= arrow["ts"] <= b]
        assert [e["name"].split()[0] for e in under] == ["send_recv"]


def test_counters_end_where_they_begin_and_reach_the_peak(tmp_path) -> None:
    # A step gives back all it takes, so the first operation is the only difference.
    result = Pipeline(stages=2, microbatches=4).result()
    trace = trace_of(result, tmp_path / "t.json")
    for index, memory in enumerate(result.memory):
        counters = [e for e in phase(trace, "C") if e["name"] == "allocated"]
        events = [e for e in counters if e["pid"] == 100 * (index + 1)]
        values = [e["args"]["GiB"] for e in events]
        times = [e["ts"] for e in events]
        assert values[-1] == 32.0
        assert max(values) == pytest.approx(memory.peak_allocated_bytes / 1024**3)
        assert times == sorted(times)
        assert times[-1] == pytest.approx(result.step_time_s * 1e6)


def test_arguments_say_which_microbatch_chunk_and_layers(tmp_path) -> None:
    found = lanes(trace_of(FULL.result(), tmp_path / "t.json"))
    first = found["stage 1 (x128 ranks)", "compute"][0][2]
    assert first["name"] == "forward 0"
    assert first["args"] == {
        "microbatch": 0,
        "chunk": 0,
        "layers": "1",
        "flop": FULL.forward_s * 1e12,
    }
    send = found["stage 1 (x128 ranks)", "send_next"][0][2]
    assert send["args"]["bytes"] == FULL.transfer_s * 1e9


def test_too_long_a_trace_leaves_out_whole_stages_and_says_so(tmp_path) -> None:
    result = Pipeline(stages=16, microbatches=16).result()
    whole = write_trace(result, tmp_path / "whole.json")
    limit = whole.num_events // 3
    summary = write_trace(result, tmp_path / "part.json", max_events=limit)
    trace = json.loads((tmp_path / "part.json").read_text())
    assert whole.left_out == ()
    assert summary.num_events == len(trace["traceEvents"]) <= limit
    assert {summary.classes[0], summary.classes[-1]} == {0, 15}
    assert sorted(summary.classes + summary.left_out) == list(range(16))
    assert trace["otherData"]["classes_left_out"] == [f"stage {i}" for i in summary.left_out]


@pytest.mark.parametrize("kernels", [False, True])
def test_the_limit_holds_exactly_where_all_classes_fit(tmp_path, kernels: bool) -> None:
    result = FULL.result()
    count = write_trace(result, tmp_path / "a.json", kernels=kernels).num_events
    again = write_trace(result, tmp_path / "b.json", kernels=kernels, max_events=count)
    assert again.left_out == ()
    assert write_trace(result, tmp_path / "c.json", kernels=kernels, max_events=count - 1).left_out


def test_arrows_to_stages_left_out_are_left_out(tmp_path) -> None:
    result = Pipeline(stages=8, microbatches=8, transfer_s=0.1).result()
    trace = trace_of(result, tmp_path / "t.json", max_events=700)
    assert trace["otherData"]["classes_left_out"]
    written = {e["pid"] for e in phase(trace, "M")}
    assert {e["pid"] for e in trace["traceEvents"]} <= written
    assert len(phase(trace, "s")) == len(phase(trace, "f"))


def test_a_limit_below_one_stage_is_refused_before_anything_is_written(tmp_path) -> None:
    with pytest.raises(InputError, match="max_events"):
        write_trace(FULL.result(), tmp_path / "t.json", max_events=3)
    assert not list(tmp_path.iterdir())


def test_an_unknown_suffix_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match=r"\.json or \.json\.gz"):
        write_trace(FULL.result(), tmp_path / "t.txt")


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_the_same_step_gives_the_same_bytes(tmp_path, name: str) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_trace(FULL.result(), tmp_path / folder / name)
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("sending", [Stream.SEND_NEXT, Stream.COMPUTE])
def test_one_send_to_two_receivers_has_two_arrows(tmp_path, sending: Stream) -> None:
    program = Program(tuple(RankClass(f"class {i}", i, 1, i) for i in range(3)))
    for index in range(3):
        work = Work(1.0, (Part("matmul", Category.FORWARD, 1.0),))
        lane = ((index, Stream.COMPUTE),)
        program.add(Operation(Kind.FORWARD, lane, work, Category.FORWARD))
    targets = ((0, sending), (1, Stream.RECV_PREVIOUS), (2, Stream.RECV_PREVIOUS))
    work = Work(1.0, (Part("send_recv", Category.PIPELINE, 1.0),))
    program.add(Operation(Kind.SEND_RECV, targets, work, Category.PIPELINE, after=(0,)))
    result = step_result(replay(program))
    trace = trace_of(result, tmp_path / "t.json")
    assert [e["pid"] for e in phase(trace, "s")] == [100, 100]
    assert [e["pid"] for e in phase(trace, "f")] == [200, 300]
    names = [e["args"]["name"] for e in phase(trace, "M") if e["name"] == "process_name"]
    assert names[0] == "class 0 (1 rank)"


def test_a_class_of_its_own_is_labelled_with_its_reason():
    slow = RankClass("rank 5", 1, 1, 5, cause="20 % slower")
    program = Program((RankClass("stage 0", 0, 4, 0), slow))
    lanes = tuple((index, Stream.COMPUTE) for index in range(2))
    program.add(Operation(Kind.FORWARD, lanes, Work(1.0), Category.FORWARD))
    result = step_result(replay(program))
    labels = [e for e in trace_events(result, [0, 1]) if e["name"] == "process_labels"]
    assert [(e["pid"], e["args"]["labels"]) for e in labels] == [(200, "stage 1: 20 % slower")]


def test_link_counters_carry_what_the_transfers_send(tmp_path) -> None:
    result = sim_result()
    trace = trace_of(result, tmp_path / "t.json")
    loads = link_loads(result.timeline)
    for load in loads:
        wanted = f"{load.port} sent", 100 * (load.rank_class + 1)
        events = [e for e in phase(trace, "C") if (e["name"], e["pid"]) == wanted]
        times = [e["ts"] / 1e6 for e in events]
        rates = [e["args"]["GB/s"] * 1e9 for e in events]
        carried = sum(rate * (b - a) for rate, (a, b) in zip(rates, pairwise(times), strict=False))
        listed = class_traffic(result.timeline.program)[load.rank_class].port_bytes[load.port]
        assert carried == pytest.approx(listed, rel=1e-3)
    counters = {(e["name"], e["pid"]) for e in phase(trace, "C") if e["name"] != "allocated"}
    assert counters == {(f"{load.port} sent", 100 * (load.rank_class + 1)) for load in loads}


def sim_result() -> Result:
    """A step with traffic inside a node and between nodes."""
    document = {
        "model": {"base": "llama3.1-8b", "layers": 4},
        "cluster": {"profile": "h100-sxm-80gb", "gpus": 16},
        "batch": {"global": 16, "seq_len": 2048},
        "plan": {"tp": 4, "pp": 4},
    }
    return simulate(job_from_document(document))


def test_only_the_chosen_ranks_are_written(tmp_path) -> None:
    result = sim_result()
    result.write_trace(tmp_path / "t.json", ranks=[0, 15, 14])
    trace = json.loads((tmp_path / "t.json").read_text())
    names = [e["args"]["name"] for e in phase(trace, "M") if e["name"] == "process_name"]
    assert names == ["stage 0 (x4 ranks)", "stage 3 (x4 ranks)"]
    assert trace["otherData"]["classes_left_out"] == ["stage 1", "stage 2"]


def test_a_rank_that_the_job_does_not_have_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="0 to 15"):
        sim_result().write_trace(tmp_path / "t.json", ranks=[16])


def test_a_slow_rank_is_found_by_the_class_of_its_own(tmp_path) -> None:
    job = sim_result().job.replace(perturbations=[{"gpu": 5, "slowdown": 0.2}])
    result = simulate(job)
    classes = result.timeline.program.classes
    [index] = classes_of([5], job, classes)
    assert classes[index].ranks == (5,)
