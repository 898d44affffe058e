"""Does a job run the pipeline order that a file holds?"""

from __future__ import annotations

import pytest

from simulator.described.load import load_job
from simulator.errors import InputError
from simulator.results.simulation import run_step
from simulator.schedule import schedule_order
from simulator.schedule.written import write_order

JOB = """
model: {layers: 8, hidden: 256, heads: 4, ffn_hidden: 1024, vocab: 1024}
cluster: {profile: h100-sxm-80gb, gpus: 4}
batch: {global: 8, seq_len: 512}
plan: {pp: 4, vpp: VPP, schedule: orders/mine.csv}
"""


@pytest.fixture
def write_job(tmp_path):
    """Writes a job beside a folder with the order of a schedule."""

    def write(name: str, chunks: int):
        (tmp_path / "orders").mkdir()
        order = schedule_order(name, 4, chunks, 8)
        (tmp_path / "orders" / "mine.csv").write_text(write_order(order) + "\n")
        path = tmp_path / "job.yaml"
        path.write_text(JOB.replace("VPP", str(chunks)))
        return path

    return write


@pytest.mark.parametrize(("name", "chunks"), [("gpipe", 1), ("zb-v", 2), ("chimera", 1)])
def test_a_job_with_a_file_is_the_job_with_the_schedule_it_holds(write_job, name, chunks):
    written = load_job(write_job(name, chunks))
    named = written.replace({"plan.schedule": name, "plan.overlap_p2p": True})
    written = written.replace({"plan.overlap_p2p": True})
    step, reference = run_step(written), run_step(named)
    assert step.step_time_s == reference.step_time_s
    assert [m.peak_allocated_bytes for m in step.memory] == [
        m.peak_allocated_bytes for m in reference.memory
    ]


def test_the_file_lies_relative_to_the_job_and_travels_with_it(write_job, tmp_path):
    job = load_job(write_job("1f1b", 1))
    (tmp_path / "orders" / "mine.csv").unlink()
    assert run_step(job).step_time_s > 0
    assert job.document["plan"]["schedule"] == "orders/mine.csv"
    assert str(job.plan.schedule) == str(tmp_path / "orders" / "mine.csv")


def test_a_file_that_is_missing_or_cannot_run_is_a_fault_of_the_plan(write_job, tmp_path):
    path = write_job("1f1b", 1)
    with pytest.raises(InputError, match=r"plan\.schedule.*cannot be read"):
        load_job(path, {"plan.schedule": "no.csv"})
    (tmp_path / "orders" / "mine.csv").write_text("0F0,0B0\n1F0,1B0,1B0\n")
    with pytest.raises(InputError, match=r"mine\.csv: row 2, column 3 = '1B0': appears twice"):
        run_step(load_job(path))


def test_sizes_that_the_file_is_not_made_for_are_refused(write_job):
    path = write_job("1f1b", 1)
    with pytest.raises(InputError, match=r"microbatches = 16.*is an order for 8"):
        run_step(load_job(path, {"batch.global": 16}))


@pytest.mark.parametrize(("name", "is_refused"), [("dualpipev", False), ("zb-v", True)])
def test_expert_exchanges_overlap_where_the_file_joins_passes(write_job, name, is_refused):
    path = write_job(name, 2)
    changes = {
        "plan.overlap_ep": True,
        "model.experts": {"count": 4, "top_k": 1, "ffn_hidden": 256},
    }
    if is_refused:
        with pytest.raises(
            InputError, match=r"plan\.overlap_ep.*a forward and a backward at the same time"
        ):
            load_job(path, changes)
    else:
        named = load_job(path, {**changes, "plan.schedule": name})
        assert run_step(load_job(path, changes)).step_time_s == run_step(named).step_time_s


@pytest.mark.parametrize("schedule", ["orders/mine.csv", "dualpipe", "chimera"])
def test_zero_2_is_refused_where_ranks_hold_two_copies_whatever_the_order_is_called(
    write_job, schedule
):
    """Both add their gradients up at the end of the step, so none may be cut before."""
    job = load_job(write_job("dualpipe", 1), {"plan.schedule": schedule, "cluster.gpus": 8,
                                              "batch.global": 16})  # fmt: skip
    for zero in (2, 3):
        with pytest.raises(InputError, match=r"plan\.zero.*two copies of the model"):
            job.replace({"plan.zero": zero})
    assert run_step(job.replace({"plan.zero": 1})).step_time_s > 0


@pytest.mark.parametrize(("name", "chunks"), [("dualpipe", 1), ("dualpipev", 2)])
def test_an_order_that_joins_passes_hides_expert_exchanges_as_the_named_one_does(
    write_job, name, chunks
):
    experts = {"count": 8, "top_k": 2, "ffn_hidden": 256}
    changes = {"model.experts": experts, "plan.ep": 2, "cluster.gpus": 8, "batch.global": 16}
    written = load_job(write_job(name, chunks), changes)
    named = written.replace({"plan.schedule": name})
    assert run_step(written).step_time_s == run_step(named).step_time_s
