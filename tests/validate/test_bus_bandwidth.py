"""Points and curves of bus bandwidth for each system of a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.validate.measured_bandwidths import bus_bandwidths, draw_bus_bandwidths

TABLE = """\
id,collective,gpu,gpus,nodes,gpus_per_node,inter,nics_per_node,nic_gbps,bytes,time_us
a,all_reduce,H100-SXM5-80GB,8,1,8,,0,0,1073741824,4000
b,all_reduce,H100-SXM5-80GB,8,1,8,,0,0,1048576,30
c,all_reduce,H100-SXM5-80GB,16,2,8,InfiniBand NDR,8,400,1073741824,4485
d,all_gather,MI300X,8,1,8,,0,0,1073741824,4000
e,all_reduce,Unheard-Of,8,1,8,,0,0,1073741824,4000
"""


@pytest.fixture
def table(write: Callable[..., Path]) -> Path:
    return write(TABLE, "measured.csv")


def test_every_system_with_a_profile_has_a_panel_per_collective_and_scale(table):
    systems = bus_bandwidths(table)
    labels = {gpu: list(dict.fromkeys(row.label for row in rows)) for gpu, rows in systems.items()}
    assert labels == {
        "H100-SXM5-80GB": ["all reduce, 8 GPUs", "all reduce, 16 GPUs\n2 nodes, ib, 8 NICs"],
        "MI300X": ["all gather, 8 GPUs"],
    }


def test_measured_bus_bandwidth_is_what_nccl_tests_prints(table):
    """All-reduce of 1 GiB on 16 ranks in 4.485 ms: 2 x 15/16 of 239 GB/s."""
    rows = bus_bandwidths(table)["H100-SXM5-80GB"]
    measured = [row for row in rows if row.label.startswith("all reduce, 16") and row[2]]
    assert [row.measured_bytes_per_s for row in measured] == [
        pytest.approx(2 * 15 / 16 * 2**30 / 4485e-6)
    ]


def test_a_curve_runs_from_the_smallest_measured_size_to_the_largest(table):
    rows = bus_bandwidths(table)["H100-SXM5-80GB"]
    curve = [r.num_bytes for r in rows if r.measured_bytes_per_s is None]
    assert (min(curve), max(curve)) == pytest.approx((2**20, 2**30))
    assert len(curve) > 20


def test_calls_that_were_timed_one_by_one_have_a_panel_and_a_smooth_curve_of_their_own(write):
    """The start of a call is in their time; one curve through both kinds of rows is jagged."""
    head, *_ = TABLE.splitlines()
    alone = "f,all_reduce,MI300X,8,1,8,,0,0,4294967296,24000,all_reduce_bench.py of a test"
    many = [f"g{n},all_reduce,MI300X,8,1,8,,0,0,{2**n},{2**n / 1e5 + 30}," for n in range(18, 31)]
    table = write("\n".join([f"{head},notes", alone, *many]) + "\n", "measured.csv")
    rows = bus_bandwidths(table)["MI300X"]
    assert {row.label for row in rows} == {"all reduce, 8 GPUs", "all reduce, 8 GPUs\none call"}
    curve = sorted((row.num_bytes, row[3]) for row in rows if "call" not in row.label)
    rates = [rate for _, rate in curve]
    assert rates == sorted(rates)


def test_a_picture_per_system_is_written(table, tmp_path):
    names = [path.name for path in draw_bus_bandwidths(table, tmp_path / "new")]
    assert names == ["h100-sxm5-80gb.png", "mi300x.png"]
    assert all((tmp_path / "new" / name).stat().st_size > 5000 for name in names)


def test_a_row_that_cannot_be_read_leaves_the_picture_of_the_others(write):
    head = "id,collective,gpu,gpus,nodes,gpus_per_node,intra,inter,bytes,time_us"
    sound = "a,all_reduce,H100-SXM5-80GB,8,1,8,NVLink,,1048576,50"
    odd = "b,all_reduce,H100-SXM5-80GB,8,1,8,NVLink,,1048576,slow"
    path = write("\n".join([head, sound, odd]) + "\n", "measured.csv")
    (drawn,) = bus_bandwidths(path).values()
    assert len(drawn) == 1
