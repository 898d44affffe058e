"""How is the model cut, sharded, replicated and recomputed as a plan asks?

With torch's own means: ``parallelize_module`` for tensor and sequence parallelism,
``fully_shard`` (FSDP2), ``DistributedDataParallel``, ``torch.utils.checkpoint``. Experts
have no ready-made strategy in torch; they are exchanged by ``all_to_all_single``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from simulator.described.job import Job
from simulator.ranks.world import World
from simulator.validate.torch_run.reference_model import Attention, Layer
from simulator.validate.torch_run.split_model import StageModel, split_experts
from simulator.validate.torch_run.supported_plan import DTYPES

_AXES = {
    "tp": ("tp",),
    "cp": ("cp",),
    "ep": (),
    "dp": ("replicate", "shard", "ep"),
    "pp": ("pp",),
}
"""Axes of the mesh for each word of the rank order, the slowest first; experts take part of
the data-parallel ranks."""


@dataclass(frozen=True)
class Grid:
    """The groups of one rank; None where a group is the rank alone.

    Attributes:
        tensor: Ranks that share each weight matrix.
        context: Ranks that share each sequence.
        expert: Ranks that the experts are spread over.
        data: Ranks that hold the same weights, sharded or not; (replicate, shard) where
            sharding spans only part of them.
        pipeline: The stages of one pipeline.
        stage: This rank's place among them.
        data_rank: This rank's place among those that take different sequences.
    """

    tensor: DeviceMesh | None
    context: DeviceMesh | None
    expert: DeviceMesh | None
    data: DeviceMesh | None
    pipeline: DeviceMesh | None
    stage: int
    data_rank: int

    @property
    def pipeline_group(self) -> dist.ProcessGroup | None:
        """The stages of one pipeline as a process group."""
        return None if self.pipeline is None else self.pipeline.get_group()


def build_grid(job: Job, world: World) -> Grid:
    """The groups of this rank, ranks numbered as ``plan.rank_order`` says."""
    sizes = _sizes(job)
    order = [axis for word in reversed(job.plan.rank_order.split("-")) for axis in _AXES[word]]
    shape = tuple(sizes[axis] for axis in order)
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=tuple(order))

    def along(name: str, *axes: str) -> DeviceMesh | None:
        used = tuple(axis for axis in order if axis in axes and sizes[axis] > 1)
        if not used:
            return None
        return mesh[used[0]] if len(used) == 1 else mesh[used]._flatten(name)

    copies = ("replicate", "shard", "ep", "cp")
    is_hybrid = sizes["replicate"] > 1 and sizes["shard"] > 1
    data_rank = 0
    for axis in _AXES["dp"]:
        data_rank = data_rank * sizes[axis] + mesh.get_local_rank(axis)
    return Grid(
        tensor=along("tensor", "tp"),
        context=along("context", "cp"),
        expert=along("expert", "ep"),
        data=mesh["replicate", "shard"] if is_hybrid else along("data", *copies),
        pipeline=along("pipeline", "pp"),
        stage=mesh.get_local_rank("pp"),
        data_rank=data_rank,
    )


def _sizes(job: Job) -> dict[str, int]:
    plan = job.plan
    experts = plan.ep if job.model.experts else 1
    shards = plan.zero_group or job.dp // experts
    return {
        "tp": job.choices.tensor_ranks,
        "cp": plan.cp,
        "replicate": job.dp // (shards * experts),
        "shard": shards,
        "ep": experts,
        "pp": plan.pp,
    }


_MEBIBYTE = 2**20
_DEFAULT_BUCKET_BYTES = 25 * _MEBIBYTE
"""``bucket_cap_mb`` of DDP; only where it is left out is the first bucket smaller."""


def parallelised(net: StageModel, job: Job, grid: Grid, world: World) -> nn.Module:
    """The module that trains, with its weights on the world's device."""
    if grid.expert is not None:
        split_experts(net, grid.expert.get_group(), arrivals_known=world.backend == "fake")
    if grid.tensor is not None:
        parallelize_module(net, grid.tensor, _tensor_plan(net, job))
    _recompute(net, job)
    if grid.data is None and grid.context is None:
        return net
    if job.choices.shards_weights:
        return _fully_sharded(net, job, grid, world)
    return _replicated(net, job, grid, world)


