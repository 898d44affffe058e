"""Execution traces: a step that is written and read back is the same, on other links another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToJson, ParseDict

from simulator.api import simulate
from simulator.chakra import execution_trace as names
from simulator.chakra.execution_trace import (
    MAX_MESSAGE_BYTES,
    Node,
    NodeType,
    RankTrace,
    message_types,
    read_messages,
    write_message,
)
from simulator.chakra.from_program import check_traceable, rank_traces
from simulator.chakra.rank_parts import group_on, group_ranks
from simulator.chakra.to_program import replay_traces
from simulator.chakra.trace_files import MAX_NODES, file_name, read_trace, read_traces, write_trace
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.job import Job
from simulator.described.load import job_from_document, load_profile
from simulator.errors import InputError, UnsupportedError
from simulator.program.grid import rank_groups as groups
from tests.networks import flat_network

GB = 10**9
BOTH = {"0": (0, 1)}


def by_eye(**fabric: Any) -> HardwareProfile:
    """A profile whose only link carries 1 GB/s, without latency."""
    return load_profile("h100-sxm-80gb").model_copy(update={"network": flat_network(**fabric)})


def computes(number: int, seconds: float, *waits_for: int) -> Node:
    return Node(number, "work", NodeType.COMP, seconds, waits_for)


def reduces(number: int, size: int, *waits_for: int, **attributes: Any) -> Node:
    what = {names.COMM_TYPE: 0, names.COMM_SIZE: size, names.GROUP: "0", **attributes}
    return Node(number, "sum", NodeType.COMM_COLL, 0.0, waits_for, what)


def passes(number: int, kind: NodeType, size: int, *waits_for: int) -> Node:
    what = {names.COMM_SIZE: size, names.SOURCE: 0, names.TARGET: 1, names.TAG: 0}
    return Node(number, "hand over", kind, 0.0, waits_for, what)


def traces(first: list[Node], second: list[Node]) -> list[RankTrace]:
    return [RankTrace(0, tuple(first), BOTH), RankTrace(1, tuple(second), BOTH)]


# Closed forms


def test_ranks_meet_in_a_collective_that_takes_as_long_as_its_bytes():
    # Two ranks of a ring send 2 (n - 1) / n = 1 time the buffer.
    step = replay_traces(
        traces([computes(1, 1.0), reduces(2, GB, 1)], [computes(1, 2.0), reduces(2, GB, 1)]),
        by_eye(),
    )
    assert step.step_time_s == pytest.approx(2.0 + 1.0)
    assert step.computation_s == pytest.approx(2.0)
    assert dict(step.communication_s) == {"data_parallel": pytest.approx(1.0)}


def test_half_the_rate_doubles_the_communication_and_nothing_else():
    both = traces([computes(1, 1.0), reduces(2, GB, 1)], [computes(1, 2.0), reduces(2, GB, 1)])
    step = replay_traces(both, by_eye(nic="0.5 GB/s"))
    assert step.step_time_s == pytest.approx(2.0 + 2.0)


def test_a_transfer_waits_for_its_sender_and_the_receiver_for_it():
    first = [computes(1, 1.0), passes(2, NodeType.COMM_SEND, GB, 1), computes(3, 3.0, 1)]
    second = [passes(1, NodeType.COMM_RECV, GB), computes(2, 1.5, 1)]
    # 1 s of work, 1 s on the way, 1.5 s of work; the first rank works 4 s meanwhile.
    step = replay_traces(traces(first, second), by_eye(), contention=False)
    assert step.step_time_s == pytest.approx(4.0)
    assert step.timeline.operation_start_s.max() == pytest.approx(2.0)


def test_a_communication_runs_beside_what_does_not_wait_for_it():
    first = [computes(1, 1.0), reduces(2, GB, 1), computes(3, 5.0, 1)]
    step = replay_traces(traces(first, first), by_eye(), contention=False)
    assert step.step_time_s == pytest.approx(6.0)


def test_what_was_hidden_stays_hidden_by_as_much():
    # Of 1 s, 0.75 s were hidden; at half the rate, 2 s stick out by 1.25 s.
    nodes = [reduces(1, GB, **{names.HIDDEN: 0.75})]
    assert replay_traces(traces(nodes, nodes), by_eye()).step_time_s == pytest.approx(0.25)
    slow = by_eye(nic="0.5 GB/s")
    assert replay_traces(traces(nodes, nodes), slow).step_time_s == pytest.approx(1.25)


def test_an_all_gather_is_counted_by_what_a_rank_puts_in():
    nodes = [reduces(1, GB, **{names.COMM_TYPE: 2})]
    assert replay_traces(traces(nodes, nodes), by_eye()).step_time_s == pytest.approx(1.0)


def test_without_a_process_group_everybody_takes_part():
    node = Node(1, "sum", NodeType.COMM_COLL, 0.0, (), {names.COMM_TYPE: 0, names.COMM_SIZE: GB})
    both = [RankTrace(rank, (node,)) for rank in (0, 1)]
    assert replay_traces(both, by_eye()).step_time_s == pytest.approx(1.0)


# Jobs


def job_with(gpus: int = 8, model: str = "llama3.1-8b", **plan: Any) -> Job:
    return job_from_document(
        {
            "model": {"base": model, "layers": 4},
            "cluster": {"profile": "h100-sxm-80gb", "gpus": gpus},
            "batch": {"global": 16, "seq_len": 2048},
            "plan": plan,
        }
    )


JOBS = {
    "data": job_with(),
    "tensor and pipeline": job_with(tp=2, pp=2),
    "pipelined products": job_with(tp=2, overlap_tp=True),
    "sharded": job_with(16, zero=3, zero_group=8, stack="torchtitan"),
    "split backward": job_with(8, pp=4, tp=2, schedule="zb-h1"),
    "ring": job_with(16, cp=4, tp=2, recompute="full"),
    "heads": job_with(16, cp=4, cp_method="all_to_all"),
    "chunks": job_with(16, pp=2, vpp=2, zero=2),
    "scattered transfers": job_with(8, pp=2, tp=4, stack="megatron-lm-2021"),
    "experts": job_with(16, "mixtral-8x7b", ep=4, tp=2, pp=2),
    "experts on two nodes": job_with(16, "mixtral-8x7b", ep=8, etp=1, ep_dispatch="hierarchical"),
    "muon": job_with(8, optimizer="muon", zero=1),
}


def round_trip(folder: Path, job: Job, ranks: list[int] | None = None) -> list[RankTrace]:
    """Traces of a job, written and read again."""
    result = simulate(job)
    written = list(rank_traces(job, result.timeline.program, ranks, result.step_time_s))
    for each in written:
        write_trace(each, folder / file_name("job", each.rank))
    read = read_traces([folder])
    assert [(each.rank, each.nodes, each.groups) for each in read] == [
        (each.rank, each.nodes, each.groups) for each in written
    ]
    return read


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_step_that_is_written_and_read_back_takes_as_long(tmp_path, job):
    read = round_trip(tmp_path, job)
    step = replay_traces(read, job.cluster.profile)
    expected_s = simulate(job).step_time_s
    assert step.step_time_s == pytest.approx(expected_s, rel=1e-12)
    assert step.recorded_step_s == expected_s


def test_the_traces_of_all_ranks_say_the_same_as_those_that_stand_for_them(tmp_path):
    job = JOBS["tensor and pipeline"]
    step = replay_traces(round_trip(tmp_path, job, list(range(8))), job.cluster.profile)
    assert len(step.timeline.program.classes) == 8
    assert step.step_time_s == pytest.approx(simulate(job).step_time_s, rel=1e-12)


def slower(profile: HardwareProfile) -> HardwareProfile:
    """The profile with half the rate of every link."""
    network = profile.network
    up = network.scale_up.model_copy(
        update={"bandwidth_bytes_per_s": network.scale_up.bandwidth_bytes_per_s / 2}
    )
    fabric = network.fabric.model_copy(
        update={"nic_bytes_per_s": network.fabric.nic_bytes_per_s / 2}
    )
    return profile.model_copy(
        update={"network": network.model_copy(update={"scale_up": up, "fabric": fabric})}
    )


@pytest.mark.parametrize("name", ["tensor and pipeline", "ring", "experts"])
def test_slower_links_lengthen_all_communication_of_a_job_and_no_computation(tmp_path, name):
    job = JOBS[name]
    read, profile = round_trip(tmp_path, job), job.cluster.profile
    before, after = replay_traces(read, profile), replay_traces(read, slower(profile))
    assert after.computation_s == pytest.approx(before.computation_s)
    assert after.step_time_s > before.step_time_s
    for kind, seconds in before.communication_s.items():
        assert seconds < after.communication_s[kind]


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_ranks_of_a_group_sit_as_the_program_priced_them(job):
    network = job.cluster.profile.network
    for axis, group in (
        ("tp", groups.tensor_group(job)),
        ("dp", groups.data_group(job)),
        ("ep", groups.expert_group(job)),
        ("edp", groups.expert_data_group(job)),
        ("dp_replicate", groups.replica_group(job)),
    ):
        ranks = group_ranks(job, 0, axis, group.ranks)
        if group.ranks > 1:
            found = group_on(ranks, network)
            assert (found.local_ranks, found.nodes) == (group.local_ranks, group.nodes)
            assert found.nodes_per_leaf == group.nodes_per_leaf


@pytest.mark.parametrize(
    ("plan", "path"),
    [
        ({"offload": {"optimizer": "cpu"}, "zero": 1}, "plan.offload"),
        ({"pp": 2, "schedule": "pipedream", "zero": 0}, "plan.schedule"),
        ({"data_parallel": "parameter-server", "zero": 0}, "plan.data_parallel"),
        ({"tp": 4, "tp_method": "2d"}, "plan.tp_method"),
    ],
)
def test_what_a_trace_cannot_say_is_refused(plan, path):
    job = job_with().replace(**{"batch.micro": 2, "plan": plan})
    with pytest.raises(UnsupportedError, match=rf"{path}\b.*execution trace"):
        check_traceable(job)


# Files of others


def foreign(folder: Path, *nodes: dict[str, Any]) -> Path:
    """A file as another tool writes it: whole microseconds, attributes of other widths."""
    types = message_types()
    path = folder / "other.0.et"
    with path.open("wb") as file:
        write_message(file, types.GlobalMetadata(version="0.0.4"))
        for number, node in enumerate(nodes, start=1):
            message = types.Node(id=number, **{k: v for k, v in node.items() if k != "attr"})
            for name, (which, value) in node.get("attr", {}).items():
                setattr(message.attr.add(name=name), which, value)
            write_message(file, message)
    return path


def test_a_trace_of_another_tool_is_replayed(tmp_path):
    path = foreign(
        tmp_path,
        {"name": "gemm", "type": 4, "duration_micros": 1_500_000},
        {"name": "all-reduce", "type": 7, "data_deps": [1], "attr": {
            "comm_type": ("int64_val", 0), "comm_size": ("uint64_val", GB),
            "pg_name": ("string_val", "")}},
    )  # fmt: skip
    step = replay_traces([read_trace(path)], by_eye())
    # Alone in its group, a rank has nobody to exchange with.
    assert step.step_time_s == pytest.approx(1.5)
    assert step.recorded_step_s is None


def by_converter(path: Path, *nodes: dict[str, Any]) -> Path:
    """A file as Chakra's converters write it: a schema instead of a version."""
    types = message_types()
    with path.open("wb") as file:
        head = types.GlobalMetadata()
        head.attr.add(name="schema", string_val="1.0.2-chakra.0.0.4")
        write_message(file, head)
        for node in nodes:
            write_message(file, ParseDict(node, types.Node()))
    return path


