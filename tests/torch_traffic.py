"""Which collectives does torch really issue for one rank of many, without any network?

Torch's fake process group runs one rank of a world of any size in one process; a dispatch
mode writes down every collective that reaches it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import _redistribute
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd"}

_KINDS = {
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "broadcast_": "broadcast",
    "all_to_all_single": "all_to_all",
    "alltoall_base_": "all_to_all",
}

Issued = tuple[str, int, float]
"""Kind, ranks in the group, and message size as nccl-tests counts it [B]."""


@dataclass
class TrafficLog(TorchDispatchMode):
    """Collectives in the order in which a rank issues them."""

    issued: list[Issued] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(t.__name__ in ("DTensor", "AsyncCollectiveTensor") for t in types):
            return NotImplemented  # comes back as operations on local tensors
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        if func.namespace in _NAMESPACES and name in _KINDS:
            self.issued.append((_KINDS[name], _group_size(args), _largest_bytes(args, result)))
        return result


@contextlib.contextmanager
def fake_world(ranks: int) -> Iterator[TrafficLog]:
    """Be rank 0 of so many; what is issued inside is logged."""
    with fake_ranks(ranks), TrafficLog() as log:
        yield log


@contextlib.contextmanager
def fake_ranks(ranks: int, rank: int = 0) -> Iterator[None]:
    """Be one of so many ranks."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    torch.manual_seed(0)
    try:
        yield
    finally:
        dist.destroy_process_group()
        _forget_meshes()


def _forget_meshes() -> None:
    """Drop what DTensor remembers of a mesh: an equal one of the next world has other groups."""
    _clear_sharding_prop_cache()
    _redistribute._gen_transform_infos.cache_clear()
    _redistribute.clear_redistribute_planner_cache()


def _group_size(args: Any) -> int:
    for arg in args:
        if isinstance(arg, torch.ScriptObject):
            return dist.ProcessGroup.unbox(arg).size()
        if isinstance(arg, str) and arg not in ("sum", "avg", "max"):
            return torch._C._distributed_c10d._resolve_process_group(arg).size()
    raise AssertionError("a collective without a group")


def _largest_bytes(args: Any, result: Any) -> float:
    """The whole buffer: output of a gather, input of a scatter."""

    def total(tree: Any) -> int:
        tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
        return max((t.numel() * t.element_size() for t in tensors), default=0)

    return float(max(total(args), total(result)))