def _tensor_plan(net: StageModel, job: Job) -> dict[str, ParallelStyle]:
    """Products by columns and then by rows; with sequence parallelism norms by tokens."""
    cut = job.plan.cuts_sequence
    between = Shard(1) if cut else Replicate()
    plan: dict[str, ParallelStyle] = {}
    if net.embedding is not None:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    for index, module in enumerate(net.layers):
        layer, name = cast(Layer, module), f"layers.{index}"
        for product in ("attention.query", "attention.key", "attention.value", "mlp.up"):
            plan[f"{name}.{product}"] = ColwiseParallel()
        if getattr(layer.mlp, "gate", None) is not None:
            plan[f"{name}.mlp.gate"] = ColwiseParallel()
        for product in ("attention.output", "mlp.down"):
            plan[f"{name}.{product}"] = RowwiseParallel(output_layouts=between)
        if cut:
            for norm in ("attention_norm", "mlp_norm"):
                plan[f"{name}.{norm}"] = SequenceParallel(use_local_output=True)
            for block in ("attention", "mlp"):
                plan[f"{name}.{block}"] = PrepareModuleInput(
                    input_layouts=(Shard(1),),
                    desired_input_layouts=(Replicate(),),
                    use_local_output=False,
                )
    if net.norm is not None:
        if cut:
            plan["norm"] = SequenceParallel(use_local_output=True)
        parallel_loss = job.plan.stack.parallel_loss
        plan["head"] = ColwiseParallel(
            input_layouts=between,
            output_layouts=Shard(-1) if parallel_loss else Replicate(),
            use_local_output=not parallel_loss,
        )
    return plan


def _recompute(net: StageModel, job: Job) -> None:
    again = partial(checkpoint, use_reentrant=False)
    for module in net.layers:
        layer = cast(Layer, module)
        if job.plan.recompute == "full":
            layer.forward = partial(again, layer.forward)  # type: ignore[method-assign]
        elif job.plan.recompute == "selective":
            attention: Attention = layer.attention
            attention.core = partial(again, attention.core)  # type: ignore[method-assign]


def _fully_sharded(net: StageModel, job: Job, grid: Grid, world: World) -> nn.Module:
    plan = job.plan
    dtype, reduced = DTYPES[plan.precision], plan.stack.grad_reduce_precision
    policy = MixedPrecisionPolicy()
    if dtype != torch.float32 and job.choices.keeps_master_weights:
        reduce_dtype = DTYPES[plan.grad_reduce_precision or reduced]
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduce_dtype)
    reshards = plan.reshard_after_forward is not False
    # Only from pinned memory do copies run beside computing.
    offload = CPUOffloadPolicy(pin_memory=world.is_gpu) if plan.offload.is_used else OffloadPolicy()
    shard = partial(fully_shard, mesh=grid.data, mp_policy=policy, offload_policy=offload)
    experts = _expert_parameters(net) if grid.expert is not None else set()
    for module in net.layers:
        layer = cast(Layer, module)
        shard(layer, reshard_after_forward=reshards, ignored_params=experts)
    if plan.stack.sharding_units == "ends":
        if net.embedding is not None:
            shard(net.embedding, reshard_after_forward=reshards)
        if net.norm is not None and net.head is not None:
            shard([net.norm, net.head], reshard_after_forward=False)
    shard(net, ignored_params=experts)
    return net


def _expert_parameters(net: StageModel) -> set[nn.Parameter]:
    """Weights of the experts that were spread; router and shared experts are everybody's."""
    return {
        parameter
        for name, parameter in net.named_parameters()
        if name.endswith(("experts.gate", "experts.up", "experts.down"))
    }


def _replicated(net: StageModel, job: Job, grid: Grid, world: World) -> nn.Module:
    stack = job.plan.stack
    if grid.expert is not None:
        experts = _expert_parameters(net)
        names = [name for name, parameter in net.named_parameters() if parameter in experts]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(  # type: ignore[no-untyped-call]
            net, names
        )
    is_default = stack.bucket_bytes == _DEFAULT_BUCKET_BYTES and stack.first_bucket_bytes
    assert grid.data is not None
    wrapped = DistributedDataParallel(
        net,
        process_group=grid.data.get_group(),
        bucket_cap_mb=None if is_default else stack.bucket_bytes / _MEBIBYTE,
        gradient_as_bucket_view=not stack.buckets_gradients,
    )
    if world.backend == "fake":
        # DDP reads a hook's annotations, which must not be texts.
        wrapped.register_comm_hook(None, lambda _, bucket: _finished_at_once(bucket.buffer()))
    return wrapped


def _finished_at_once(buffer: Tensor) -> torch.futures.Future[Tensor]:
    """What a reduction leaves where no other rank is there."""
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done
