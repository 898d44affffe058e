"""Predictions beside measured rows: facts of a row, and accuracy on published rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.described.load import load_profile, profile_names
from simulator.errors import InputError
from simulator.importers.nccl_tests.measured_collective import CollectiveRow
from simulator.tables.collective_rows import (
    counted_s,
    group_of,
    host_s,
    network_of,
    predicted_s,
    read_collective_rows,
    reason_to_skip,
)
from simulator.tables.spellings import profile_name_of
from simulator.validate.collective_errors import validate_collectives

HEADER = (
    "id,source,collective,gpu,gpus,nodes,gpus_per_node,intra,inter,nics_per_node,nic_gbps,"
    "algo,bytes,time_us,nccl_version,notes"
)
H100 = "H100-SXM5-80GB"
NDR = "NVLink4+NVSwitch,InfiniBand NDR,8,400"

PUBLISHED = [
    # 2 and 4 nodes of 8 H100, InfiniBand NDR: NVIDIA/nccl-tests issue 309
    f"ib-2n-16b,,all_reduce,{H100},16,2,8,{NDR},,16,24.93,,",
    f"ib-2n-8m,,all_reduce,{H100},16,2,8,{NDR},,8388608,133.0,,",
    f"ib-2n-1g,,all_reduce,{H100},16,2,8,{NDR},,1073741824,4485,,",
    f"ib-4n-1g,,all_reduce,{H100},32,4,8,{NDR},,1073741824,5809,,",
    # 8 H100 of one node: ai-dynamo/aiconfigurator nccl tables
    f"h100-ar,,all_reduce,{H100},8,1,8,NVLink4+NVSwitch,,0,0,,512,15.59,,",
    f"h100-ag,,all_gather,{H100},8,1,8,NVLink4+NVSwitch,,0,0,,536870912,1401.5,,",
    # 8 A100: microsoft/superbenchmark logs, one process on all GPUs
    "a100-rs,,reduce_scatter,A100-SXM4-40GB,8,1,8,NVLink3+NVSwitch,,0,0,,32,34.4,,1 process",
    # 2 and 8 MI300X on a full mesh: stas00/ml-engineering
    "mi300x-2,,all_reduce,MI300X,2,1,2,xGMI,,0,0,,4294967296,90096,,",
    "mi300x-8,,all_reduce,MI300X,8,1,8,xGMI,,0,0,,4294967296,24020,,",
]


@pytest.fixture
def table(write: Callable[..., Path]) -> Callable[[Sequence[str]], Path]:
    """Write rows below the header; returns the file's path."""
    return lambda rows: write("\n".join([HEADER, *rows]) + "\n", "measured.csv")


@pytest.fixture
def row(table: Callable[[Sequence[str]], Path]) -> CollectiveRow:
    """All-reduce of 1 GiB on two nodes of eight H100."""
    return read_collective_rows(table([PUBLISHED[2]]))[0]


def test_published_rows_are_predicted_within_a_quarter(
    table: Callable[[Sequence[str]], Path],
) -> None:
    report = validate_collectives(table(PUBLISHED))
    errors = {r.id: r.error_pct for r in report.rows}
    assert all(error is not None and abs(error) <= 25 for error in errors.values()), errors


def test_report_has_rows_summary_and_groups(table: Callable[[Sequence[str]], Path]) -> None:
    unknown = "x,,all_reduce,TPU v5,8,1,8,ICI,,0,0,,1024,10,,"
    document = validate_collectives(table([*PUBLISHED, unknown])).to_dict()
    assert set(document) == {"rows", "summary", "groups"}
    needed = {"id", "gpu", "measured_us", "predicted_us", "error_pct", "skipped"}
    assert needed <= set(document["rows"][0])
    assert document["rows"][-1]["skipped"] == "no hardware profile describes the GPU"
    summary = document["summary"]
    assert summary["n"] == len(PUBLISHED)
    assert summary["skipped"] == 1
    assert summary["worst_ape"] >= summary["mape"] >= 0
    groups = {(g["gpu"], g["collective"]): g["n"] for g in document["groups"]}
    assert groups[H100, "all_reduce"] == 5


