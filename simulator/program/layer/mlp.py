"""What is a dense MLP made of: products up (and gate) and down, and what is between them?"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.described.model import Model
from simulator.facts import host_launches
from simulator.program.layer.block import Block, Shape
from simulator.program.layer.layer_part import ALL_RECOMPUTE, TOKEN_WISE, LayerPart
from simulator.program.layer.pieces import Region, Role, Split
from simulator.program.layer.tensors import ParameterTensor, TensorRole, TensorSplit

_EAGER_CLAMP_PASSES, _EAGER_CLAMP_BACKWARD_PASSES, _EAGER_CLAMP_KERNELS = 8, 15, 9
"""Reads and writes of clamping gates and what they are multiplied with by eager kernels, in
elements of their product. Forward: both halves (4), joined again (4). Backward: where each lay
within its limits, one byte per element and limit (6), the gradients there (5), and both joined (4)
(``weighted_bias_quick_geglu_impl`` of Megatron-Core)."""


_EAGER_GATE_PASSES, _EAGER_GATE_BACKWARD_PASSES, _EAGER_GATE_KERNELS = 5, 9, 2
"""Reads and writes of a nonlinearity and of the product with it by eager kernels, in elements of
their result, and kernels of forward; backward has one more. Forward: 2 and 3. Backward: 3 for the
nonlinearity, and 3 for each factor of the product (``torch.nn.functional.silu(gate) * up``)."""

_WRITTEN_GELU_PASSES, _WRITTEN_GELU_BACKWARD_PASSES, _WRITTEN_GELU_OPERATORS = 18, 28, 10
"""Reads and writes of GELU's hyperbolic form by a kernel for each of its operators, in elements of
its result. Forward, 8 kernels: the cube (2), its factor (2), its sum with x (3), a factor (2),
tanh (2), plus one (2), half of x (2), and their product (3). Backward, 12: that product (6), the
half (2), tanh (3), both factors (4), the cube's square, factor and product (7), and two sums of
gradients of x (6) (``NewGELUActivation`` of transformers' activations.py, as torch dispatches
it)."""

_CAST_GELU_PASSES, _CAST_GELU_BACKWARD_PASSES = (6, 16), (13, 23)
"""The same in numbers as wide as activations and in fp32 ones, where ``torch.autocast`` casts what
products read: it takes powers in fp32, and so is what is made of them, up to the cast of the
result."""

_WRITTEN_GELU_KEPT = 3
"""Beside its input it keeps half of that, tanh, and tanh plus one; under autocast the input, and
these two, in fp32, and the half as it is."""

_EAGER_JOIN_PASSES = 4
"""The same of joining the gradients of gate and up, which are halves of one product."""

_NARROW_BYTES = 1.0
"""Per element of an activation's input that is kept in 8 bits, which has no scale.

Source: Megatron-Core, ``fusions/fused_bias_swiglu.py``: ``input.to(torch.float8_e4m3fn)``."""


def mlp_tensors(model: Model, name: str, width: int, *, biased: bool) -> Iterator[ParameterTensor]:
    """Gate and up, and down, each with its bias if it is ``biased``."""
    for part in ("gate", "up") if model.gated_mlp else ("up",):
        yield ParameterTensor(f"{name}.{part}", (width, model.hidden), split=TensorSplit.TENSOR)
        if biased:
            split, role = TensorSplit.TENSOR, TensorRole.BIAS
            yield ParameterTensor(f"{name}.{part}.bias", (width,), split=split, role=role)
    shape = (width, model.hidden)
    yield ParameterTensor(f"{name}.down", shape, split=TensorSplit.TENSOR, inputs_first=True)
    if biased:
        yield ParameterTensor(f"{name}.down.bias", (model.hidden,), role=TensorRole.BIAS)


def mlp_matrices(model: Model, *, is_shared: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the matrices into the width of an MLP, and of the one out of it."""
    name = "shared_expert" if is_shared else "mlp"
    into = (f"{name}.gate", f"{name}.up") if model.gated_mlp else (f"{name}.up",)
    return into, (f"{name}.down",)


def branches(model: Model) -> int:
    """Products into the MLP's width: up, and gate if there is one."""
    return 2 if model.gated_mlp else 1


def add_mlp(
    block: Block, width: int, *, shares_input: bool = False, is_shared: bool = False
) -> None:
    """Up (and gate) product, activation, down product.

    Args:
        block: The layer so far.
        width: Of the MLP.
        shares_input: Whether its input is kept by a product before.
        is_shared: Whether it is a shared expert beside routed ones.
    """
    model, prefix = block.model, "shared_" if is_shared else ""
    hidden, tokens, operand = model.hidden, block.shape.tokens, block.shape.kept_bytes
    up, down = f"{prefix}mlp_up", f"{prefix}mlp_down"
    into, out_of = mlp_matrices(model, is_shared=is_shared)
    products = branches(model)
    if not (shares_input and block.shape.keeps_inputs):
        kept_bytes = block.kept_inputs(products) * tokens * hidden * operand
        block.save(f"{prefix}mlp_input", kept_bytes, Region.GATHERED, weights=into)
    columns = products * width
    of_product = Role.SHARED_EXPERT if is_shared else Role.OTHER
    block.linear(
        up, columns, hidden, Split.COLUMN, made_by="norm", products=products,
        weights=1 if is_shared else products, role=of_product, tensors=into,
    )  # fmt: skip
    if model.mlp_bias:
        block.bias(up, tokens * columns, Region.TENSOR)
    role = Role.OTHER if is_shared else Role.ACTIVATION_INPUT
    add_activation(block, f"{prefix}activation", tokens * width, Region.TENSOR, role)
    role = Role.OTHER if is_shared else Role.DOWN_INPUT
    kept_bytes = tokens * width * operand
    block.save(f"{down}_input", kept_bytes, Region.TENSOR, role=role, weights=out_of)
    block.linear(
        down, hidden, width, Split.ROW, made_by="activation", role=of_product, tensors=out_of
    )
    if model.mlp_bias:
        block.bias(down, tokens * hidden, Region.SEQUENCE)


