"""The kernels of a trace that has shapes make a profile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from simulator.calibrate.gpu.traced_kernels import ATTENTION, calibrate_from_trace
from simulator.cost.gemm import gemm_s
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.documents import parse_yaml
from simulator.described.load import load_profile, profile_from_document
from simulator.errors import InputError
from simulator.validate.kernel_errors import without_sustained_clock
from tests.validate.kineto import Event, Gpu, operator, write_trace

SHAPES = [
    (m, n, k) for m in (2048, 4096, 8192) for n, k in ((4096, 4096), (14336, 4096), (4096, 14336))
]
BASE = "h100-sxm-80gb"


def cool() -> HardwareProfile:
    """The base at the clock of a short run."""
    return without_sustained_clock(load_profile(BASE))


def linked(number: int, name: str, dims: list, types: list[str], kernel: str, us: float,
           **args: object) -> list[Event]:  # fmt: skip
    """An operator with shapes, and the kernel that it launched."""
    gpu, start = Gpu(), 1000.0 * number
    gpu.run(kernel, start, start + 100, us, **{"External id": number})
    for event in gpu.events:
        event["args"]["correlation"] = number
    asked = operator(name, start, 50)
    asked["args"] = {"External id": number, "Input Dims": dims, "Input type": types, **args}
    return [asked, *gpu.events]


def products(path: Path, slower: float) -> Path:
    """A trace of products that take a multiple of what the base predicts, three times each."""
    profile, events = cool(), []
    for place, (m, n, k) in enumerate(SHAPES * 3):
        us = 1e6 * slower * gemm_s(profile, m, n, k)
        events += linked(
            place + 1, "aten::mm", [[m, k], [k, n]], ["c10::BFloat16"] * 2, "nvjet", us
        )
    return write_trace(path, events, deviceProperties=[{"name": "NVIDIA H100 80GB HBM3"}])


def test_products_that_took_a_quarter_longer_make_a_profile_that_says_so(tmp_path):
    found = calibrate_from_trace(products(tmp_path / "t.json.gz", 1.25), BASE, "ours")
    [(_, after)] = found.after.families.items()
    assert after.n == len(SHAPES)
    assert after.mape < 3
    profile = profile_from_document(parse_yaml(found.text, ""), "")
    assert profile.kernels.sustained_clock == 1.0
    for m, n, k in SHAPES:
        expected_s = 1.25 * gemm_s(cool(), m, n, k)
        assert gemm_s(profile, m, n, k) == pytest.approx(expected_s, rel=0.1)
    assert "trace t.json.gz of NVIDIA H100" in found.text


def test_attention_and_batched_products_are_read_with_their_shapes(tmp_path):
    heads = [[4, 32, 2048, 128], [4, 8, 2048, 128], [4, 8, 2048, 128], [], []]
    gradients = [[4, 32, 2048, 128], *heads[:3]]
    values = {"flash": ["", "", "", "0.", "True", "False"],
              "flash_backward": [""] * 11 + ["True", "", "", ""],
              "cudnn": ["", "", "", "", "True", "0.", "False", "False"]}  # fmt: skip
    form = ["c10::BFloat16"] * 4
    events = [
        *linked(1, "aten::_scaled_dot_product_flash_attention", heads, form, "flash_fwd", 500,
                **{"Concrete Inputs": values["flash"]}),
        *linked(5, "aten::_scaled_dot_product_cudnn_attention", heads, form, "cudnn_sdpa", 400,
                **{"Concrete Inputs": values["cudnn"]}),
        *linked(2, "aten::_scaled_dot_product_flash_attention_backward", gradients, form,
                "flash_bwd", 1500, **{"Concrete Inputs": values["flash_backward"]}),
        *linked(3, "aten::bmm", [[8, 512, 256], [8, 256, 512]], form, "cutlass", 20),
        *linked(4, "aten::mm", [[512, 256], [256, 512]], ["float", "float"], "sgemm", 20),
    ]  # fmt: skip
    found = calibrate_from_trace(write_trace(tmp_path / "t.json", events), BASE, "ours")
    assert {row.id for row in found.after.rows} == {
        "flash_attention (sdpa)-bf16-2048x32x8x128-b4-causal-fwd",
        "flash_attention (sdpa)-bf16-2048x32x8x128-b4-causal-bwd",
        "cudnn_attention (sdpa)-bf16-2048x32x8x128-b4-fwd",
        "gemm-bf16-512x512x256-b8-fwd",
    }


def test_a_trace_without_shapes_is_refused_with_the_way_out(tmp_path):
    events = [operator("aten::mm", 1, 2)]
    with pytest.raises(InputError, match="record_shapes=True"):
        calibrate_from_trace(write_trace(tmp_path / "t.json", events), BASE, "ours")


@pytest.mark.parametrize("name", ATTENTION)
def test_inputs_of_attention_stand_where_torchs_own_schema_has_them(name):
    schema = getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema
    names = [argument.name for argument in schema.arguments]
    asked = ATTENTION[name]
    assert (names[asked.queries], names[asked.is_causal]) == ("query", "is_causal")
