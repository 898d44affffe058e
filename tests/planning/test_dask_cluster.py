"""Does a Dask cluster of separate processes give the same rows?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import simulator as sim
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.planning import executors
from simulator.planning.executors import dask_executor

pytest.importorskip("distributed")

ROOT = Path(__file__).parent.parent.parent
GRID = {"plan.tp": [1, 2, 3], "plan.zero": [0, 1]}


@pytest.fixture(scope="module")
def scheduler():
    """Address of a scheduler with two workers, all of them processes of their own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    options = {"env": environment, "stderr": subprocess.PIPE, "text": True}
    dask = [sys.executable, "-m", "dask"]
    processes = [
        subprocess.Popen(
            [*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"], **options
        )
    ]
    try:
        lines = iter(processes[0].stderr.readline, "")
        address = next(found.group() for line in lines if (found := re.search(r"tcp://\S+", line)))
        for _ in range(2):
            worker = [*dask, "worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny"]
            processes.append(subprocess.Popen(worker, **options))
            ready = iter(processes[-1].stderr.readline, "")
            assert any("Registered to" in line for line in ready)
        yield address
    finally:
        for process in processes:
            process.kill()  # asked politely, a worker waits for its scheduler to come back
        for process in processes:
            process.wait()
            process.stderr.close()


@pytest.fixture
def job():
    return job_from_document(
        {
            "model": {"base": "gpt2", "layers": 4},
            "cluster": {"profile": "a100-sxm-80gb", "gpus": 4},
            "batch": {"global": 16, "seq_len": 1024},
        }
    )


@pytest.mark.slow
def test_rows_from_a_cluster_are_those_from_this_process(job, scheduler):
    with dask_executor(scheduler) as executor:
        spread = sim.sweep(job, GRID, executor)
    pd.testing.assert_frame_equal(spread, sim.sweep(job, GRID))


@pytest.mark.slow
def test_workers_of_another_version_are_refused(scheduler, monkeypatch):
    monkeypatch.setattr(executors, "__version__", "0.0.0")
    with pytest.raises(InputError, match="same version everywhere"), dask_executor(scheduler):
        pass


@pytest.mark.slow
def test_the_command_line_uses_the_cluster(clustersim_process, scheduler):
    direct = clustersim_process("--workers", "1")
    assert clustersim_process("--dask", scheduler) == direct
    assert "plan.tp" in direct


@pytest.fixture
def clustersim_process(write):
    """``clustersim sweep --json`` of a small job in a process of its own."""
    file = write(
        """
        model: {base: gpt2, layers: 4}
        cluster: {profile: a100-sxm-80gb, gpus: 4}
        batch: {global: 16, seq_len: 1024}
        """
    )

    def call(*options: str) -> str:
        words = ["sweep", str(file), "--grid", "plan.tp=1,2,3", "--json", *options]
        done = subprocess.run(
            [sys.executable, "-m", "simulator", *words],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    return call


def test_an_address_where_nobody_answers_is_the_users_to_mend(monkeypatch):
    monkeypatch.setattr(executors, "_TIMEOUT_S", 0.2)
    with (
        pytest.raises(InputError, match="no scheduler that answers"),
        dask_executor("tcp://127.0.0.1:9"),
    ):
        pass


def test_dask_that_is_not_installed_is_said_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"clustersim\[dask\]"), dask_executor("tcp://host:1"):
        pass
