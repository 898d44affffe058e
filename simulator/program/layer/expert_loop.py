"""What does a loop over experts in Python do besides their products?

Models of Hugging Face's transformers 4 visit one expert after another: they ask which tokens chose
it, pick up their rows, multiply what it makes of them by the router's weights, and add the rows to
the output. Autograd knows nothing of the other experts: the gradient of rows that were picked up is
a tensor of zeros as large as all tokens, with these rows added, and so is added to the others'.

Operators are counted as the host launches them: products of gate and up are two, where
:class:`~simulator.program.layer.pieces.GroupedGemm` stands for both. Under ``torch.autocast`` each
product casts its weight, and those of gate and up cast the rows; backward casts their gradients.

Ignores: that several kernels make one operator (``nonzero``, ``index_put`` with its sort).

Source: operators that torch 2.13 dispatches on a processor for each expert of the loop of
``MixtralSparseMoeBlock`` and ``Qwen2MoeSparseMoeBlock`` (transformers 4.51); PyTorch,
derivatives.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.cost.rates import FULL_BYTES
from simulator.described.model import Experts
from simulator.facts import host_launches
from simulator.program.layer.block import Block
from simulator.program.layer.mlp import branches
from simulator.program.layer.pieces import MemoryBound, Region

_OPERATORS, _BACKWARD_OPERATORS = 10, 20
"""Of one gated expert. Forward: nonzero, index (2), products (3), silu, mul (2), index_add.
Backward: index_select, mul (4), sum, products (6), silu_backward, new_zeros (2), index_put (2),
add (3)."""

_UNGATED, _UNGATED_BACKWARD = 2, 5
"""Fewer operators without a gate. Forward: a product and a multiplication. Backward: the two
products of one, the two multiplications of the other, and the sum of both branches' gradients."""


_COPY_PASSES, _COPY_BACKWARD_PASSES = 5, 12
"""Reads and writes of the row of a copy beyond one each of picking it up and adding it. Forward:
picking up (1), weights (2), a sum that reads and writes what is there (2). Backward: picking up
(1), products with weights and output and their sum (6), the sum of two products' gradients (3),
adding to zeros (2)."""

_TOKEN_PASSES = 4
"""Of all tokens' rows for each expert, backward: zeros are written (1), and added (3)."""


def autocast_pieces(block: Block, experts: Experts, copies: int) -> Iterator[MemoryBound]:
    """Casts of every expert's weights and rows as 16 bits, and of their gradients as fp32.

    Args:
        block: A layer whose products are under autocast.
        experts: Its experts.
        copies: Copies of tokens that they receive.
    """
    moved_bytes = FULL_BYTES + block.shape.element_bytes
    row, products = copies * block.model.hidden, branches(block.model)
    matrix = weights_of_experts(block, experts) // (products + 1)
    for name, elements, kernels in (
        ("expert_up_autocast", products * (matrix + row), 2 * products),
        ("expert_down_autocast", matrix, 1),
    ):
        num_bytes = moved_bytes * elements
        yield MemoryBound(
            name, num_bytes, num_bytes, Region.SEQUENCE, kernels * experts.count,
            per_expert=True, widens_backward=True,
        )  # fmt: skip


def weights_of_experts(block: Block, experts: Experts) -> int:
    """Elements of the matrices of all routed experts that a rank visits."""
    matrices = branches(block.model) + 1
    return matrices * experts.count * experts.ffn_hidden * block.model.hidden // block.plan.ep


def loop_pieces(
    block: Block, experts: Experts, copies: int, host_work: float
) -> Iterator[MemoryBound]:
    """Both directions of what the loop does beside products and activations.

    Their launches are so many as take the host as long as all operators do.

    Args:
        block: The layer.
        experts: Its experts.
        copies: Copies of tokens that they receive.
        host_work: What the host takes for each launch, in bare ones.
    """
    row_bytes = block.model.hidden * block.shape.element_bytes
    visits = experts.count * block.shape.tokens
    forward_bytes = _COPY_PASSES * copies * row_bytes
    backward_bytes = (_COPY_BACKWARD_PASSES * copies + _TOKEN_PASSES * visits) * row_bytes
    forward, backward = _OPERATORS, _BACKWARD_OPERATORS
    if not block.model.gated_mlp:
        forward, backward = forward - _UNGATED, backward - _UNGATED_BACKWARD
    for name, moved, operators, products in (
        ("expert_loop", (forward_bytes, 0.0), forward, 2),
        ("expert_loop_gradient", (0.0, backward_bytes), backward, 4),
    ):
        launches = operators * host_launches("operator") / host_work
        kernels = experts.count * max(0, round(launches) - products)
        yield MemoryBound(name, *moved, Region.SEQUENCE, kernels, per_expert=True)
