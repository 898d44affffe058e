"""What does one rank of a script do?

The process is this rank: its environment is torchrun's, its devices and process groups are not
there, its tensors have no contents. It ends when enough steps are written down. Nothing is
written, and nothing is asked of a network.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.distributed import device_mesh
from torch.distributed.utils import _data_ptr_allocated
from torch.testing._internal.distributed.fake_pg import FakeStore

from simulator.capture.recording import groups as exchanges
from simulator.capture.recording.absent_gpu import pretended_gpu
from simulator.capture.recording.absent_streams import (
    DeviceAnswers,
    answered,
    cuda_answers,
    everywhere,
    replaced,
)
from simulator.capture.recording.alignment_loss import alignment_loss
from simulator.capture.recording.flexible_attention import flexible_attention
from simulator.capture.recording.gpu_kernels import gpu_kernels, launched_by_triton
from simulator.capture.recording.modules import Modules
from simulator.capture.recording.owners import Owners, settled_owner
from simulator.capture.recording.pipelines import agreeing_stages
from simulator.capture.recording.record import Record
from simulator.capture.recording.recorder import Recorder
from simulator.capture.recording.reducer import reduced
from simulator.capture.recording.refusals import nothing_leaves, unsaved_models
from simulator.capture.recording.settle import MOST_STEPS, settled_table
from simulator.capture.recording.unknown.built_extensions import built_extensions
from simulator.capture.recording.unknown.generation import whole_generation
from simulator.capture.recording.unknown.library_answers import agreeing_ranks
from simulator.capture.recording.unknown.unpadded import unpadded_sequences
from simulator.capture.recording.unknown.values import unknown_value, unknown_values, user_line
from simulator.capture.stated_values import OPTION, StatedValues, read_stated_values
from simulator.capture.table import Capture, RankTable
from simulator.errors import InputError
from simulator.version import __version__


class StepsDone(BaseException):
    """Enough was written down; not an error, so no handler of the code takes it for one."""


@dataclass(frozen=True)
class RankResult:
    """What was captured of one rank.

    Attributes:
        table: Its step.
        groups: Ranks of every group, by number.
        tokens: Tokens that its step works on.
        notes: What was left out.
    """

    table: RankTable
    groups: tuple[tuple[int, ...], ...]
    tokens: int
    notes: tuple[str, ...]

    def as_capture(self, world: int) -> Capture:
        """A capture with this rank alone, not yet named."""
        return Capture(
            script="",
            world=world,
            device="",
            tokens_per_rank=self.tokens,
            groups=self.groups,
            tables=(self.table,),
            versions={"torch": torch.__version__, "clustersim": __version__},
            notes=self.notes,
        )


def captured_script(  # noqa: PLR0917 - one order, in words
    script: str,
    arguments: Sequence[str],
    rank: int,
    world: int,
    device: DeviceAnswers,
    mailbox: Path,
    on_error: Callable[[InputError], None] = lambda _: None,
    values: Sequence[str] = (),
) -> RankResult:
    """What one rank does when it runs a script; arguments as of :func:`captured`.

    Raises:
        InputError: The script raises, ends before a step, or needs what is not there.
    """

    def run() -> None:
        sys.argv = [script, *arguments]
        sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
        runpy.run_path(script, run_name="__main__")

    return captured(run, rank, world, device, mailbox, on_error, values)


def captured_steps(
    step: Callable[[], object],
    rank: int,
    world: int,
    device: DeviceAnswers,
    mailbox: Path,
    values: Sequence[str] = (),
) -> RankResult:
    """What one rank does in a step that a function runs."""

    def run() -> None:
        for _ in range(MOST_STEPS):
            step()

    return captured(run, rank, world, device, mailbox, values=values)


def captured(  # noqa: PLR0917 - one order, in words
    run: Callable[[], None],
    rank: int,
    world: int,
    device: DeviceAnswers,
    mailbox: Path,
    on_error: Callable[[InputError], None] = lambda _: None,
    values: Sequence[str] = (),
) -> RankResult:
    """What one rank does, until enough steps are complete.

    Args:
        run: Runs the code.
        rank: Which one it is.
        world: Of how many.
        device: What it may learn of its device.
        mailbox: Folder that the ranks of a capture share.
        on_error: Called with what stops backward, before torch's engine, which may end the
            process, is told.
        values: What only a real run knows, by line: ``FILE:LINE=NUMBER``.

    Raises:
        InputError: The code raises, ends before a step, or needs what is not there.
    """
    record = Record(rank)
    stated = read_stated_values(values)
    stated.note = record.note

    def on_step() -> None:
        recorder.fused.end()
        # From update to update: stages of a pipeline receive before their first forward.
        record.end_update(modules.last_update, modules.updated_by)
        if record.has_kept_step:
            raise StepsDone
        if len(record.steps) == 1:  # by now the code has imported what it uses
            libraries.enter_context(replaced(unpadded_sequences(record.note)))
            libraries.enter_context(replaced(unsaved_models(record.note)))
            libraries.enter_context(replaced(whole_generation(record.note)))
            libraries.enter_context(replaced(agreeing_ranks()))

    modules = Modules(
        on_step,
        lambda module: owners.root(module),  # noqa: PLW0108 - it is made below
        lambda: (record.moment, len(record.sizes)),
        lambda result: recorder.returned(result),  # noqa: PLW0108
    )
    recorder = Recorder(record, modules)
    recorder.on_error = lambda error: on_error(_as_input_error(error))
    followed = exchanges.Groups(recorder)
    owners = Owners(recorder, followed)
    around = _absent(recorder, followed, device, rank, world, stated)
    stages = agreeing_stages(mailbox)
    with around, owners.followed(), modules.followed(), stages, contextlib.ExitStack() as libraries:
        _run(run)
        if modules.has_updated and not record.has_kept_step:
            record.end_update(modules.last_update, modules.updated_by)
    recorder.fused.end()
    for text in stated.unused():
        record.note(f"{OPTION} {text}: no such line asked for a value")
    settled = [settled_owner(block) for block in record.blocks]
    table = settled_table(record, settled)
    return RankResult(table, tuple(record.groups), _tokens(recorder), tuple(record.notes))


def _run(run: Callable[[], None]) -> None:
    try:
        run()
    except StepsDone:
        return
    except SystemExit as error:
        if error.code not in (None, 0):
            raise InputError.single("script", f"ended with {error.code}") from error
    except Exception as error:
        raise _as_input_error(error) from error


def _as_input_error(error: Exception) -> InputError:
    """What stopped the code, with the line of it."""
    if isinstance(error, InputError):
        return error
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return unknown_value(error)
    rule = f"raised {type(error).__name__}: {str(error)[:500]}"
    return InputError.single(user_line(error), rule)


def _tokens(recorder: Recorder) -> int:
    """Tokens of the kept step: positions looked up in the embedding with most."""
    steps = recorder.record.steps
    step = min(recorder.record.kept_step, len(steps) - 2)
    first, end = steps[step][0], steps[step + 1][0]
    by_module: dict[int, int] = {}
    for moment, count in recorder.lookups:
        if first <= moment < end:
            module = recorder.record.operations[moment].module
            by_module[module] = by_module.get(module, 0) + count
    return max(by_module.values(), default=0)


@contextlib.contextmanager
def _absent(
    recorder: Recorder,
    followed: exchanges.Groups,
    device: DeviceAnswers,
    rank: int,
    world: int,
    stated: StatedValues,
) -> Iterator[None]:
    """Inside, the process is one rank of a world that is not there."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    answers = cuda_answers(
        recorder.streams, device, lambda: (recorder.now_bytes, recorder.most_bytes)
    )
    with contextlib.ExitStack() as stack:
        for context in (
            pretended_gpu(),
            answered(answers),
            _environment(rank, world, device),
            _process_groups(rank, world),
            _movable(),
            exchanges.followed(followed),
            reduced(recorder, followed),
            unknown_values(recorder.record.note, stated),
            nothing_leaves(recorder.record.note, recorder.modules.compiled),
            replaced(built_extensions(recorder.record.note)),
            torch.autograd.set_multithreading_enabled(False),
            fake,
            gpu_kernels(device.capability),
            alignment_loss(),
            flexible_attention(recorder.record.note),
            launched_by_triton(recorder.launch),
            recorder,
        ):
            stack.enter_context(context)
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


