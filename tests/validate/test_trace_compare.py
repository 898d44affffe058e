"""A real profile is held against its prediction.

``ddp_2.trace.json.gz`` is of rank 0 of two that trained :data:`JOB` on a busy machine with two
cores: ``clustersim validate torch JOB.yaml --trace FILE``, cut down to the events that are read,
with their names and times.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.program.ir import Kind
from simulator.program.price.roofline import KernelKind
from simulator.results.simulation import run_step
from simulator.validate.measured_trace.account import IDLE, PHASES, account
from simulator.validate.measured_trace.kernel_names import Wait
from simulator.validate.measured_trace.measured_step import read_step
from simulator.validate.measured_trace.trace_comparison import compare_trace, predicted_census
from simulator.validate.torch_run.train_and_compare import validate_torch
from tests.validate.kineto import Gpu, world, write_trace

ROOT = Path(__file__).parents[2]
REAL = Path(__file__).parent / "ddp_2.trace.json.gz"
LAYERS, MICROBATCHES = 2, 2
JOB = {
    "model": {
        "name": "dense-3m", "layers": LAYERS, "hidden": 256, "heads": 4, "kv_heads": 2,
        "ffn_hidden": 768, "vocab": 2048,
    },
    "cluster": {"profile": str(ROOT / "reports/torch/cpu.yaml"), "gpus": 2},
    "batch": {"global": 2 * MICROBATCHES, "micro": 1, "seq_len": 64},
    "plan": {
        "stack": {"base": "torch", "fused_rmsnorm": False}, "attention": "unfused",
        "precision": "fp32", "zero": 0,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def job():
    return job_from_document(JOB)


def test_the_real_step_ran_the_products_of_its_layers():
    step = read_step(REAL)
    products = [span.phase for span in step.spans if span.kind is KernelKind.GEMM]
    # Queries, keys, values, scores, weighted values, output, gate, up, down; and the head.
    assert products.count("forward") == MICROBATCHES * (9 * LAYERS + 1)
    assert products.count("backward") == 2 * products.count("forward")
    assert products.count("optimizer") == 0
    assert (step.rank, step.ranks, step.is_gpu) == (0, 2, False)


def test_autograd_tells_the_phases_that_the_program_names(tmp_path):
    named = read_step(REAL)
    events = json.loads(gzip.decompress(REAL.read_bytes()))["traceEvents"]
    anonymous = [event for event in events if not event["name"].startswith("step: ")]
    told = read_step(write_trace(tmp_path / "t.json", anonymous))
    accounts = [account(step.spans, step.step_s) for step in (named, told)]
    booked, booked_too = (each.by_phase_s for each in accounts)
    assert booked.keys() == booked_too.keys()
    for key, seconds in booked.items():
        # Between its passes a program prepares the next, which only it can tell.
        share = 0.03 if key[1] == Wait.HOST else 0.002
        assert booked_too[key] == pytest.approx(seconds, abs=share * named.step_s)


def test_a_real_step_is_held_against_its_prediction(job):
    found = compare_trace(REAL, job)
    step, *gaps = found.gaps
    assert step.measured_s == pytest.approx(0.1828, abs=1e-4)
    assert step.predicted_s == found.result.step_time_s
    for side in ("measured_s", "predicted_s", "gap_s"):
        whole = getattr(step, side)
        assert sum(getattr(gap, side) for gap in gaps if not gap.kind) == pytest.approx(whole)
        assert sum(getattr(gap, side) for gap in gaps if gap.kind) == pytest.approx(whole)
    kinds = {(gap.phase, gap.kind) for gap in gaps}
    assert {("forward", "gemm"), ("backward", "all_reduce"), ("optimizer", "other")} <= kinds
    [reduction] = found.communication
    assert reduction.kind == Kind.ALL_REDUCE
    assert reduction.measured_s == pytest.approx(0.01714, abs=1e-5)
    assert 0 < reduction.predicted_s < found.result.step_time_s
    assert found.rank == found.stage == 0


@pytest.mark.filterwarnings("ignore")
def test_a_run_leaves_a_trace_that_can_be_compared(job, tmp_path):
    path = tmp_path / "rank0.json.gz"
    report = validate_torch(job, backend="gloo", steps=1, trace=path)
    assert report is not None
    found = compare_trace(path, report.job)
    assert found.step.ranks == 2
    assert {gap.phase for gap in found.gaps} == {"", *PHASES}
    assert [gap.kind for gap in found.communication] == [Kind.ALL_REDUCE]


GPU_JOB = {
    "model": {"base": "llama3.1-8b", "layers": 2},
    "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
    "batch": {"global": 8, "seq_len": 2048},
    "plan": {"tp": 2, "pp": 2},
}


@pytest.fixture
def gpu_trace(tmp_path):
    def write(**header):
        gpu = Gpu()
        gpu.run("nvjet_hsh_256x128", 10, 100, 200)
        gpu.run("ncclDevKernel_SendRecv", 20, 300, 100)
        return write_trace(tmp_path / "t.json", gpu.events, **header)

    return write


def test_a_rank_is_compared_with_its_own_stage(gpu_trace):
    job = job_from_document(GPU_JOB)
    stages = [compare_trace(gpu_trace(**world(rank, 8)), job).stage for rank in (0, 7)]
    assert stages == [0, 1]
    found = compare_trace(gpu_trace(), job, rank=5)
    assert (found.rank, found.stage) == (5, 1)
    assert any("does not name its rank" in sentence for sentence in found.notes)
    kinds = {gap.kind: gap.measured_s for gap in found.gaps if gap.measured_s and gap.kind}
    assert kinds == pytest.approx({"gemm": 200e-6, "send_recv": 100e-6})
    assert IDLE in {gap.kind for gap in found.gaps}


def test_a_trace_of_another_number_of_ranks_is_refused(gpu_trace):
    with pytest.raises(InputError, match=r"cluster\.gpus = 8: .*of the trace, 16"):
        compare_trace(gpu_trace(**world(0, 16)), job_from_document(GPU_JOB))


def test_a_rank_that_contradicts_the_trace_or_the_job_is_refused(gpu_trace):
    job = job_from_document(GPU_JOB)
    with pytest.raises(InputError, match="of rank 3"):
        compare_trace(gpu_trace(**world(3, 8)), job, rank=4)
    with pytest.raises(InputError, match="below the job's 8 ranks"):
        compare_trace(gpu_trace(), job, rank=8)


@pytest.mark.parametrize("header", [{"distributedInfo": 3}, world(-1, True), world(None, "8")])
def test_a_rank_that_is_no_number_counts_as_not_said(gpu_trace, header):
    assert compare_trace(gpu_trace(**header), job_from_document(GPU_JOB)).rank == 0


def layers_on_gpu(path: Path, layers: int) -> Path:
    """A trace of one forward pass: four products and one attention per layer, and a head."""
    gpu = Gpu()
    for layer in range(layers):
        for place, name in enumerate(
            ["nvjet_a", "flash_fwd_kernel", "nvjet_b", "nvjet_c", "nvjet_d"]
        ):
            start = 100 + 50 * layer + 10 * place
            gpu.run(name, start - 90, start, 10)
    gpu.run("nvjet_head", 40 + 50 * layers, 100 + 50 * layers, 10)
    return write_trace(path / "t.json", gpu.events)


OTHER_MODEL = "forward runs 4 attention kernels in the trace and 2 in the prediction"


@pytest.mark.parametrize(("layers", "sentence"), [(2, ""), (4, OTHER_MODEL)])
def test_a_trace_of_another_model_is_noticed_by_its_kernels(tmp_path, layers, sentence):
    job = job_from_document(
        GPU_JOB
        | {
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 1},
            "batch": {"global": 1, "seq_len": 2048},
            "plan": {},
        }
    )
    found = compare_trace(layers_on_gpu(tmp_path, layers), job)
    noticed = [note for note in found.notes if "another model" in note]
    assert [note.startswith(sentence) for note in noticed] == [True] * bool(sentence)


def test_a_trace_of_a_cpu_that_should_be_of_a_gpu_is_called_so():
    job = job_from_document(
        GPU_JOB | {"cluster": {"profile": "h100-sxm-80gb", "gpus": 2}, "plan": {}}
    )
    assert any("recorded on a CPU alone" in note for note in compare_trace(REAL, job).notes)


def test_the_verdict_says_how_far_and_where(job):
    found = compare_trace(REAL, job)
    assert found.verdict == (
        "The step takes 90.5 ms (98 %) longer than predicted, outside the 80 % prediction "
        "interval. Most of it: gemm of backward, +47.0 ms."
    )
    assert found.to_dict()["verdict"] == found.verdict


def test_attention_of_a_shared_sequence_is_not_counted():
    job = job_from_document(
        GPU_JOB | {"cluster": {"profile": "h100-sxm-80gb", "gpus": 2}, "plan": {"cp": 2}}
    )
    census = predicted_census(job, run_step(job), 0)
    assert census[KernelKind.ATTENTION] == 0 < census[KernelKind.GEMM]
