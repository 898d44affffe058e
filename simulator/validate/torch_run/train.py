"""What does one rank do in one training step?

Forward and backward of every microbatch, or torch's pipeline schedule; then the gradient
norm over all ranks, clipping and the optimizer, as trainers do.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from inspect import signature
from types import MappingProxyType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    get_schedule_class,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm
from torch.optim import SGD, AdamW, Optimizer

from simulator.described.job import Job
from simulator.described.plan.plan_fields import Optimizer as OptimizerName
from simulator.errors import UnsupportedError
from simulator.program.grid.stage_layers import Slice, stage_slices
from simulator.ranks.world import World
from simulator.validate.torch_run.parallelise import Grid, build_grid, parallelised
from simulator.validate.torch_run.predict import BACKWARD_SLEEP, exchanges_activations
from simulator.validate.torch_run.recorded_trace import Phase, PhaseClock
from simulator.validate.torch_run.reference_model import token_loss, use_float8
from simulator.validate.torch_run.split_model import SpreadExperts, StageModel
from simulator.validate.torch_run.supported_plan import DTYPES, SCHEDULES

Schedule = PipelineScheduleSingle | PipelineScheduleMulti

_PASSES: Mapping[str, Phase] = {
    "forward_one_chunk": "forward",
    "backward_one_chunk": "backward",
    "backward_weight_one_chunk": "backward",
}
"""Methods of a stage that compute, and the phase that each belongs to."""


def schedule_name(job: Job) -> str:
    """Our name of the job's schedule, its default filled in."""
    return job.choices.schedule.name


def stages_of_rank(job: Job, stage: int) -> list[int]:
    """Virtual stages of a pipeline rank, in order of the model."""
    placement, pp = job.choices.schedule.placement, job.plan.pp
    return [v for v in range(pp * job.plan.vpp) if placement.rank(v, pp) == stage]


def slices_of_rank(job: Job, stage: int) -> list[Slice]:
    """Layers of each virtual stage of a pipeline rank."""
    slices = stage_slices(job, job.plan.pp * job.plan.vpp)
    return [slices[v] for v in stages_of_rank(job, stage)]


def build_schedule(
    job: Job,
    grid: Grid,
    world: World,
    parts: Sequence[nn.Module],
    loss: Callable[[Tensor, Tensor], Tensor],
    clock: PhaseClock,
) -> Schedule:
    """Torch's schedule over the stages of this rank, whose phases the clock marks.

    Raises:
        UnsupportedError: Torch refuses these sizes.
    """
    numbers = stages_of_rank(job, grid.stage)
    stages = [
        _timed(_stage(job, grid, world, part, number), chunk, clock)
        for chunk, (number, part) in enumerate(zip(numbers, parts, strict=True))
    ]
    build = get_schedule_class(SCHEDULES[schedule_name(job)])
    is_single = issubclass(build, PipelineScheduleSingle)
    try:
        schedule: Schedule = build(
            stages[0] if is_single else stages, job.microbatches, loss_fn=loss
        )
    except ValueError as error:
        rule = f"torch's {build.__name__} refuses: {error}"
        raise UnsupportedError.single("plan.schedule", rule, schedule_name(job)) from error
    if world.backend == "fake":
        _take_shapes_as_given(schedule)
    return schedule


def _stage(job: Job, grid: Grid, world: World, part: nn.Module, number: int) -> PipelineStage:
    count = job.plan.pp * job.plan.vpp
    shapes = _shapes(job, number, count) if world.backend == "fake" else {}
    return PipelineStage(part, number, count, world.device, group=grid.pipeline_group, **shapes)


def _shapes(job: Job, number: int, count: int) -> dict[str, Any]:
    micro, length = job.batch.micro_batch, job.batch.seq_len // job.plan.cp
    cut = length // job.choices.tensor_ranks if job.plan.cuts_sequence else length
    dtype = DTYPES[job.plan.precision]

    def tensor(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)

    tokens = torch.empty((micro, length), dtype=torch.long, device="meta")
    hidden = tensor(micro, cut, job.model.hidden)
    return {
        "input_args": tokens if number == 0 else hidden,
        "output_args": tensor(micro, length, job.model.vocab) if number == count - 1 else hidden,
    }