def test_error_is_positive_where_the_prediction_is_too_slow(
    table: Callable[[Sequence[str]], Path],
) -> None:
    too_fast = PUBLISHED[0].replace("24.93", "1.0")
    result = validate_collectives(table([too_fast])).rows[0]
    assert result.predicted_us is not None
    assert result.error_pct == pytest.approx(100 * (result.predicted_us - 1.0))


def test_the_rows_nics_override_the_profiles(row: CollectiveRow) -> None:
    profile = load_profile("h100-sxm-80gb").network
    slow = replace(row, nic_bytes_per_s=5e9)
    assert network_of(slow, profile).fabric.nic_bytes_per_s == 5e9
    slow_s = predicted_s(slow, network_of(slow, profile))
    assert slow_s > 5 * predicted_s(row, network_of(row, profile))


def test_another_fabric_than_the_profiles_takes_the_librarys_parameters(
    row: CollectiveRow,
) -> None:
    profile = load_profile("h100-sxm-80gb").network
    other = network_of(replace(row, fabric="tcpx"), profile).fabric
    assert (other.kind, other.nics_per_node) == ("tcpx", 8)
    assert other.bulk_latency_s > profile.fabric.bulk_latency_s


def test_a_rack_is_one_domain_and_two_racks_share_the_ranks_evenly(row: CollectiveRow) -> None:
    rack = load_profile("gb200-nvl72").network
    assert group_of(replace(row, ranks=64), rack).nodes == 1
    two = group_of(replace(row, ranks=128), rack)
    assert (two.nodes, two.ranks_per_node) == (2, 64)


def test_one_process_on_eight_gpus_takes_eight_launches(
    table: Callable[[Sequence[str]], Path],
) -> None:
    row = read_collective_rows(table([PUBLISHED[6]]))[0]
    network = network_of(row, load_profile("a100-sxm-40gb").network)
    assert host_s(row, network) == pytest.approx(8 * 4.5e-6)
    assert predicted_s(row, network) == host_s(row, network)


@pytest.mark.parametrize(
    ("kib", "measured_us"), [(64, 36.3), (128, 40.2), (256, 46.5), (512, 58.5), (1024, 73.0)]
)
def test_an_old_library_of_one_process_queues_every_channel_by_itself(
    table: Callable[[Sequence[str]], Path], kib: int, measured_us: float
) -> None:
    # all_gather of 8 A100: microsoft/superbenchmark, tests/data/nccl_allgather.log
    notes = "1 process; Launch mode Parallel"
    line = f"x,,all_gather,A100-SXM4-40GB,8,1,8,NVLink3+NVSwitch,,0,0,,{kib}K,1,,{notes}"
    row = read_collective_rows(table([line]))[0]
    network = network_of(row, load_profile("a100-sxm-40gb").network)
    assert host_s(row, network) == pytest.approx(measured_us * 1e-6, rel=0.06)
    assert host_s(replace(row, by_channel=False), network) == pytest.approx(36e-6)


@pytest.mark.parametrize(("apart_us", "one_us"), [(81.7, 103.8), (130.6, 162.6), (616, 696)])
def test_a_collective_of_gpus_that_one_process_starts_takes_what_one_machine_took_both_ways(
    table: Callable[[Sequence[str]], Path], apart_us: float, one_us: float
) -> None:
    # all_reduce of 8 A100 by eight processes and by one: notes on nccl-tests of one A100 node.
    one = read_collective_rows(table([PUBLISHED[6].replace("reduce_scatter", "all_reduce")]))[0]
    network = network_of(one, load_profile("a100-sxm-80gb").network)
    assert counted_s(one, apart_us * 1e-6, network) == pytest.approx(one_us * 1e-6, rel=0.05)
    apart = replace(one, one_process=False)
    assert counted_s(apart, apart_us * 1e-6, network) == apart_us * 1e-6


