"""Sums of gradients lie where torch puts them when nobody watches."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from simulator.capture.recording.operators import takes_the_first  # noqa: E402


class Doubles(torch.autograd.Function):
    """Its own backward adds up."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient + gradient


def two_products(x):
    return x @ torch.ones(3, 3) + x @ torch.ones(3, 3)


def residual(x):
    return x + x.sin()


@pytest.mark.parametrize(
    ("function", "in_place"),
    [(two_products, [True]), (residual, [False]), (Doubles.apply, [False])],
    ids=["gradients of their own", "a gradient that another use has, too", "code of the user's"],
)
def test_autograd_adds_to_a_gradient_that_nobody_else_holds(function, in_place):
    """So does torch itself, whose sums here lie in the memory of the first gradient."""
    found, lies_in_first = [], []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.add.Tensor and not torch.is_grad_enabled():
                found.append(takes_the_first(func, args))
            return func(*args, **(kwargs or {}))

    leaf = torch.ones(3, 3, requires_grad=True)
    with Watch():
        function(leaf * 1).sum().backward()
    assert found == in_place

    first = []
    x = leaf * 1
    x.register_hook(lambda gradient: lies_in_first.append(gradient.data_ptr()))
    result = function(x)
    for node, _ in result.grad_fn.next_functions:
        if node is not None and function is two_products:
            node.register_hook(lambda made, _: first.append(made[0].data_ptr()))
    result.sum().backward()
    assert (lies_in_first[0] in first) == in_place[0]
