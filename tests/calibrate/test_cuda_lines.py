"""Does every line for CUDA of calibrate gpu and validate torch run, on a device that is absent?"""

from __future__ import annotations

import json

import pytest
import torch

from simulator.calibrate.gpu import kernel_calls, measure_kernels, system_calls
from simulator.calibrate.gpu.device_facts import device_facts
from simulator.calibrate.gpu.kernel_calls import Stopwatch, UnsupportedCaseError
from simulator.calibrate.gpu.kernel_case import KernelCase
from simulator.calibrate.gpu.measure_kernels import KernelJournal
from simulator.calibrate.gpu.system_calls import SYSTEM_OPERATIONS, Sensors, measured
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.ranks import world
from simulator.validate.torch_run.train_and_compare import validate_torch
from tests.absent_cuda import FREE_BYTES, RESERVED_BYTES, TOTAL_BYTES

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def small(monkeypatch, one_thread):
    monkeypatch.setattr(kernel_calls, "_COVER_BYTES", 64)
    monkeypatch.setattr(system_calls, "_LOAD_S", 0.02)
    monkeypatch.setattr(system_calls, "_HOG_BYTES", 64)
    monkeypatch.setitem(measure_kernels._WITNESS_WIDTH, "cuda", 32)


@pytest.mark.parametrize("op", SYSTEM_OPERATIONS)
def test_every_look_at_the_system_times_the_device(op, absent_cuda):
    found = measured(KernelCase(op, "bf16", 32, 32, 32, direction=""), Stopwatch(GPU, 0.0))
    assert found.timing.median_s > 0


def test_the_facts_of_a_gpu_are_those_of_its_driver(absent_cuda):
    facts = device_facts(None)
    assert facts.name == "NVIDIA H200"
    assert facts.formats == ("bf16", "fp8", "fp16", "tf32", "fp32")
    assert facts.attention[0] == "cudnn_attention (sdpa)"
    assert facts.foreign_bytes == TOTAL_BYTES - FREE_BYTES - RESERVED_BYTES
    values = facts.sourced_values("test")
    assert set(values) == {"device.memory", "device.context"}
    with pytest.raises(InputError, match="there are 1 GPUs"):
        device_facts("cuda:1")


def test_a_device_that_another_process_holds_is_named_and_gives_no_context(
    absent_cuda, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (2**30, TOTAL_BYTES))
    facts = device_facts("cuda:0")
    assert "check whether it is shared" in facts.notes[0]
    assert "device.context" not in facts.sourced_values("test")


def test_sensors_of_a_gpu_are_read_and_their_absence_is_said(absent_cuda, monkeypatch):
    assert Sensors(GPU).readings() == ["clock 1980 MHz", "power 650 W", "temperature 55 C"]
    for name in ("clock_rate", "power_draw", "temperature"):
        monkeypatch.setattr(torch.cuda, name, lambda _: 1 / 0)
    assert "nvidia-ml-py" in Sensors(GPU).readings()[0]


def test_work_that_its_host_queues_slowly_waits_behind_a_longer_memset(absent_cuda, monkeypatch):
    """A gap of the host between the events would count as time of the device."""
    zeroed = []
    watch = Stopwatch(GPU, 0.0)
    watch.timing(lambda: None)
    monkeypatch.setattr(kernel_calls, "_COVER_S", 1e-3)
    monkeypatch.setattr(Stopwatch, "_clear", lambda self: zeroed.append(1))
    watch.timing(lambda: __import__("time").sleep(0.004))
    assert len(zeroed) >= 4 * kernel_calls._FEWEST


def test_a_refusal_of_any_kind_is_a_row_and_frees_the_device(tmp_path, absent_cuda, monkeypatch):
    facts = device_facts("cuda")
    journal = KernelJournal.opened(tmp_path / "k.csv", facts.name, "test", resume=False)
    real = measure_kernels.measured
    refusals = {32: RuntimeError("no"), 48: AttributeError("torch has no rms_norm"),
                64: UnsupportedCaseError("none")}  # fmt: skip

    def refuse(case, stopwatch):
        if case.k in refusals and case.m == 16:
            raise refusals[case.k]
        return real(case, stopwatch)

    monkeypatch.setattr(measure_kernels, "measured", refuse)
    cases = [KernelCase("gemm", "bf16", 16, 16, k) for k in (16, 32, 48, 64)]
    measure_kernels.measure_kernels(cases, facts, journal, seconds=6000)
    assert len(journal.measured) == 1
    assert len(journal.skipped) == 3


def test_nccl_is_taken_where_every_rank_has_a_gpu(absent_cuda, monkeypatch):
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    assert world.chosen_backend("auto", 1, None) == "nccl"
    assert world.chosen_backend("nccl", 1, None) == "nccl"
    assert world.chosen_backend("auto", 2, None) == "gloo"
    with pytest.raises(InputError, match="torch finds 1"):
        world.chosen_backend("nccl", 2, None)
    assert world.own_world("nccl", 1, 0).device == GPU


@pytest.mark.parametrize("plan", [{}, {"precision": "fp8"}])
def test_a_run_on_a_gpu_is_measured_by_events_and_statistics_of_its_allocator(plan, absent_cuda):
    job = job_from_document(
        {
            "model": {"name": "tiny", "layers": 2, "hidden": 32, "heads": 2, "ffn_hidden": 64,
                      "vocab": 64},
            "cluster": {"profile": "h200-sxm-141gb", "gpus": 1},
            "batch": {"global": 2, "micro": 1, "seq_len": 16},
            "plan": {"stack": "torch", **plan},
        }
    )  # fmt: skip
    report = validate_torch(job, backend="fake", steps=2)
    assert report is not None
    document = json.loads(json.dumps(report.to_dict()))
    assert document["environment"]["device"] == "NVIDIA H200"
    peaks = {pair["name"]: pair["measured"] for pair in document["memory_bytes"]}
    assert peaks["peak_allocated"] == 2**30
    assert peaks["peak_reserved"] == 2**30 + RESERVED_BYTES
    assert document["step"]["measured"] > 0
