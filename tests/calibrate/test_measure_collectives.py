"""Real collectives of two gloo ranks become a table, and a profile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from simulator.calibrate.network.measure_collectives import (
    CollectiveWorld,
    collective_cases,
    launched_world,
)
from simulator.calibrate.network.measured_network import read_measured
from simulator.calibrate.profile_text import processor_profile_text
from simulator.described.load import load_profile
from simulator.errors import InputError
from simulator.tables.collective_table import COLUMNS, append_row, new_table, own_table
from simulator.tables.kernel_rows import KernelRow
from tests.csv_files import read_rows

ROOT = Path(__file__).parents[2]
RANKS = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
KINDS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"}


def world(ranks: int, ranks_per_node: int) -> CollectiveWorld:
    cpu = torch.device("cpu")
    return CollectiveWorld(0, ranks, "gloo", cpu, ranks_per_node, "a CPU", "gloo", "today")


@pytest.mark.parametrize(
    ("ranks", "per_node", "groups"),
    [(2, 2, [2]), (8, 8, [2, 4, 8]), (6, 6, [2, 4, 6]), (32, 8, [2, 4, 8, 16, 32]), (3, 1, [2, 3])],
)
def test_groups_are_parts_of_a_node_and_then_whole_nodes(ranks, per_node, groups):
    assert world(ranks, per_node).groups == groups


def test_every_collective_is_measured_in_every_group_and_size():
    cases = collective_cases(world(4, 4), largest_bytes=2**14)
    assert len({case.id for case in cases}) == len(cases)
    assert {case.kind for case in cases} == KINDS
    assert {case.num_bytes for case in cases} == {2**10, 2**12, 2**14}
    assert {case.ranks for case in cases if case.kind == "send_recv"} == {2}


@pytest.mark.parametrize(
    ("environment", "rule"),
    [
        ({}, "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE is not set"),
        (
            {**RANKS, "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
            "no other rank to communicate with",
        ),
        ({**RANKS, "WORLD_SIZE": "5"}, "2 does not divide 5"),
    ],
)
def test_a_wrong_world_is_refused_with_the_way_to_start_one(environment, rule):
    with pytest.raises(InputError, match=rule) as refused:
        launched_world("gloo", environment)
    assert "torchrun" in str(refused.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_without_a_gpu_is_refused_with_the_way_out():
    with pytest.raises(InputError, match=r"NCCL.*--backend gloo|a GPU per rank.*--backend gloo"):
        launched_world("nccl", RANKS)


def row(size: int, seconds: float) -> dict[str, object]:
    return {
        "id": f"all_reduce-2-{size}", "collective": "all_reduce", "gpu": "a CPU", "gpus": 2,
        "nodes": 1, "gpus_per_node": 2, "bytes": size, "time_us": seconds * 1e6,
        "nccl_version": "gloo of torch 2", "notes": "",
    }  # fmt: skip


def test_a_table_measured_here_is_of_one_system_whatever_its_name(tmp_path):
    path = tmp_path / "own.csv"
    new_table(path)
    append_row(path, "2026-01-02", row(1024, 1e-4))
    read = read_measured(path)
    assert not read.is_collection
    assert read.libraries == ("gloo of torch 2",)
    assert read.date == "2026-01-02"
    assert read.rows[0].seconds == pytest.approx(1e-4)


def test_a_table_with_rows_from_elsewhere_is_a_collection(tmp_path):
    path = tmp_path / "mixed.csv"
    new_table(path)
    append_row(path, "2026-01-02", row(1024, 1e-4))
    path.write_text(path.read_text().replace(",own,", ",open,"))
    assert own_table(path) is None
    assert read_measured(path).is_collection


@pytest.fixture
def profile(tmp_path) -> Path:
    """A processor's profile, whose links are guesses."""
    rows = [
        KernelRow({"op": "gemm", "dtype": "fp32", "tflops": "0.1"}),
        KernelRow({"op": "stream_copy", "gbps": "10"}),
    ]
    path = tmp_path / "cpu.yaml"
    path.write_text(processor_profile_text("cpu", "a CPU", 2**33, rows, "a test"))
    return path


def torchrun(*words: object) -> subprocess.CompletedProcess[str]:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launch, "-m", "simulator", "calibrate", "collectives"]
    return subprocess.run(
        [*command, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_two_gloo_ranks_make_a_table_and_a_profile(tmp_path, profile):
    pytest.importorskip("scipy")
    table, out = tmp_path / "net.csv", tmp_path / "ours.yaml"
    words = ("--profile", profile, "--measure", table, "--out", out, "--largest", "4 KiB")
    first = torchrun(*words)
    assert first.returncode == 0, first.stderr
    rows = read_rows(table)
    assert tuple(rows[0]) == COLUMNS
    assert {row["collective"] for row in rows} == KINDS
    assert len(rows) == len(KINDS) * 2
    assert all(float(row["time_us"]) > 0 for row in rows)
    assert load_profile(str(out)).network.gpus_per_node == 16
    assert first.stdout.count("errors of 12 rows") == 1


@pytest.mark.slow
def test_half_a_table_is_gone_on_with(tmp_path, profile):
    pytest.importorskip("scipy")
    table = tmp_path / "net.csv"
    words = ("--profile", profile, "--measure", table, "--largest", "1 KiB")
    torchrun(*words)
    kept = table.read_text()
    table.write_text(kept[:-30])
    resumed = torchrun(*words, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    again = table.read_text()
    assert again.startswith(kept.rsplit("\n", 2)[0])
    assert len(again.splitlines()) == len(kept.splitlines())
