"""Does a Dask cluster of separate processes give the same rows?"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import simulator as sim
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.planning import dask_cluster
from simulator.planning.dask_cluster import dask_executor
from simulator.planning.executors import run_on_executor

pytest.importorskip("distributed")

ROOT = Path(__file__).parent.parent.parent
GRID = {"plan.tp": [1, 2, 3], "plan.zero": [0, 1]}


class Cluster:
    """A scheduler and its workers, all of them processes of their own.

    Attributes:
        address: Of the scheduler.
        scheduler: Its process.
        workers: Theirs.
    """

    def __init__(self, workers, *options, protocol="tcp"):
        self.workers = []
        host = ["--host", "127.0.0.1", "--port", "0", "--protocol", protocol]
        self.scheduler, line = self._started(rf"{protocol}://\S+", "scheduler", *host, *options)
        self.address = line.group()
        for _ in range(workers):
            words = ["worker", self.address, "--nthreads", "1", "--no-nanny", *options]
            self.workers.append(self._started("Registered to", *words)[0])

    def _started(self, ready, *words):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *words, "--no-dashboard"],
            env=environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        lines = iter(process.stderr.readline, "")
        return process, next(found for line in lines if (found := re.search(ready, line)))

    def end(self):
        for process in [*self.workers, self.scheduler]:
            process.kill()  # asked politely, a worker waits for its scheduler to come back
            process.wait()
            process.stderr.close()


@pytest.fixture(scope="module")
def scheduler():
    """Address of a scheduler with two workers."""
    cluster = Cluster(2)
    yield cluster.address
    cluster.end()


@pytest.fixture
def cluster():
    """A cluster of one worker that a test may kill."""
    made = Cluster(1)
    yield made
    made.end()


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
def test_a_search_on_a_cluster_that_loses_a_worker_finds_the_plans_of_one_process(job):
    cluster, lost = Cluster(2), []

    def lose_a_worker(_progress):
        if not lost:
            lost.append(cluster.workers[0])
            lost[0].kill()

    try:
        with dask_executor(cluster.address) as executor:
            spread = sim.plan(
                job, top=3, why=False, workers=4, executor=executor, on_progress=lose_a_worker
            )
    finally:
        cluster.end()
    assert lost
    assert spread.choices == sim.plan(job, top=3, why=False, workers=1).choices


@pytest.mark.slow
def test_steps_that_a_cluster_samples_and_redoes_are_those_of_one_process(job):
    varied = job.replace({"variation": {"compute": {"sigma": 0.1}}})
    cluster = Cluster(2)
    try:
        with dask_executor(cluster.address) as executor:
            cluster.workers[0].kill()
            spread = sim.sample(varied, 3000, executor=executor)
    finally:
        cluster.end()
    assert spread.to_dict() == sim.sample(varied, 3000).to_dict()


@pytest.mark.slow
def test_workers_of_another_version_are_refused(scheduler, monkeypatch):
    monkeypatch.setattr(dask_cluster, "__version__", "0.0.0")
    with pytest.raises(InputError, match="the same versions everywhere"), dask_executor(scheduler):
        pass


@pytest.mark.slow
def test_workers_with_another_library_are_refused(scheduler, monkeypatch):
    monkeypatch.setattr(dask_cluster, "_LIBRARIES", ("numpy", "no-such-library"))
    monkeypatch.setattr(dask_cluster, "version", lambda library: "0.1")
    with (
        pytest.raises(InputError, match=r"numpy none|numpy .* beside 0\.1 here"),
        dask_executor(scheduler),
    ):
        pass


def slow_row(row):
    time.sleep(0.5)
    return row


def rows_until_lost(address, when_three_are_there):
    """How many rows came back, and what the caller is told once no more can come."""
    rows = 0
    try:
        with dask_executor(address) as executor:
            for rows, _ in enumerate(run_on_executor(slow_row, range(100), executor), start=1):
                if rows == 3:
                    when_three_are_there()
    except InputError as told:
        return rows, str(told)
    return rows, ""


@pytest.mark.slow
def test_a_killed_scheduler_ends_the_work_with_a_way_on(cluster):
    rows, told = rows_until_lost(cluster.address, cluster.scheduler.kill)
    assert 3 <= rows < 100
    assert "lost its scheduler" in told
    assert "the same command" in told


@pytest.mark.slow
def test_a_cluster_whose_last_worker_died_is_not_awaited_for_ever(cluster, monkeypatch):
    monkeypatch.setattr(dask_cluster, "_LOOK_EVERY_S", 0.2)
    monkeypatch.setattr(dask_cluster, "_WITHOUT_WORKERS_S", 1.0)
    rows, told = rows_until_lost(cluster.address, cluster.workers[0].kill)
    assert 3 <= rows < 100
    assert "has had no workers for 1 s" in told


@pytest.fixture
def tls_files(tmp_path):
    """A folder with a certificate that signs itself, its key, and the file that names both."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
         "-subj", "/CN=127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    named = "ca_file: cert.pem\nclient_cert: cert.pem\nclient_key: key.pem\n"
    (tmp_path / "tls.yaml").write_text(named)
    return tmp_path


@pytest.mark.slow
def test_a_scheduler_that_speaks_tls_takes_who_shows_a_certificate_and_nobody_else(
    tls_files, clustersim_process, monkeypatch
):
    cert, key = str(tls_files / "cert.pem"), str(tls_files / "key.pem")
    cluster = Cluster(
        1, "--tls-ca-file", cert, "--tls-cert", cert, "--tls-key", key, protocol="tls"
    )
    try:
        named = ["--dask", cluster.address, "--dask-security", str(tls_files / "tls.yaml")]
        assert clustersim_process(*named) == clustersim_process("--workers", "1")
        monkeypatch.setattr(dask_cluster, "_TIMEOUT_S", 1)
        with pytest.raises(InputError, match="--dask-security"), dask_executor(cluster.address):
            pass
    finally:
        cluster.end()


@pytest.mark.parametrize(
    ("address", "text", "said"),
    [
        ("tcp://host:1", "", "give the scheduler as tls://"),
        ("tls://host:1", "ca_file: a.pem", "must hold ca_file, client_cert, client_key"),
        (
            "tls://host:1",
            "ca_file: a\nclient_cert: b\nclient_key: c",
            "is not a file; write ca_file",
        ),
        ("tls://host:1", "ca_file: [1]\nclient_cert: b\nclient_key: c", "nothing else"),
    ],
)
def test_files_of_tls_are_checked_before_anybody_is_called(address, text, said, tmp_path):
    (tmp_path / "tls.yaml").write_text(text)
    with pytest.raises(InputError, match=said), dask_executor(address, tmp_path / "tls.yaml"):
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
    monkeypatch.setattr(dask_cluster, "_TIMEOUT_S", 0.2)
    with (
        pytest.raises(InputError, match="does not answer as a Dask scheduler"),
        dask_executor("tcp://127.0.0.1:9"),
    ):
        pass


def test_dask_that_is_not_installed_is_said_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(InputError, match="is not installed; install it: pip install"),
        dask_executor("tcp://host:1"),
    ):
        pass
