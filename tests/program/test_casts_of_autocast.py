"""How many kernels cast the operands of an eager model's products under ``torch.autocast``?"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from simulator.program.layer.pieces import MemoryBound  # noqa: E402
from simulator.program.price.stage_cost import StageCosts  # noqa: E402
from tests.jobs import small_job  # noqa: E402


class Casts(TorchDispatchMode):
    """Counts copies into another format."""

    number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def casts_by_torch(products: int) -> int:
    """Of products that read one fp32 input."""
    layers = [torch.nn.Linear(8, 8, bias=False) for _ in range(products)]
    x = torch.ones(4, 8)
    with Casts() as casts, torch.autocast("cpu", torch.bfloat16):
        for layer in layers:
            layer(x)
    return casts.number


def casts_by_program(name: str, *, precision: str = "bf16", **facts: bool) -> list[MemoryBound]:
    facts = {"keeps_half_weights": False, "fused_projections": False, **facts}
    costs = StageCosts(small_job(precision=precision, stack={"base": "torch", **facts}, zero=0))
    pieces, _ = costs.layer_pieces(costs.units.layers[0].kind)
    return [
        piece
        for piece in pieces
        if isinstance(piece, MemoryBound) and piece.name == f"{name}_weight_autocast"
    ]


def test_every_weight_and_every_input_has_a_cast_of_its_own():
    casts = casts_by_program("qkv", fused_elementwise=False)
    assert sum(each.kernels for each in casts) == casts_by_torch(3) == 6


def test_a_compiler_leaves_casts_of_weights_beside_products():
    """On an H100, one kernel a weight and direction (``reports/gpu``): 4 + 2 bytes a number."""
    (casts,) = casts_by_program("mlp_up", fused_elementwise=True)
    assert casts.kernels == 2
    model = small_job().model
    weights = 2 * model.hidden * model.ffn_hidden
    assert casts.forward_bytes == casts.backward_bytes == (4 + 2) * weights
    assert not casts.widens_backward


def test_a_compiler_casts_weights_of_8_bit_products_where_it_scales_them():
    assert not casts_by_program("mlp_up", precision="fp8", fused_elementwise=True)