def test_a_call_that_is_timed_by_itself_counts_its_launch(row: CollectiveRow) -> None:
    network = network_of(row, load_profile("h100-sxm-80gb").network)
    alone = replace(row, one_call=True)
    assert predicted_s(alone, network) == pytest.approx(predicted_s(row, network) + 25e-6)


def test_the_notes_of_a_row_say_that_calls_were_timed_one_by_one(
    table: Callable[[Sequence[str]], Path],
) -> None:
    torch_row = PUBLISHED[0] + "torch all_reduce_bench.py on one node"
    rows = read_collective_rows(table([PUBLISHED[0], torch_row]))
    assert [each.one_call for each in rows] == [False, True]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "barrier"}, "barrier is not a modelled collective"),
        ({"links": "nvlink bridge pair"}, "a bridge connects the GPUs"),
        ({"fabric": None, "nics_per_node": None}, "the fabric between the nodes is not stated"),
        ({}, ""),
    ],
)
def test_rows_are_skipped_for_facts_only(
    row: CollectiveRow, change: dict[str, object], reason: str
) -> None:
    assert reason_to_skip(replace(row, **change)).startswith(reason)  # type: ignore[arg-type]
    assert bool(reason_to_skip(replace(row, **change))) == bool(reason)  # type: ignore[arg-type]


def test_short_rows_are_refused_where_it_is_not_stated_who_launched(
    table: Callable[[Sequence[str]], Path],
) -> None:
    notes = "how processes were started is not stated"
    lines = [
        f"{us}-us,,all_gather,{H100},8,1,8,NVLink,,0,0,,1M,{us},,{said}"
        for us, said in ((47, notes), (73, notes), (47, ""))
    ]
    reasons = [reason_to_skip(each) for each in read_collective_rows(table(lines))]
    assert reasons == ["who launched it is not stated, and it is short", "", ""]


def test_a_table_of_another_kind_is_refused_with_what_is_wanted(write: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=r"is a table of another kind; .*time_us") as caught:
        validate_collectives(write("a,b\n1,2\n", "t.csv"))
    assert str(caught.value).count("time_us") == 1


def test_a_table_without_a_needed_column_is_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="lacks the columns bytes, time_us"):
        validate_collectives(write("id,collective,gpu,gpus,nodes,gpus_per_node\n", "t.csv"))


def test_a_missing_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        validate_collectives(tmp_path / "none.csv")


NDR_HOSTS = f"{H100},16,2,8,NVLink4+NVSwitch"


@pytest.mark.parametrize(
    "line",
    [
        f"x,,AllReduce,{NDR_HOSTS},IB NDR,8,400,,1G,4485,,",
        f"x,,all-reduce,{H100},16.0,,8.0,NVLink,infiniband-ndr,8.0,400.0,auto,1 GiB,4485,,",
        "x,,all_reduce_perf,NVIDIA H100 80GB HBM3,16,2,,,InfiniBand,8,400,,1073741824,4485,,",
        f"x,,all_reduce,{H100},16,2,-,,ib,8,400,\"Ring,Tree\",1073741824.0,4485,,",
    ],
)  # fmt: skip
def test_a_row_in_other_words_is_the_same_collective(
    table: Callable[[Sequence[str]], Path], line: str
) -> None:
    given, other = validate_collectives(table([PUBLISHED[2], line])).rows
    assert other.skipped == ""
    assert other.predicted_us == given.predicted_us


def test_one_row_that_cannot_be_read_stops_no_other(
    table: Callable[[Sequence[str]], Path],
) -> None:
    odd = [
        f"x,,all_reduce,{H100},many,2,8,{NDR},,1024,10,,",
        f"x,,all_reduce,{H100},16,2,8,{NDR},,1024,0,,",
        f"x,,all_reduce,{H100},16,2,8,{NDR},,1024,,,",
        f"x,,all_reduce,{H100},1,1,1,{NDR},,1024,10,,",
        f"x,,all_reduce,{H100},16,32,8,{NDR},,1024,10,,",
    ]
    report = validate_collectives(table([*odd, PUBLISHED[0]]))
    reasons = [row.skipped for row in report.rows]
    assert reasons == [
        "gpus: must be a whole number, not 'many'",
        "time_us: must be a positive number, not '0'",
        "time_us: neither a time nor a bandwidth is stated",
        "no data is exchanged",
        "nodes: 32 nodes need at least one GPU each, but there are 16",
        "",
    ]
    assert (report.summary.n, report.summary.skipped) == (1, 5)


