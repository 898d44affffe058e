"""Do gradients of biases move what torch's sums over rows move?"""

from __future__ import annotations

import pytest

from simulator.described.plan.plan import Plan
from simulator.program.layer.block import microbatch_shape
from simulator.program.layer.layer_kinds import layer_kinds, model_layer
from simulator.program.layer.pieces import Layer, MemoryBound
from simulator.program.price.stage_cost import StageCosts
from tests.jobs import small_job, small_model
from tests.program.kernels_of_torch import memory_bound, moved_bytes

torch = pytest.importorskip("torch")

TOKENS, WIDTH = 16, 64


@pytest.mark.parametrize(
    ("product", "inputs", "outputs"),
    [
        ("qkv", WIDTH, 3 * WIDTH),
        ("attention_output", WIDTH, WIDTH),
        ("mlp_up", WIDTH, 4 * WIDTH),
        ("mlp_down", 4 * WIDTH, WIDTH),
    ],
)
def test_the_gradient_of_a_bias_is_a_pass_over_that_of_its_output(product, inputs, outputs):
    """What autograd's kernels move more with a bias than without, but for the sums themselves."""

    def backward_bytes(*, bias: bool) -> int:
        linear = torch.nn.Linear(inputs, outputs, bias=bias, dtype=torch.bfloat16)
        rows = torch.randn(1, TOKENS, inputs, dtype=torch.bfloat16, requires_grad=True)
        made = linear(rows)
        return moved_bytes(lambda: made.backward(torch.ones_like(made)))

    gradient = memory_bound(biased_layer(), f"{product}_bias_gradient")
    more = backward_bytes(bias=True) - backward_bytes(bias=False)
    assert more == gradient.backward_bytes + 2 * outputs
    assert gradient.forward_bytes == 0


def test_where_products_sum_biases_up_no_kernel_does():
    assert not any("bias" in each.name for each in biased_layer("megatron-core").pieces)


def test_a_sum_over_rows_takes_its_start_beside_its_bytes():
    """``Common.column_sum_start_s``, which other kernels of as many bytes do not take."""
    timer = StageCosts(small_job(stack="torch")).layer_pieces(layer_kinds(small_model())[0])[1]
    total = MemoryBound("sum", 0.0, 1e8, sums_columns=True)
    stream = MemoryBound("stream", 0.0, 1e8)
    more_s = timer.memory_bound_s(total, backward=True) - timer.memory_bound_s(
        stream, backward=True
    )
    assert more_s == pytest.approx(timer.profile.common.column_sum_start_s)


def biased_layer(stack: str = "torch") -> Layer:
    biases = {"qkv_bias": True, "attention_output_bias": True, "mlp_bias": True}
    sizes = {"hidden": WIDTH, "ffn_hidden": 4 * WIDTH, "heads": 4, "kv_heads": 4}
    model = small_model(**sizes, **biases, gated_mlp=False)
    plan = Plan(stack=stack)
    return model_layer(model, layer_kinds(model)[0], plan, microbatch_shape(plan, 1, TOKENS))
