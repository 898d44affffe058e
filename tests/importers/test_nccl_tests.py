"""Output of nccl-tests and rccl-tests becomes rows, or is refused with the line."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.importers.nccl_tests.measured_collective import bus_share
from simulator.importers.nccl_tests.nccl_tests_output import read_nccl_tests
from simulator.importers.nccl_tests.nccl_tests_run import Excerpt
from tests.nccl_output import (
    HEADING,
    Bench,
    device_lines,
    footer,
    json_output,
    rccl_output,
    settings_line,
    table_row,
    text_output,
)

SIZES = (1024, 2**20, 2**30)
ALL_REDUCE = Bench("all_reduce")

Save = Callable[[str, str], Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Write a text as it is; returns the file's path."""

    def save_file(text: str, name: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return save_file


def test_a_row_is_the_time_out_of_place_of_all_ranks(save: Save) -> None:
    file = read_nccl_tests(save(text_output(Bench("all_reduce", nodes=2), SIZES), "two.log"))
    row = file.rows[1]
    assert (row.kind, row.num_bytes, row.gpu) == ("all_reduce", 2.0**20, "H100 80GB HBM3")
    assert (row.ranks, row.nodes, row.gpus_per_node) == (16, 2, 8)
    assert row.seconds == pytest.approx(ALL_REDUCE.time_us(2**20) * 1e-6, abs=0.01e-6)
    assert row.id == "two.log: line 27"
    assert (row.nics_per_node, row.fabric, row.algorithm) == (None, None, "")
    assert file.libraries == ("NCCL 2.28.3",)
    assert file.excluded == ()


def test_text_and_json_of_one_run_give_the_same_rows(save: Save) -> None:
    bench = Bench("reduce_scatter", nodes=2)
    text = read_nccl_tests(save(text_output(bench, SIZES), "run.txt")).rows
    document = read_nccl_tests(save(json_output(bench, SIZES), "run.json")).rows
    for ours, theirs in zip(text, document, strict=True):
        assert ours.seconds == pytest.approx(theirs.seconds, rel=1e-3)
        assert replace(ours, id="", seconds=1.0) == replace(theirs, id="", seconds=1.0)


def test_the_environment_in_json_is_nowhere_in_what_was_read(save: Save) -> None:
    file = read_nccl_tests(save(json_output(ALL_REDUCE, SIZES, secret="hunter2"), "run.json"))
    assert "hunter2" not in repr(file)
    assert "host-0" not in repr(file)
    assert file.date == "2026-03-04"


def test_errors_in_json_do_not_show_the_environment(save: Save) -> None:
    whole = json_output(ALL_REDUCE, SIZES, secret="hunter2")
    document = json.loads(whole)
    del document["results"]
    for text in (whole[:-40], json.dumps(document)):
        with pytest.raises(InputError) as caught:
            read_nccl_tests(save(text, "run.json"))
        assert "hunter2" not in str(caught.value)


def test_json_without_mpi_lists_the_first_gpu_of_each_process_only(save: Save) -> None:
    document = json.loads(json_output(ALL_REDUCE, SIZES))
    document["config"]["ngpus"] = 8
    document["config"]["devices"] = document["config"]["devices"][:1]
    row = read_nccl_tests(save(json.dumps(document), "run.json")).rows[0]
    assert (row.ranks, row.nodes, row.one_process) == (8, 1, True)


def test_rccl_tests_are_read_with_their_own_headings(save: Save) -> None:
    bench = Bench("alltoall", gpu="AMD Instinct MI300X")
    file = read_nccl_tests(save(rccl_output(bench, SIZES), "alltoall.txt"))
    row = file.rows[0]
    assert file.libraries == ("RCCL 2.22.3",)
    assert (row.gpu, row.kind, row.ranks) == ("MI300X", "all_to_all", 8)
    assert row.one_process
    assert row.calls == 1


def test_every_run_of_a_file_is_read(save: Save) -> None:
    text = text_output(ALL_REDUCE, SIZES) + text_output(Bench("all_gather", nodes=4), SIZES)
    rows = read_nccl_tests(save(text, "both.txt")).rows
    assert [(row.kind, row.ranks) for row in rows] == [("all_reduce", 8)] * 3 + [
        ("all_gather", 32)
    ] * 3


@pytest.mark.parametrize("label", ["0: ", " 0: ", "[1,0]<stdout>:", "[pod/launcher-x] "])
def test_labels_of_launchers_before_each_line_are_cut_off(save: Save, label: str) -> None:
    text = text_output(ALL_REDUCE, SIZES)
    labelled = "".join(f"{label}{line}\n" for line in text.splitlines())
    assert (
        read_nccl_tests(save(labelled, "a.txt")).rows == read_nccl_tests(save(text, "a.txt")).rows
    )


def test_debug_lines_of_nccl_between_the_rows_do_not_matter(save: Save) -> None:
    text = text_output(ALL_REDUCE, SIZES)
    debug = "node7:123:456 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; 12 24 float\n"
    noisy = debug.join(text.splitlines(keepends=True))
    quiet_rows = read_nccl_tests(save(text, "a.txt")).rows
    noisy_rows = read_nccl_tests(save(noisy, "a.txt")).rows
    assert [row.seconds for row in noisy_rows] == [row.seconds for row in quiet_rows]


@pytest.mark.parametrize(
    "line",
    [
        "node7:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n",
        "$ mpirun -x NCCL_ALGO=RING ./all_reduce_perf -b 8 -e 1G -f 2\n",
    ],
)
def test_an_algorithm_that_was_forced_is_the_only_one_allowed(save: Save, line: str) -> None:
    text = text_output(ALL_REDUCE, SIZES)
    head, rest = text.split("#\n# Using", 1)
    forced = line + text if line.startswith("$") else f"{head}{line}#\n# Using{rest}"
    assert {row.algorithm for row in read_nccl_tests(save(forced, "a.txt")).rows} == {"ring"}


def old_output(name: str, error: str = "2e-07", out_of_bounds: int = 0) -> str:
    """A table of 2019, before #wrong, root and group were printed."""
    devices = device_lines(ALL_REDUCE).replace("Group  0 ", "")
    heading = HEADING.replace("    root", "").replace("#wrong", " error")
    row = table_row(ALL_REDUCE, 2**20, wrong=error).replace("      -1", "")
    return (
        f"{settings_line()}#\n# Using devices\n{devices}{heading}{row}"
        f"{footer(name, out_of_bounds)}".replace(f"# Collective test concluded: {name}_perf\n", "")
    )


def test_old_tables_are_read_and_their_rounding_errors_are_no_wrong_results(save: Save) -> None:
    rows = read_nccl_tests(save(old_output("all_reduce"), "nccl-allreduce-8.txt")).rows
    assert [(row.kind, row.ranks, row.num_bytes) for row in rows] == [("all_reduce", 8, 2.0**20)]


def test_wrong_results_that_no_row_names_exclude_the_run(save: Save) -> None:
    text = old_output("all_reduce", out_of_bounds=3)
    file = read_nccl_tests(save(text, "allreduce.txt"))
    assert file.rows == ()
    assert [(lost.rows, lost.reason) for lost in file.excluded] == [
        (1, "3 results were wrong, and the rows do not state which")
    ]


def test_rows_that_measure_nothing_are_left_out_with_line_and_reason(save: Save) -> None:
    good = table_row(ALL_REDUCE, 2**20)
    time_us, alg_bw, _ = ALL_REDUCE.rates(2**20)
    rows = (
        good
        + table_row(ALL_REDUCE, 2**21, wrong="7")
        + good.replace(f"{time_us:9.2f}", "      N/A", 1)
        + good.replace(f"{alg_bw:6.2f}", " 572.0", 1)
        + good[:60]
        + "\n"
        + f"{0:12d}  {0:12d}     float    none      -1     9.00    0.00    0.00      0"
        + "     9.00    0.00    0.00      0\n"
    )
    file = read_nccl_tests(save(text_output(ALL_REDUCE, (), rows=rows), "a.txt"))
    assert [row.id for row in file.rows] == ["a.txt: line 18"]
    reasons = {lost.place: lost.reason for lost in file.excluded}
    assert reasons["line 19"] == "7 wrong elements (#wrong)"
    assert reasons["line 20"] == "no out-of-place time"
    assert reasons["line 21"].startswith("algbw 572 GB/s is not size / time")
    assert reasons["line 22"].startswith("has 6 of 13 columns")
    assert reasons["line 23"] == "a message of zero bytes"


def test_rows_that_nobody_checked_are_taken_and_said(save: Save) -> None:
    rows = table_row(ALL_REDUCE, 2**20, wrong="N/A")
    file = read_nccl_tests(save(text_output(ALL_REDUCE, (), rows=rows), "a.txt"))
    assert len(file.rows) == 1
    assert file.assumed == (
        "line 3: results assumed correct in 1 rows, which did not check them (N/A)",
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("agg iters: 1", "agg iters: 4", "4 operations share one launch"),
        ("time   algbw", "cputime   algbw", "times of the CPU"),
        ("Rank  7 Group  0", "Rank  7 Group  1", "2 groups ran at the same time"),
        ("on     host-0 device  7", "on     host-1 device  7", "unevenly over the hosts: 7, 1"),
        ("[0000:07:00] NVIDIA H100", "[0000:07:00] NVIDIA H200", "GPUs of different kinds"),
    ],
)  # fmt: skip
def test_runs_that_do_not_measure_one_collective_alone_are_left_out(
    save: Save, old: str, new: str, reason: str
) -> None:
    text = text_output(ALL_REDUCE, (1024,))
    assert old in text
    file = read_nccl_tests(save(text.replace(old, new), "a.txt"))
    assert file.rows == ()
    assert file.excluded[0].rows == 1
    assert reason in file.excluded[0].reason