def add_activation(
    block: Block,
    name: str,
    elements: float,
    region: Region,
    input_role: Role = Role.OTHER,
    *,
    shape: Shape | None = None,
    halves_of_one: bool = False,
) -> None:
    """The MLP's nonlinearity with so many outputs, and its product with the gate.

    Its numbers are those of the block's shape, or of another one. Gate and up are halves of one
    product where the stack fuses projections, or where that is said.
    """
    model, stack, shape = block.model, block.stack, shape or block.shape
    inner, products = elements * shape.element_bytes, branches(model)
    if model.clamped_gate and not stack.fused_expert_extras:
        forward, backward = _EAGER_CLAMP_PASSES * inner, _EAGER_CLAMP_BACKWARD_PASSES * inner
        block.save(f"{name}_clamp_input", products * inner, region)
        block.memory_bound(f"{name}_clamp", forward, backward, region, _EAGER_CLAMP_KERNELS)
    # Of a plain ReLU the gradient needs the output only, which the next product keeps.
    output_suffices = model.activation == "relu" and not model.gated_mlp
    if not (output_suffices and shape.keeps_inputs):
        kept_bytes = products * inner
        if stack.narrows_activation_inputs:
            kept_bytes = products * elements * _NARROW_BYTES
            moved = products * inner + kept_bytes
            block.memory_bound(f"{name}_input_cast", moved, moved, region)
        block.save(f"{name}_input", kept_bytes, region, role=input_role)
    if model.gated_mlp and not stack.fused_elementwise:
        block.save(f"{name}_output", inner, region)
    if model.gated_mlp and not stack.fused_elementwise:
        joined = _EAGER_JOIN_PASSES if stack.fused_projections or halves_of_one else 0
        forward, backward = (
            _EAGER_GATE_PASSES * inner,
            (_EAGER_GATE_BACKWARD_PASSES + joined) * inner,
        )
        block.memory_bound(name, forward, backward, region, _EAGER_GATE_KERNELS)
        return
    if model.activation == "gelu-new" and not stack.fused_elementwise:
        _add_written_gelu(block, name, elements, region, shape)
        return
    forward, backward = (products + 1) * inner, (2 * products + 1) * inner
    block.memory_bound(name, forward, backward, region)


def _add_written_gelu(
    block: Block, name: str, elements: float, region: Region, shape: Shape
) -> None:
    """A nonlinearity of a kernel for each of its operators.

    Their launches are so many as take the host as long as all operators do.
    """
    half = elements * shape.element_bytes
    wide = elements * shape.stream_bytes
    if block.plan.autocasts and wide > half:
        forward, backward = (
            halves * half + wides * wide
            for halves, wides in (_CAST_GELU_PASSES, _CAST_GELU_BACKWARD_PASSES)
        )
    else:
        forward, backward = _WRITTEN_GELU_PASSES * half, _WRITTEN_GELU_BACKWARD_PASSES * half
        wide = half
    block.save(f"{name}_operands", _WRITTEN_GELU_KEPT * wide, region)
    host_work = _WRITTEN_GELU_OPERATORS * host_launches("operator")
    kernels = max(1, round(host_work / block.stack.host_work_per_launch))
    block.memory_bound(name, forward, backward, region, kernels)


def _tensors(model: Model) -> Iterator[ParameterTensor]:
    yield from mlp_tensors(model, "mlp", model.ffn_hidden, biased=model.mlp_bias)


def _add(block: Block, _window: int) -> None:
    """The MLP; its checkpoint keeps the norm's input, which is the residual stream, alone."""
    first_dropped = len(block.saved) if block.mlp_start is None else block.mlp_start + 1
    add_mlp(block, block.model.ffn_hidden, shares_input=block.model.norms_per_layer == 1)
    block.checkpoint("mlp", block.mlp_piece, first_dropped)


DENSE_MLP = LayerPart(
    title="dense",
    is_in=lambda model, _index: model.ffn_hidden > 0,
    tensors=_tensors,
    add=_add,
    tensor_sizes=lambda _: {},
    on_grid=True,
    context=TOKEN_WISE,
    recompute=ALL_RECOMPUTE,
)

NO_MLP = LayerPart(
    title="MLP-less",
    is_in=lambda _model, _index: True,
    tensors=lambda _model: (),
    add=lambda _block, _window: None,
    tensor_sizes=lambda _: {},
    on_grid=True,
    context=TOKEN_WISE,
    recompute=ALL_RECOMPUTE,
)
"""What a layer without an MLP has in its place; the norms and the residual of one go with it."""