def attributes(**values: int | str | bool) -> list[dict[str, Any]]:
    kinds = {int: "int64Val", str: "stringVal", bool: "boolVal"}
    return [{"name": name, kinds[type(value)]: value} for name, value in values.items()]


def test_a_text_workload_that_chakra_converted_is_replayed(tmp_path):
    # Two layers of data parallelism; "NONE" becomes an all_reduce of no bytes.
    for rank in (0, 1):
        by_converter(
            tmp_path / f"text.{rank}.et",
            {"id": 0, "name": "COMP_NODE_a_FWD", "type": 4, "durationMicros": 500_000},
            {"id": 1, "name": "COMP_NODE_a_BWD_WG", "type": 4, "durationMicros": 500_000,
             "dataDeps": [0]},
            {"id": 2, "name": "COMM_COLL_NODE_a_ALLREDUCE", "type": 7, "dataDeps": [1],
             "attr": attributes(comm_type=0, comm_size=GB)},
            {"id": 3, "name": "COMM_COLL_NODE_a_NONE", "type": 7, "dataDeps": [2],
             "attr": attributes(comm_type=0, comm_size=0)},
        )  # fmt: skip
    found = replay_traces(read_traces([tmp_path]), by_eye())
    alone = replay_traces(traces(*[[computes(1, 1.0), reduces(2, GB, 1)]] * 2), by_eye())
    assert found.step_time_s == pytest.approx(alone.step_time_s)