WHOLE = text_output(ALL_REDUCE, SIZES)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; give the output of nccl-tests"),
        ("name: h100\n", "is not output of nccl-tests or rccl-tests"),
        ("{}", "lacks config and results"),
        (WHOLE[: WHOLE.index("# Out of bounds")], "line 20: all_reduce_perf of line 3 was cut off "
            "after 3 sizes, the last of 1073741824 B"),
        (WHOLE[: WHOLE.index("#       size")], "was cut off before its first size"),
        (json_output(ALL_REDUCE, SIZES)[:-400], "is cut off or no JSON"),
        (json_output(ALL_REDUCE, SIZES).replace("average_bus_bandwidth", "x"),
            "was cut off after 3 sizes"),
        (WHOLE[WHOLE.index("#  Rank  0") :], "names a rank before any line"),
        (WHOLE[WHOLE.index("        1024 ") :], "is a table row without a heading"),
        (WHOLE.replace("#  Rank  3", "#  ...  3"), "names 7 ranks up to 7, but not rank 3"),
        (WHOLE.replace("Rank  1", "Rank  0"), "names rank 0 after rank 0: each process ran"),
        (WHOLE.replace("Rank  7", "Rank 99999999999"), "up to 99999999999, but not rank 7"),
        (WHOLE.replace(device_lines(ALL_REDUCE), ""), "names no GPUs"),
        (WHOLE.replace("all_reduce_perf", "a.out"), "does not say which collective was measured"),
        (WHOLE.replace("all_reduce", "all_gather"),
            "busbw / algbw = 1.750, but all_gather of 8 ranks has 0.875"),
    ],
)  # fmt: skip
def test_files_without_meaning_are_refused_with_the_place(save: Save, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read_nccl_tests(save(text, "log.txt"))
    assert says in str(caught.value)
    assert "log.txt" in str(caught.value)
    assert all(fault.hint or "JSON object" in fault.rule for fault in caught.value.faults)


def test_the_rows_of_a_run_that_was_cut_off_are_there_for_who_asks(save: Save) -> None:
    cut = save(WHOLE[: WHOLE.index("# Out of bounds")], "log.txt")
    assert len(read_nccl_tests(cut, partial=True).rows) == 3


DOCUMENT = json_output(ALL_REDUCE, SIZES)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([WHOLE, DOCUMENT]),
    st.integers(0, 2**14),
    st.integers(0, 400),
    st.text(max_size=3),
)
def test_a_damaged_file_is_read_or_refused_and_never_crashes(
    text: str, start: int, length: int, other: str
) -> None:
    damaged = text[:start] + other + text[start + length :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.txt"
        path.write_text(damaged, encoding="utf-8", errors="replace")
        with contextlib.suppress(InputError):
            rows = read_nccl_tests(path, partial=True).rows
            assert all(row.num_bytes > 0 and row.seconds > 0 for row in rows)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(WHOLE) - len(footer("all_reduce")) + 30))