def _timed(stage: PipelineStage, chunk: int, clock: PhaseClock) -> PipelineStage:
    for method, phase in _PASSES.items():
        setattr(stage, method, _marked(getattr(stage, method), phase, chunk, clock))
    return stage


def _marked(run: Callable[..., Any], phase: Phase, chunk: int, clock: PhaseClock) -> Any:
    @wraps(run)
    def marked(microbatch: int, *args: Any, **options: Any) -> Any:
        with clock.phase(phase, microbatch, chunk):
            return run(microbatch, *args, **options)

    return marked


def _take_shapes_as_given(schedule: Any) -> None:
    """Keeps torch from asking other ranks for the shapes, as it does from 2.13 on."""
    if not hasattr(schedule, "_warmup_p2p"):
        return
    from torch.distributed.pipelining._utils import InferenceMode

    def warm_up(stages: Sequence[Any], *_: object) -> None:
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    schedule._warmup_p2p = warm_up


_LEARNING_RATE = 1e-4
_MAX_NORM = 1.0
_OPTIMIZERS: Mapping[OptimizerName, tuple[type[Optimizer], Mapping[str, Any]]] = MappingProxyType(
    {
        "adam": (AdamW, {"lr": _LEARNING_RATE, "fused": True}),
        "sgd": (SGD, {"lr": _LEARNING_RATE, "fused": True}),
        "sgd-momentum": (SGD, {"lr": _LEARNING_RATE, "momentum": 0.9, "fused": True}),
    }
)
_SEED = 1


