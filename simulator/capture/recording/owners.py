"""Who holds a block of memory, and over how many data ranks is it sharded?

Parameters, gradients and optimizer states are asked of modules and optimizers; what FSDP1 and
FSDP2 take for gathered parameters and for their collectives is seen where they take it. Of the
rest, what forward takes and backward gives back are activations.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.distributed.fsdp import _runtime_utils as flat_runtime
from torch.distributed.fsdp._flat_param import FlatParamHandle, HandleShardingStrategy
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as param_group
from torch.distributed.fsdp._fully_shard._fsdp_common import HSDPMeshInfo
from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state
from torch.distributed.tensor import _dispatch, _random
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_leaves

from simulator.capture.recording.absent_streams import replaced
from simulator.capture.recording.groups import Groups
from simulator.capture.recording.record import Block, Kept
from simulator.capture.recording.recorder import Recorder
from simulator.capture.table import BlockOwner, Phase


class Owners:
    """Says who holds what.

    Args:
        recorder: Of the rank.
        groups: Told which degree FSDP's collectives belong to.
    """

    def __init__(self, recorder: Recorder, groups: Groups) -> None:
        self._recorder, self._groups = recorder, groups
        self._seen: WeakSet[nn.Module] = WeakSet()

    def root(self, module: nn.Module) -> None:
        """Take note of the parameters of a module that no other contains, before its forward."""
        if module in self._seen:
            return
        self._seen.add(module)
        shards = _shards(module)
        for parameter in module.parameters():
            count = shards.get(id(parameter), 1)
            self._recorder.say_owner(parameter, BlockOwner.PARAMETER, count)
        for buffer in module.buffers():
            self._recorder.say_owner(buffer, BlockOwner.BUFFER)

    def before_update(self, optimizer: Any, *_: Any) -> None:
        """Take note of parameters and gradients that an optimizer is about to use."""
        for parameter in _parameters(optimizer):
            block = self._recorder.block_of(parameter)
            self._recorder.say_owner(parameter, BlockOwner.PARAMETER)
            if parameter.grad is not None and block is not None:
                self._recorder.say_owner(parameter.grad, BlockOwner.GRADIENT, block.shards)

    def after_update(self, optimizer: Any, *_: Any) -> None:
        """Take note of the states that an optimizer keeps."""
        for parameter in _parameters(optimizer):
            block = self._recorder.block_of(parameter)
            for state in tree_leaves(optimizer.state.get(parameter, {})):
                if isinstance(state, torch.Tensor) and block is not None:
                    shards = block.shards if state.numel() > 1 else 1
                    self._recorder.say_owner(state, BlockOwner.OPTIMIZER_STATE, shards)

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Inside, optimizers and FSDP are watched, and planning of shardings is not recorded."""
        handles = [
            register_optimizer_step_pre_hook(self.before_update),
            register_optimizer_step_post_hook(self.after_update),
        ]
        plan = ShardingPropagator._propagate_tensor_meta_non_cached
        resize = torch.UntypedStorage.resize_

        def unrecorded(*args: Any, **kwargs: Any) -> Any:
            self._recorder.paused += 1
            try:
                return plan(*args, **kwargs)
            finally:
                self._recorder.paused -= 1

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            self._recorder.resized(storage)
            return result

        sent = BlockOwner.COMMUNICATION
        watched = {
            "foreach_all_gather": sent,
            "foreach_all_gather_copy_out": BlockOwner.GATHERED_PARAMETER,
            "foreach_reduce": sent,
        }
        values: dict[tuple[Any, str], Any] = {
            (param_group, name): self._watched(getattr(param_group, name), owner)
            for name, owner in watched.items()
        }
        values |= self._flat_parameters()
        values[ShardingPropagator, "_propagate_tensor_meta_non_cached"] = unrecorded
        values[torch.UntypedStorage, "resize_"] = resized
        # Random numbers without contents need no state that differs between ranks.
        for place in (_random, _dispatch):
            values[place, "is_rng_supported_mesh"] = lambda _: False
        try:
            with replaced(values):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _watched(self, function: Callable[..., Any], owner: BlockOwner) -> Callable[..., Any]:
        signature = inspect.signature(function)

        def call(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            for gradient in given.get("unsharded_grads", ()):
                self._recorder.say_owner(gradient, BlockOwner.GRADIENT)
            hybrid = isinstance(given["fsdp_params"][0].mesh_info, HSDPMeshInfo)
            with self._owned(owner, _axes(hybrid)):
                return function(*args, **kwargs)

        return call

    @contextlib.contextmanager
    def _owned(self, owner: BlockOwner, axes: Mapping[str, str]) -> Iterator[None]:
        """Inside, what is taken is the owner's, and exchanges belong to the degrees."""
        before = self._recorder.owner, self._groups.axes
        self._recorder.owner, self._groups.axes = owner, axes
        try:
            yield
        finally:
            self._recorder.owner, self._groups.axes = before

    def _flat_parameters(self) -> dict[tuple[Any, str], Any]:
        """Functions in place of FSDP1's, which say what its flat parameters hold."""
        say = self._recorder.say_owner
        attributes = FlatParamHandle.init_flat_param_attributes
        unshard: Callable[[Any], None] = FlatParamHandle.unshard
        reduced = flat_runtime._reduce_grad
        buffers = flat_runtime._get_reduce_scatter_tensors
        accumulated = flat_runtime._accumulate_sharded_grad

        def init_flat_param_attributes(handle: Any) -> None:
            attributes(handle)
            if handle.uses_sharded_strategy:
                say(handle.flat_param._local_shard, BlockOwner.PARAMETER, handle.world_size)
                cast = getattr(handle.flat_param, "_mp_shard", None)
                if cast is not None:
                    say(cast, BlockOwner.COMMUNICATION, handle.world_size)

        def unsharded(handle: Any) -> None:
            with self._owned(BlockOwner.GATHERED_PARAMETER, _flat_axes(handle)):
                unshard(handle)

        def reduce_grad(state: Any, handle: Any) -> None:
            with self._owned(BlockOwner.COMMUNICATION, _flat_axes(handle)):
                reduced(state, handle)

        def reduce_scatter_tensors(state: Any, gradient: Any) -> Any:
            found = buffers(state, gradient)
            say(found[1], BlockOwner.GRADIENT, state.world_size)
            return found

        def accumulate(state: Any, handle: Any, shard: Any) -> Any:
            found = accumulated(state, handle, shard)
            say(found, BlockOwner.GRADIENT, state.world_size)
            return found

        return {
            (FlatParamHandle, "init_flat_param_attributes"): init_flat_param_attributes,
            (FlatParamHandle, "unshard"): unsharded,
            (flat_runtime, "_reduce_grad"): reduce_grad,
            (flat_runtime, "_get_reduce_scatter_tensors"): reduce_scatter_tensors,
            (flat_runtime, "_accumulate_sharded_grad"): accumulate,
        }


def settled_owner(block: Block) -> BlockOwner:
    """Who holds a block, once it is known when it was given back."""
    if block.sure is not Kept.GUESSED:
        return block.owner
    outlives = block.given < 0 or block.given_phase is not block.phase
    if block.phase is Phase.FORWARD and outlives:
        return BlockOwner.ACTIVATION
    if block.phase is Phase.RECOMPUTE and outlives:
        return BlockOwner.RECOMPUTED
    return BlockOwner.TEMPORARY


def _flat_axes(handle: Any) -> Mapping[str, str]:
    strategy = handle._sharding_strategy
    hybrid = HandleShardingStrategy.HYBRID_SHARD, HandleShardingStrategy._HYBRID_SHARD_ZERO2
    return _axes(strategy in hybrid)


def _axes(hybrid: bool) -> Mapping[str, str]:
    """Degree of each kind of FSDP's collectives."""
    shard = "dp_shard" if hybrid else "dp"
    return {"all_gather": shard, "reduce_scatter": shard, "all_reduce": "dp_replicate"}


def _shards(root: nn.Module) -> dict[int, int]:
    """Ranks that FSDP2 shards each parameter over, by its identity."""
    found: dict[int, int] = {}
    for module in root.modules():
        state = _get_module_fsdp_state(module)
        for group in state._fsdp_param_groups if state is not None else ():
            for each in group.fsdp_params:
                found[id(each.sharded_param)] = each.mesh_info.shard_mesh_size
    return found


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]
