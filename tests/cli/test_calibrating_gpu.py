"""Does calibrate gpu measure, fit, write, resume and refuse as it says?"""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

pytest.importorskip("scipy")

from simulator.calibrate.gpu import kernel_cases, measure_kernels, system_calls
from simulator.calibrate.gpu.kernel_calls import Stopwatch
from simulator.calibrate.gpu.kernel_cases import Extent
from simulator.described.load import load_profile

TINY = Extent(
    models=("llama3.2-1b",),
    splits=(1,),
    tokens=(16,),
    lengths=(16, 16),
    elements=(2**10,),
    shrink=128,
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch, one_thread):
    monkeypatch.setattr(kernel_cases, "CPU_EXTENT", TINY)
    monkeypatch.setattr(system_calls, "_LOAD_ON_CPU_S", 0.05)
    monkeypatch.setattr(measure_kernels, "Stopwatch", partial(Stopwatch, budget_s=0.0))


def calibrate(clustersim, path, *words):
    return clustersim("calibrate", "gpu", "--device", "cpu", "--out", path, *words)


def test_a_run_without_time_is_gone_on_with_to_a_sound_profile(clustersim, tmp_path):
    path = tmp_path / "new" / "mine.yaml"
    outcome = calibrate(clustersim, path, "--minutes", "0")
    assert outcome.code == 2
    assert "give more --minutes" in outcome.err
    assert not path.exists()

    assert "continue with --resume" in calibrate(clustersim, path).err

    resumed = calibrate(clustersim, path, "--resume", "--json")
    assert resumed.code == 0
    document = json.loads(resumed.out)
    assert {row["block"] for row in document["parameters"]} >= {"gemm.fp32", "memory"}
    assert "a CPU has no link between host and device" in resumed.err
    assert clustersim("profile", "check", path).code == 0
    assert "torch" in load_profile(str(path)).provenance["kernels.gemm.fp32.efficiency"].reference
    assert path.with_suffix(".kernels.png").read_bytes().startswith(b"\x89PNG")
    table = path.with_suffix(".kernels.csv")
    assert clustersim("validate", "kernels", table, "--profile", path, "--json").code == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_way_out_is_named(clustersim, tmp_path):
    outcome = clustersim("calibrate", "gpu", "--out", tmp_path / "mine.yaml")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--device cpu" in outcome.err