@dataclass
class Trainer:
    """One rank's model, optimizer and tokens.

    Attributes:
        job: What is trained.
        world: This rank among all.
        grid: Its groups.
        parts: One module per pipeline stage that it holds.
        optimizer: Updates their parameters.
        tokens, labels: The rank's sequences of a step (microbatches x b, s).
        clock: Marks phases.
        schedule: Torch's pipeline; None without one.
    """

    job: Job
    world: World
    grid: Grid
    parts: Sequence[nn.Module]
    optimizer: Optimizer
    tokens: Tensor
    labels: Tensor
    clock: PhaseClock
    schedule: Any

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters that this rank holds, or holds a part of."""
        return [parameter for part in self.parts for parameter in part.parameters()]

    @property
    def expert_rows(self) -> Tensor | None:
        """Rows that this rank last sent to each expert, over all layers; None without any."""
        routed = [
            module.routed
            for part in self.parts
            for module in part.modules()
            if isinstance(module, SpreadExperts)
        ]
        return torch.stack(routed).sum(0) if routed else None

    def step(self) -> None:
        """One step; the clock marks its phases."""
        with _loss_context(self.job), _attention_context(self.job), _product_format(self.job):
            if self.schedule is None:
                self._accumulate()
            else:
                self._pipeline()
        with self.clock.phase("optimizer"):
            if self.job.plan.clip_gradients:
                self._clip()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def _accumulate(self) -> None:
        (part,), count = self.parts, self.job.microbatches
        micro = self.job.batch.micro_batch
        for index in range(count):
            rows = slice(index * micro, (index + 1) * micro)
            tokens, labels = self.tokens[rows].clone(), self.labels[rows].clone()
            with self._synchronised(part, is_last=index == count - 1), self._cut([tokens, labels]):
                with self.clock.phase("forward", index), _mixed(self.job, self.world):
                    loss = token_loss(part(tokens), labels) / count
                with self.clock.phase("backward", index):
                    loss.backward()  # type: ignore[no-untyped-call]

    def _pipeline(self) -> None:
        tokens, labels = self.tokens.clone(), self.labels.clone()
        inputs = (tokens,) if self.grid.stage == 0 else ()
        targets = {"target": labels} if self._holds_the_head() else {}
        # Else torch keeps the logits of all microbatches until the step ends, and joins them.
        options = signature(self.schedule.step).parameters
        kept = {"return_outputs": False} if "return_outputs" in options else {}
        with self._cut([tokens, labels]), _mixed(self.job, self.world):
            self.schedule.step(*inputs, **targets, **kept)

    def _holds_the_head(self) -> bool:
        return any(run.has_head for run in slices_of_rank(self.job, self.grid.stage))

    def _synchronised(
        self, part: nn.Module, *, is_last: bool
    ) -> contextlib.AbstractContextManager[None]:
        """DDP reduces after the last microbatch only, if the plan says so."""
        waits = self.job.plan.no_sync and not is_last
        if isinstance(part, DistributedDataParallel) and waits:
            return cast("contextlib.AbstractContextManager[None]", part.no_sync())
        return contextlib.nullcontext()

    def _cut(self, buffers: list[Tensor]) -> contextlib.AbstractContextManager[None]:
        if self.grid.context is None:
            return contextlib.nullcontext()
        from torch.distributed.tensor.experimental import context_parallel

        sequence_axes = [1] * len(buffers)
        context = context_parallel(
            self.grid.context, buffers=buffers, buffer_seq_dims=sequence_axes,
            no_restore_buffers=set(buffers),
        )  # fmt: skip
        return cast("contextlib.AbstractContextManager[None]", context)

    @property
    def _gradients_are_spread(self) -> bool:
        """Whether a rank holds only part of them; DDP leaves all on every rank."""
        plan, choices = self.job.plan, self.job.choices
        is_sharded = choices.shards_weights and self.grid.data is not None
        return is_sharded or any(ranks > 1 for ranks in (choices.tensor_ranks, plan.pp, plan.ep))

    @property
    def _norm_group(self) -> dist.ProcessGroup | None:
        """Ranks whose gradients differ; None is all. DDP leaves the same on all of its ranks."""
        grid, is_sharded = self.grid, self.job.choices.shards_weights
        if any(mesh is not None for mesh in (grid.tensor, grid.context, grid.expert)):
            return None
        if grid.pipeline is not None:
            return None if is_sharded else grid.pipeline_group
        is_hybrid = grid.data is not None and grid.data.ndim > 1
        return grid.data["shard"].get_group() if is_hybrid and grid.data is not None else None

    def _clip(self) -> None:
        grads = [p.grad for p in self.parameters if p.grad is not None]
        local = [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]
        # Offloaded gradients are on the host; one number of them goes to the device and back.
        squares = get_total_norm(local).float().square().to(self.world.device)
        if self._gradients_are_spread:
            dist.all_reduce(squares, group=self._norm_group)
        factor = (_MAX_NORM / squares.sqrt()).clamp(max=1.0)
        for device, dtype in {(grad.device, grad.dtype) for grad in local}:
            alike = [grad for grad in local if (grad.device, grad.dtype) == (device, dtype)]
            torch._foreach_mul_(alike, factor.to(device, dtype))


@contextlib.contextmanager
def _product_format(job: Job) -> Iterator[None]:
    """Products of fp32 numbers run in TF32 if the plan says so, and never else."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if job.plan.precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def build_trainer(job: Job, world: World, layer_sleep_s: float | None = None) -> Trainer:
    """The rank's share of the job, ready to step.

    Args:
        job: As torch runs it.
        world: This rank among all.
        layer_sleep_s: How long each layer sleeps in forward [s].

    Raises:
        UnsupportedError: The model or the schedule's sizes are not torch's.
    """
    torch.manual_seed(_SEED)
    grid = build_grid(job, world)
    clock = PhaseClock(world.is_gpu)
    runs = slices_of_rank(job, grid.stage)
    nets = [_built(StageModel, job, world, run) for run in runs]
    if job.plan.precision == "fp8":
        for net in nets:
            use_float8(net.layers)
    if layer_sleep_s is not None:
        layers = (layer for net in nets for layer in net.layers)
        put_to_sleep(layers, layer_sleep_s, computes=exchanges_activations(job))
    parts = [parallelised(net, job, grid, world) for net in nets]
    schedule = None
    if job.plan.pp > 1:
        schedule = build_schedule(job, grid, world, parts, token_loss, clock)
    if world.is_gpu:
        # Whole layers were built and cut here; who builds them on the meta device never has them.
        torch.cuda.empty_cache()
    tokens, labels = _batch(job, world, grid)
    parameters = [parameter for part in parts for parameter in part.parameters()]
    return Trainer(
        job, world, grid, parts, _optimizer(job, parameters), tokens, labels, clock, schedule
    )


