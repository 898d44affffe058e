"""Do the kernels beside an adapter's products move what torch's operators move?"""

from __future__ import annotations

import pytest

from simulator.program.layer.adapters import adapters, held_tensors
from simulator.program.layer.block import microbatch_shape
from simulator.program.layer.layer_kinds import layer_kinds, model_layer
from simulator.program.layer.pieces import Gemm, MemoryBound
from simulator.program.strategies.frozen_weights import with_frozen_weights
from tests.jobs import small_job, small_model
from tests.program.kernels_of_torch import moved_bytes

torch = pytest.importorskip("torch")

TOKENS, WIDTH, RANK = 32, 64, 4
NAME = "attention.output"


def adapter_pieces(casts: bool, autocast: bool):
    """What stands beside the output projection, whose adapter is the only one."""
    job = small_job(
        small_model(layers=1), zero=0, precision="bf16", master_weights=autocast,
        stack={"base": "torch", "casts_adapter_inputs": casts, "fused_elementwise": False},
        lora={"rank": RANK, "targets": ["output"]},
    )  # fmt: skip
    model, plan = job.model, job.plan
    layer = model_layer(model, layer_kinds(model)[0], plan, microbatch_shape(plan, 1, TOKENS))
    adapted = with_frozen_weights(
        layer, held_tensors(model, plan, 0), adapters(model, plan, 0), job
    )
    return [each for each in adapted.pieces if each.name.startswith(f"{NAME}.")]


def product_bytes(rows: int, inputs: int, outputs: int, size: int, products: int) -> int:
    """Operands and results of a product and of its gradients."""
    return products * size * (rows * inputs + inputs * outputs + rows * outputs)


@pytest.mark.parametrize(
    ("wide", "autocast"), [(False, False), (True, True), (True, False)], ids=str
)
def test_an_adapter_scales_adds_and_casts_as_torch_does(wide, autocast):
    half, own = torch.bfloat16, torch.float32 if wide else torch.bfloat16
    x = torch.randn(TOKENS, WIDTH, dtype=half, requires_grad=True)
    weight = torch.randn(WIDTH, WIDTH, dtype=half)
    down = torch.randn(RANK, WIDTH, dtype=own, requires_grad=True)
    up = torch.randn(WIDTH, RANK, dtype=own, requires_grad=True)
    gradient = torch.randn(TOKENS, WIDTH, dtype=half)
    linear = torch.nn.functional.linear

    def step() -> None:
        with torch.autocast("cpu", half, enabled=autocast):
            base = linear(x, weight)
            added = linear(linear(x.to(own), down), up) * 0.5
            result = (base + added).to(half)
        result.backward(gradient)

    size = 4 if wide and not autocast else 2
    products = product_bytes(TOKENS, WIDTH, WIDTH, 2, 2)  # frozen: no gradient of the weight
    products += 2 * product_bytes(TOKENS, WIDTH, RANK, size, 3)
    # Autocast casts the narrow matrices and their gradients, too, which is left out.
    narrow = 2 * 2 * RANK * WIDTH * (4 + 2) if autocast else 0
    beside = sum(
        each.forward_bytes + each.backward_bytes
        for each in adapter_pieces(casts=wide, autocast=autocast)
        if isinstance(each, MemoryBound)
    )
    assert beside == moved_bytes(step) - products - narrow


@pytest.mark.parametrize("autocast", [True, False])
def test_products_of_adapters_in_fp32_are_16_bit_under_autocast_alone(autocast):
    products = [each for each in adapter_pieces(True, autocast) if isinstance(each, Gemm)]
    assert [each.is_wide for each in products] == [not autocast] * 2
