"""How long does a host take for hooks that gather the matrices of a layer one by one?

DeepSpeed's ZeRO 3 hangs hooks on every module of a model: each fetches the module's own weights
before a pass through it, and lets go of them behind it. Code in Python does so for every matrix by
itself, those of each expert too. Norms are small enough to stay where they are
(``stage3_param_persistence_threshold``), but are modules: their hooks look whether the weight is
there, and their gradients are reduced as those of matrices are. A bias comes with its module.

PyTorch's FSDP1 gathers a unit at a time: a layer, and beside it, where peft says what a unit is,
each matrix of an adapter. A host that is two gathers ahead waits there for the device (a stack's
fact ``limits_gathers``), and so what hooks of adapters take comes on top. Those of whole layers are
few and far between: a host that has two layers to launch runs ahead of the device all the same, and
they only count where it is the slower of the two. They run on one rank, too, but not where forward
is repeated: what is checkpointed is inside of what is sharded.

Ignores: modules that are fetched as one (``set_z3_leaf_modules``); hooks of FSDP's root, which has
embedding and head.

Source: DeepSpeed, runtime/zero/parameter_offload.py and partitioned_param_coordinator.py; PyTorch,
distributed/fsdp/_runtime_utils.py (``_unshard``); peft, utils/other.py (``fsdp_auto_wrap_policy``).
"""

from __future__ import annotations

from simulator.described.job import Job
from simulator.program.grid.rank_groups import shard_group
from simulator.program.layer.layer_kinds import layer_kinds, layer_tensors
from simulator.program.layer.layer_part import LayerKind
from simulator.program.layer.pieces import Gemm, GroupedGemm, Layer, Role
from simulator.program.layer.tensors import TensorRole


def hooks_s(job: Job, layer: Layer, kind: LayerKind | None = None) -> float:
    """Host time of all hooks of a layer, each time it is visited; 0 without hooks [s].

    It is visited forward, where that is repeated, for gradients of its inputs, and for those of its
    weights, which are reduced.

    Args:
        job: Its plan shards weights, and its stack says what a hook takes.
        layer: What one rank runs of a layer, or of an end of the model.
        kind: The layer's, whose norms have hooks too; None for an end of the model.
    """
    if not job.choices.shards_weights or shard_group(job).ranks == 1:
        return 0.0
    launch_s = job.cluster.profile.kernels.launch_s
    stack = job.plan.stack
    modules = _adapters(layer) if stack.limits_gathers else _matrices(layer) + _norms(job, kind)
    return modules * stack.host_work_per_gather * launch_s


def unit_hooks_s(job: Job) -> float:
    """Host time of the hooks of a layer that is a unit of FSDP, each time it is visited [s].

    Stages of a pipeline that keep what they gathered, and reduce gradients once, have none to run.

    Args:
        job: Its plan says whether weights are sharded, and its stack what hooks take.
    """
    if not job.choices.shards_weights or job.choices.reduces_stages_once:
        return 0.0
    return job.cluster.profile.kernels.launch_s * job.plan.stack.host_work_per_unit


def with_hooks_s(job: Job, host_s: float, device_s: float, all_hooks_s: float) -> float:
    """Host time of a pass through a layer with its hooks [s].

    Args:
        job: Its stack says whether the host waits for the device.
        host_s: Without hooks [s].
        device_s: Of what is launched [s].
        all_hooks_s: Of the hooks of all visits [s].
    """
    if all_hooks_s and job.plan.stack.limits_gathers:
        host_s = max(host_s, device_s)
    return host_s + all_hooks_s


def _adapters(layer: Layer) -> int:
    return sum(isinstance(p, Gemm) and p.role is Role.ADAPTER for p in layer.pieces)


def _norms(job: Job, kind: LayerKind | None) -> int:
    """Of a layer of that kind, also those of its heads."""
    if kind is None:
        return 0
    tensors = layer_tensors(job.model, layer_kinds(job.model).index(kind))
    return sum(tensor.role in (TensorRole.NORM, TensorRole.HEAD_NORM) for tensor in tensors)


def _matrices(layer: Layer) -> int:
    alone = (len(piece.tensors) for piece in layer.pieces if isinstance(piece, Gemm))
    of_experts = (
        piece.groups * len(piece.tensors)
        for piece in layer.pieces
        if isinstance(piece, GroupedGemm)
    )
    return sum(alone) + sum(of_experts)
