"""What do kernels that torch dispatches move, and which piece of a layer stands for them?"""

from __future__ import annotations

import pytest

from simulator.program.layer.pieces import Layer, MemoryBound

torch = pytest.importorskip("torch")

VIEWS = {
    "view", "slice", "split", "split_with_sizes", "expand", "alias", "detach", "unsqueeze",
    "transpose", "t", "select", "narrow", "squeeze", "as_strided",
}  # fmt: skip
MAKES_ONLY = {"new_zeros", "new_empty_strided"}
"""These read nothing of the tensor whose kind they take; the latter writes nothing, either."""


def memory_bound(layer: Layer, name: str) -> MemoryBound:
    found = next(each for each in layer.pieces if each.name == name)
    assert isinstance(found, MemoryBound)
    return found


def size_bytes(tensor) -> int:
    """Of what it holds: a dimension without a stride is one element in memory."""
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    elements = 1
    for extent, stride in extents:
        elements *= extent if stride else 1
    return elements * tensor.element_size()


def moved_bytes(run) -> int:
    """Reads and writes of every kernel that torch runs, which are those that make no view."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    moved = 0

    class Counter(TorchDispatchMode):
        def __torch_dispatch__(self, kernel, types, args=(), kwargs=None):
            nonlocal moved
            result = kernel(*args, **(kwargs or {}))
            name = kernel.__name__.split(".")[0]
            read = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            written = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
            if name in (
                "slice_backward",
                "select_backward",
            ):  # zeros, into which what was picked is copied
                written.append(read[0])
            if name == "masked_fill":  # a copy, of which part is written over
                read, written = [read[0], *read], [*written, *written]
            if name == "copy_" or name in MAKES_ONLY:
                read = read[1:]
            if name == "new_empty_strided":
                written = []
            if name not in VIEWS:
                moved += sum(map(size_bytes, [*read, *written]))
            return result

    with Counter():
        run()
    return moved