def test_hosts_of_which_some_gpus_take_part_use_their_share_of_the_nics(
    table: Callable[[Sequence[str]], Path],
) -> None:
    """Two hosts with one GPU each are two hosts, whichever number of GPUs they hold."""
    line = f"x,,all_reduce,{H100},2,2,8,NVLink,InfiniBand NDR,,,,1G,100000,,"
    row = read_collective_rows(table([line]))[0]
    network = network_of(row, load_profile("h100-sxm-80gb").network)
    assert (row.gpus_per_node, network.fabric.nics_per_node) == (1, 1)


def test_a_gpu_reaches_one_of_the_nics_of_its_host_or_as_many_slow_ones_as_make_up_its_own(
    table: Callable[[Sequence[str]], Path],
) -> None:
    """One H100 with four NICs of 400 Gbit/s passes 42 GB/s: NVIDIA/nccl-tests issue #232."""
    profile = load_profile("h100-sxm-80gb").network
    one = f"x,,all_reduce,{H100},2,2,1,NVLink,RoCE,4,400,,1G,100000,,"
    all_of_them = f"y,,all_reduce,{H100},16,2,8,NVLink,EFA,32,100,,1G,100000,,"
    for row, gpus in zip(read_collective_rows(table([one, all_of_them])), (1, 8), strict=True):
        fabric = network_of(row, profile).fabric
        assert fabric.nics_per_node * fabric.nic_bytes_per_s == pytest.approx(gpus * 50e9)


def test_a_gather_takes_its_root_as_long_as_an_exchange_of_all_with_all(
    row: CollectiveRow,
) -> None:
    network = network_of(row, load_profile("h100-sxm-80gb").network)
    everyone = predicted_s(replace(row, kind="all_to_all"), network)
    assert predicted_s(replace(row, kind="gather"), network) == everyone
    assert predicted_s(replace(row, kind="scatter"), network) == everyone


def test_an_algorithm_that_the_links_do_not_have_was_not_the_one_that_ran(
    row: CollectiveRow,
) -> None:
    network = load_profile("a100-sxm-80gb").network
    here = network_of(replace(row, nodes=1, ranks=8), network)
    forced = replace(row, nodes=1, ranks=8, algorithm="in_switch")
    assert predicted_s(forced, here) == predicted_s(replace(forced, algorithm=""), here)


def test_cards_that_only_pcie_joins_are_the_cards(
    table: Callable[[Sequence[str]], Path],
) -> None:
    line = "x,,all_reduce,A100-80GB,8,1,8,{},,,,,1G,100000,,"
    card, module = read_collective_rows(
        table([line.format("PCIe4 (no NVLink)"), line.format("NVLink3")])
    )
    names = [profile_name_of(each.gpu, profile_names()) for each in (card, module)]
    assert names == ["a100-pcie-80gb", "a100-sxm-80gb"]


def test_hosts_of_one_rack_need_no_fabric(row: CollectiveRow) -> None:
    rack = replace(row, gpu="GB200", ranks=64, nodes=16, fabric=None, nics_per_node=None)
    assert reason_to_skip(rack) == ""
    assert reason_to_skip(replace(rack, ranks=128, nodes=32)).startswith("the fabric")


def test_a_bandwidth_tells_the_time_where_none_is_stated(
    table: Callable[[Sequence[str]], Path],
) -> None:
    path = table([PUBLISHED[2].replace("4485", "")])
    head, line = path.read_text().splitlines()
    path.write_text(f"{head},algbw_GBs,busbw_GBs\n{line},,375\n")
    (row,) = read_collective_rows(path)
    assert row.seconds == pytest.approx(2**30 * 2 * 15 / 16 / 375e9)