@contextlib.contextmanager
def _environment(rank: int, world: int, device: DeviceAnswers) -> Iterator[None]:
    values = {
        "RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": device.local_ranks, "GROUP_RANK": rank // device.local_ranks,
        "MASTER_ADDR": "localhost", "MASTER_PORT": 29500, "WANDB_MODE": "disabled",
        "HF_HUB_OFFLINE": 1, "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in values.items()})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _movable() -> Iterator[None]:
    """Inside, fake tensors and modules of them move to a device, and are copied, without contents.

    Weak references do not hinder that a module swaps its tensors, nor does what was computed of
    them before, such as a normed weight, which forward computes anew. A fake tensor that gets the
    contents of another is told where they are, which it does not learn from them. FSDP1 asks
    whether a tensor has an address: one without contents counts as allocated by its size.
    """

    def hold(tensor: Any, other: Any) -> None:
        contents.__set__(tensor, other)
        if isinstance(other, FakeTensor):
            tensor.fake_device, tensor.constant = other.fake_device, other.constant

    def copied(tensor: Any, memo: dict[int, Any]) -> Any:
        if id(tensor) not in memo:
            copy = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            is_weight = isinstance(tensor, torch.nn.Parameter)
            memo[id(tensor)] = torch.nn.Parameter(copy, copy.requires_grad) if is_weight else copy
        return memo[id(tensor)]

    apply: Callable[..., Any] = torch.nn.Module._apply

    def moved(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        vars(module).update(
            (name, value.detach())
            for name, value in list(vars(module).items())
            if isinstance(value, FakeTensor) and value.grad_fn is not None
        )
        return apply(module, *args, **kwargs)

    contents: Any = torch.Tensor.data
    nobody = SimpleNamespace(getweakrefs=lambda _: [])
    # Where a device is absent, tensors are made on the host and moved.
    is_absent = property(lambda _: True)
    with replaced(
        {
            (torch.utils, "weakref"): nobody,
            (torch.nn.Module, "_apply"): moved,
            (FakeTensorMode, "avoid_device_init"): is_absent,
            (FakeTensor, "data"): property(contents.__get__, hold),
            (FakeTensor, "__deepcopy__"): copied,
            **everywhere(_data_ptr_allocated, lambda tensor: tensor.untyped_storage().size() > 0),
        }
    ):
        yield


@contextlib.contextmanager
def _process_groups(rank: int, world: int) -> Iterator[None]:
    """Inside, groups have the size that is asked for and no connections."""
    initialise, new_group = dist.init_process_group, dist.new_group

    def init_process_group(*_: Any, **__: Any) -> None:
        if not dist.is_initialized():
            with unset_fake_temporarily():
                initialise("fake", store=FakeStore(), rank=rank, world_size=world)

    def group(ranks: Any = None, *_: Any, **known: Any) -> Any:
        kept = {k: known[k] for k in ("group_desc", "use_local_synchronization") if k in known}
        with unset_fake_temporarily():
            return new_group(ranks, backend="fake", **kept)

    mesh_of = device_mesh.init_device_mesh
    values: dict[tuple[Any, str], Any] = {
        **everywhere(initialise, init_process_group),
        **everywhere(new_group, group),
        **everywhere(mesh_of, _real(mesh_of)),
        **everywhere(dist.is_nccl_available, lambda: True),
        **everywhere(dist.barrier, lambda *_, **__: None),
        **everywhere(dist.distributed_c10d._set_pg_timeout, lambda *_, **__: None),
    }
    mesh = device_mesh.DeviceMesh
    for name in ("__init__", "__getitem__", "_concatenate", "_flatten", "_unflatten"):
        if name in vars(mesh):
            values[mesh, name] = _real(getattr(mesh, name))
    for name in ("get_coordinate", "get_local_rank", "get_group", "_get_all_submeshes"):
        values[mesh, name] = _real(getattr(mesh, name))
    for name in ("mesh", "_rank_map"):
        if isinstance(vars(mesh).get(name), property):
            values[mesh, name] = property(_real(vars(mesh)[name].fget))
    with replaced({key: value for key, value in values.items() if hasattr(*key)}):
        yield


def _real(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method on tensors with contents: meshes count with them."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return method(*args, **kwargs)

    return call


def device_answers(values: Mapping[str, Any]) -> DeviceAnswers:
    """Answers of a rank's device from plain data, as one process hands it to another."""
    return DeviceAnswers(
        name=str(values["name"]),
        memory_bytes=int(values["memory_bytes"]),
        sm_count=int(values["sm_count"]),
        capability=(int(values["capability"][0]), int(values["capability"][1])),
        local_ranks=int(values["local_ranks"]),
    )