PROFILED = (
    {"id": 2, "name": "[pytorch|profiler|execution_trace|thread]", "type": 4,
     "attr": attributes(is_cpu_op=True)},
    {"id": 3, "name": "## process_group:init ##", "type": 1,
     "inputs": {"values": '[{"pg_name": "0", "ranks": [0, 1]}]'}},
    {"id": 4, "name": "aten::mm", "type": 4, "ctrlDeps": [1, 3], "dataDeps": [2],
     "durationMicros": 1000, "attr": attributes(is_cpu_op=True)},
    {"id": 5, "name": "nvjet_hsh_256x128", "type": 4, "ctrlDeps": [4], "dataDeps": [4],
     "durationMicros": 2_000_000, "attr": attributes(is_cpu_op=False, stream=7)},
    {"id": 6, "name": "ncclDevKernel_AllReduce_Sum", "type": 7, "dataDeps": [5],
     "attr": attributes(is_cpu_op=False, comm_type=0, comm_size=GB, pg_name="0")},
)  # fmt: skip
"""A profile that Chakra linked and converted; callers that it left out are still named."""


def test_a_profile_that_chakra_converted_is_replayed(tmp_path):
    for rank in (0, 1):
        by_converter(tmp_path / f"rank.{rank}.et", *PROFILED)
    found = replay_traces(read_traces([tmp_path]), by_eye())
    alone = replay_traces(traces(*[[computes(1, 2.0), reduces(2, GB, 1)]] * 2), by_eye())
    assert found.step_time_s == pytest.approx(alone.step_time_s + 1e-3)