def test_a_file_that_ends_too_early_is_always_refused(end: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.txt"
        path.write_text(WHOLE[:end], encoding="utf-8")
        with pytest.raises(InputError):
            read_nccl_tests(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_nccl_tests(tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("kind", "share"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("all_to_all", 0.875), ("broadcast", 1.0)],
)
def test_bus_bandwidth_is_what_a_ring_moves_through_a_port(kind: str, share: float) -> None:
    assert bus_share(kind, 8) == share


def pasted(bench: Bench) -> str:
    """What people paste: the heading and the rows."""
    return HEADING + "".join(table_row(bench, 2**power) for power in range(20, 26))


def test_a_pasted_table_is_read_once_it_is_said_what_ran(tmp_path):
    bench = Bench("all_gather", nodes=2)
    path = tmp_path / "pasted.txt"
    path.write_text(pasted(bench))
    found = read_nccl_tests(path, excerpt=Excerpt("all_gather", 16, 2))
    assert {(row.kind, row.ranks, row.nodes, row.gpus_per_node) for row in found.rows} == {
        ("all_gather", 16, 2, 8)
    }
    assert [row.seconds for row in found.rows] == [
        pytest.approx(bench.time_us(2**power) * 1e-6, rel=1e-3) for power in range(20, 26)
    ]


def test_a_pasted_table_alone_asks_what_ran(tmp_path):
    path = tmp_path / "pasted.txt"
    path.write_text(pasted(Bench("all_reduce")))
    with pytest.raises(InputError, match=r"line 3: .*no line above it .*--collective all_reduce"):
        read_nccl_tests(path)


def test_where_the_ranks_are_listed_the_collective_alone_is_said(tmp_path):
    path = tmp_path / "output.txt"
    bench = Bench("all_gather", nodes=2)
    whole = settings_line() + device_lines(bench) + pasted(bench)
    path.write_text(whole + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 123.456\n")
    with pytest.raises(InputError, match="or say --collective all_reduce"):
        read_nccl_tests(path)
    found = read_nccl_tests(path, excerpt=Excerpt("all_gather"))
    assert {(row.kind, row.ranks, row.nodes) for row in found.rows} == {("all_gather", 16, 2)}


def test_neither_ranks_listed_nor_said_are_asked_for(tmp_path):
    path = tmp_path / "pasted.txt"
    path.write_text(pasted(Bench("all_reduce")))
    with pytest.raises(InputError, match=r"names no GPUs.*--ranks 16"):
        read_nccl_tests(path, excerpt=Excerpt("all_reduce"))


def test_a_pasted_table_of_other_ranks_than_said_is_refused(tmp_path):
    path = tmp_path / "pasted.txt"
    path.write_text(pasted(Bench("all_reduce")))
    with pytest.raises(InputError, match=r"busbw / algbw = 1\.75"):
        read_nccl_tests(path, excerpt=Excerpt("all_reduce", 16, 2))


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (("all_reduces", 8, 1), "--collective"),
        (("all_reduce", 8, 3), "divide the 8 ranks"),
        (("all_reduce", None, 2), "--ranks: is needed beside --nodes"),
    ],
)
def test_what_is_said_of_a_pasted_table_is_checked(said, rule):
    with pytest.raises(InputError, match=rule):
        Excerpt(*said)