def _built(make: Callable[..., StageModel], job: Job, world: World, run: Any) -> StageModel:
    keeps_master = job.choices.keeps_master_weights
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if keeps_master else DTYPES[job.plan.precision])
    try:
        with torch.device(world.device):
            return make(job.model, run)
    finally:
        torch.set_default_dtype(before)


def _optimizer(job: Job, parameters: Sequence[nn.Parameter]) -> Optimizer:
    """One optimizer; a fused kernel takes either distributed tensors or plain ones."""
    kind, options = _OPTIMIZERS[job.plan.optimizer]
    if job.choices.hands_out_weights and job.dp > 1:
        return ZeroRedundancyOptimizer(parameters, kind, **options)
    same_kind = (
        [p for p in parameters if isinstance(p, DTensor) == is_cut] for is_cut in (True, False)
    )
    return kind([{"params": group} for group in same_kind if group], **options)


def _batch(job: Job, world: World, grid: Grid) -> tuple[Tensor, Tensor]:
    count = job.microbatches * job.batch.micro_batch
    generator = torch.Generator(world.device).manual_seed(_SEED + grid.data_rank)
    shape = (count, job.batch.seq_len + 1)
    sequences = torch.randint(0, job.model.vocab, shape, generator=generator, device=world.device)
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()


def _mixed(job: Job, world: World) -> contextlib.AbstractContextManager[object]:
    """Autocast where weights are kept in fp32 and FSDP2 does not cast them."""
    dtype = DTYPES[job.plan.precision]
    casts_itself = job.choices.shards_weights and job.dp * job.plan.cp > 1
    if dtype == torch.float32 or casts_itself or not job.choices.keeps_master_weights:
        return contextlib.nullcontext()
    return torch.autocast(world.device.type, dtype)


@contextlib.contextmanager
def _loss_context(job: Job) -> Iterator[None]:
    """Cross-entropy of logits that tensor-parallel ranks keep cut."""
    with loss_parallel() if job.plan.divides_loss else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _attention_context(job: Job) -> Iterator[None]:
    """Products and a softmax where the plan says so; else torch's best fused kernel."""
    unfused = job.plan.attention_kernel == "unfused"
    with sdpa_kernel(SDPBackend.MATH) if unfused else contextlib.nullcontext():
        yield


def put_to_sleep(layers: Iterable[nn.Module], forward_s: float, *, computes: bool = False) -> None:
    """Replace what the layers compute, or add to it.

    Args:
        layers: Each takes and returns a hidden state of the same shape.
        forward_s: How long each sleeps in forward [s].
        computes: Whether they compute, too. Both ways they sleep at their end: forward after they
            have computed, backward before their first gradient.
    """
    for layer in layers:
        if computes:
            layer.forward = partial(_tired, layer.forward, forward_s)
        else:
            layer.forward = partial(_asleep, layer, forward_s)


def _tired(compute: Callable[[Tensor], Tensor], forward_s: float, hidden: Tensor) -> Any:
    return _Sleep.apply(forward_s, compute(hidden))  # type: ignore[no-untyped-call]


def _asleep(layer: nn.Module, forward_s: float, hidden: Tensor) -> Any:
    # Weights are looked up in the call: FSDP2 puts gathered ones in their place before it.
    return _Sleep.apply(forward_s, hidden, *layer.parameters())  # type: ignore[no-untyped-call]


class _Sleep(torch.autograd.Function):
    """Hands the hidden state on, and its gradient back."""

    @staticmethod
    def forward(ctx: Any, forward_s: float, hidden: Tensor, *weights: Tensor) -> Tensor:
        ctx.forward_s, ctx.weights = forward_s, weights
        time.sleep(forward_s)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        time.sleep(BACKWARD_SLEEP * ctx.forward_s)
        return None, *gradients, *map(torch.zeros_like, ctx.weights)