def test_the_json_form_of_a_trace_says_the_same(tmp_path):
    (tmp_path / "et").mkdir()
    (tmp_path / "json").mkdir()
    path = by_converter(tmp_path / "et" / "rank.0.et", *PROFILED)
    types, kinds = message_types(), ["GlobalMetadata", *["Node"] * len(PROFILED)]
    texts = [
        MessageToJson(getattr(types, kind).FromString(content))
        for kind, content in zip(kinds, read_messages(path), strict=True)
    ]
    named = "".join(texts).replace('"type": 4', '"type": "COMP_NODE"')
    (tmp_path / "json" / "rank.0.json").write_text(
        named.replace('"type": 7', '"type": "COMM_COLL_NODE"')
    )
    [written], [read] = (read_traces([tmp_path / kind]) for kind in ("et", "json"))
    assert read == replace(written, file=read.file)


@pytest.mark.parametrize(
    "text", ["", "{", '{"version": "0.0.4"} {"id": "x"}', "[]", '{"version": 3}']
)
def test_json_that_is_no_trace_is_refused(tmp_path, text):
    path = tmp_path / "bad.0.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"bad\.0\.json"):
        read_trace(path)


def test_a_send_without_its_ends_is_between_the_two_ranks_of_its_group_or_refused():
    send = Node(1, "ncclDevKernel_SendRecv", NodeType.COMM_SEND, 0.0, (),
                {"comm_size": GB, "pg_name": "0"})  # fmt: skip
    receive = replace(send, type=NodeType.COMM_RECV)
    pair = [RankTrace(0, (send,), {"0": (0, 1)}), RankTrace(1, (receive,), {"0": (0, 1)})]
    ends = [passes(1, kind, GB) for kind in (NodeType.COMM_SEND, NodeType.COMM_RECV)]
    expected = replay_traces(traces(ends[:1], ends[1:]), by_eye())
    assert replay_traces(pair, by_eye()).step_time_s == pytest.approx(expected.step_time_s)
    with pytest.raises(InputError, match="neither comm_src nor comm_dst"):
        replay_traces([RankTrace(0, (send,), {"0": (0, 1, 2)})], by_eye())


