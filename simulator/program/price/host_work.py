"""What does the host spend on each kernel of a dense layer, and beside kernels on one of experts?

What a dense layer's host work was timed with are a library's modules. Kernels that are there
because a gate or a rotation is written in PyTorch's operators take the host what those take.

A layer of experts takes the host time that does not grow with its kernels: Python of the router,
of the dispatcher and of modules.
"""

from __future__ import annotations

from simulator.described.job import Job
from simulator.described.plan.shipped_stacks import STACKS
from simulator.program.layer.block import Shape
from simulator.program.layer.layer_kinds import model_layer
from simulator.program.layer.layer_part import LayerKind
from simulator.program.layer.pieces import Exchange, Layer, MemoryBound
from simulator.program.price.layer_time import LayerTime

_FORWARD_SHARE = 0.75
"""Of what a layer takes its host beside its launches: forward takes 0.61 of the time of both, and
backward as many launches (measured with ``host_work_per_expert_layer``)."""

_SHARE_OF_EXPERTS = 0.52
"""Of the same, what is not there in a dense layer, whose 2.22 ms are 1.375 more than its 30 kernels
take at the pace of those of experts, beside 2.845 ms of a layer of experts (measured likewise)."""


def mixed_host_work(modules: float, per_launch: float, written: float) -> float:
    """Host time per launch of a layer, over that of one with experts.

    Args:
        modules: That of a library's modules.
        per_launch: Host work of the layer with experts, in bare launches.
        written: Share of the kernels that are PyTorch's operators.
    """
    operators = STACKS["torch"].host_work_per_launch / per_launch
    return modules + written * (operators - modules)


def written_share(job: Job, kind: LayerKind, layer: Layer, shape: Shape) -> float:
    """Share of a layer's kernels that are there because gates and rotations are operators.

    Args:
        job: The job.
        kind: What kind of layer it is.
        layer: All that the model has of it.
        shape: Of a microbatch.
    """
    fused = {"fused_elementwise": True, "fused_rotary": True}
    stack = job.plan.stack.model_copy(update=fused)
    if stack == job.plan.stack:
        return 0.0
    plan = job.plan.model_copy(update={"stack": stack})
    modules, kernels = _kernels(model_layer(job.model, kind, plan, shape)), _kernels(layer)
    return max(0, kernels - modules) / kernels


def _kernels(layer: Layer) -> int:
    """What is launched in one direction, exchanges aside."""
    pieces = (each for each in layer.pieces if not isinstance(each, Exchange))
    return sum(each.kernels if isinstance(each, MemoryBound) else 1 for each in pieces)


def python_s(beside_s: float, time: LayerTime, launched_alone: LayerTime) -> tuple[float, float]:
    """Host time of a layer of experts beside its launches, forward and backward [s].

    Graphs of all but the routed experts take away what a dense layer takes, all of it graphs of
    whole layers.

    Args:
        beside_s: What it takes where nothing is in a graph [s].
        time: Its passes.
        launched_alone: What of them is in no graph.
    """
    if not launched_alone.forward.kernels:
        return (0.0, 0.0)
    if launched_alone is not time:
        beside_s *= _SHARE_OF_EXPERTS
    return _FORWARD_SHARE * beside_s, (1 - _FORWARD_SHARE) * beside_s