def as_bytes(folder: Path) -> bytes:
    write_trace(RankTrace(0, (computes(1, 1.0), reduces(2, GB, 1)), BOTH), folder / "good.0.et")
    content = (folder / "good.0.et").read_bytes()
    (folder / "good.0.et").unlink()
    return content


BAD = {
    "empty": lambda _: b"",
    "text": lambda _: b"not a trace, but a page of text",
    "json": lambda _: b'{"nodes": []}',
    "cut off": lambda good: good[:-3],
    "cut off inside a length": lambda good: good + b"\x80",
    "an endless length": lambda good: good + b"\xff" * 12,
    "a huge message": lambda good: good + b"\xff\xff\xff\x7f" + b"x" * 100,
    "no message": lambda good: good + b"\x04\xff\xff\xff\xff",
    "a node that comes twice": lambda good: good + good[good.rindex(b"\x08\x02") - 1 :],
    "an archive": lambda _: b"PK\x03\x04" + bytes(200),
    "compressed": lambda _: b"\x1f\x8b\x08" + bytes(range(200)),
}


@pytest.mark.parametrize("kind", BAD)
def test_broken_traces_are_clear_errors(tmp_path, kind):
    path = tmp_path / "bad.0.et"
    path.write_bytes(BAD[kind](as_bytes(tmp_path)))
    with pytest.raises(InputError, match=r"bad\.0\.et"):
        read_trace(path)


@pytest.mark.parametrize("length", range(1, 300, 7))
def test_a_trace_cut_off_anywhere_is_an_error_or_lacks_whole_nodes(tmp_path, length):
    path = tmp_path / "cut.0.et"
    content = as_bytes(tmp_path)
    path.write_bytes(content[:length])
    try:
        found = read_trace(path)
    except InputError:
        return
    assert len(found.nodes) <= 2


def test_too_many_nodes_are_refused_before_they_fill_the_memory(tmp_path):
    path = tmp_path / "long.0.et"
    nodes = tuple(computes(number, 1.0) for number in range(1, 50))
    write_trace(RankTrace(0, nodes), path)
    with pytest.raises(InputError, match=f"more nodes than the 40 that are left of {MAX_NODES:,}"):
        read_trace(path, 40)
    assert MAX_MESSAGE_BYTES < 2**25


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ([reduces(1, GB, 7)], [], "waits for node 7"),
        ([reduces(1, GB, **{names.GROUP: "9"})], [], "process group 9"),
        ([reduces(1, GB, **{names.COMM_TYPE: 42})], [], "comm_type"),
        ([reduces(1, -5)], [], "number of 0 or more"),
        ([computes(1, 1.0, 2), computes(2, 1.0, 1)], [], "deadlock"),
        ([replace(passes(1, NodeType.COMM_SEND, 1), attributes={"comm_src": 5, "comm_dst": 6})],
         [], "between this rank and another"),
        ([reduces(1, 1), passes(2, NodeType.COMM_SEND, 1, 1)],
         [passes(1, NodeType.COMM_RECV, 1), reduces(2, 1, 1)], "deadlock"),
    ],
)  # fmt: skip
def test_traces_that_contradict_themselves_are_clear_errors(first, second, why):
    with pytest.raises(InputError, match=why):
        replay_traces(traces(first, second), by_eye())


def test_ranks_that_order_their_streams_differently_are_clear_errors():
    groups_of_two = {"0": (0, 1), "1": (0, 1, 2)}
    one, other = reduces(1, 1), reduces(2, 1, **{names.GROUP: "1"})
    both = [
        RankTrace(0, (one, other), groups_of_two),
        RankTrace(1, (other, one), groups_of_two),
    ]
    with pytest.raises(InputError, match="another order"):
        replay_traces(both, by_eye())


def test_names_without_a_rank_and_empty_folders_are_clear_errors(tmp_path):
    with pytest.raises(InputError, match="holds no traces"):
        read_traces([tmp_path])
    with pytest.raises(InputError, match="no-such-folder: does not exist"):
        read_traces([tmp_path / "no-such-folder"])
    (tmp_path / "trace.et").write_bytes(b"")
    with pytest.raises(InputError, match="does not state its rank"):
        read_traces([tmp_path])


def test_a_missing_library_is_named_with_the_way_out(monkeypatch):
    import sys

    message_types.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(InputError, match="pip install 'protobuf>="):
        message_types()
