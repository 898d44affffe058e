"""What may the code not do while it is captured?

Checkpoints and folders are skipped, and what is written to files goes nowhere, which changes
nothing about a step; compiled code runs as it is, and what would be fused is noted
(:mod:`.fused`). Connecting to a network is refused, with the line that does so.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils.data import DataLoader

from simulator.capture.recording.absent_streams import everywhere, replaced
from simulator.capture.recording.unknown.values import user_line
from simulator.errors import InputError

_SAVED_BY = (
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained"),
    ("peft", "PeftModel", "save_pretrained"),
    ("torchvision.utils", "", "save_image"),
)
"""Modules of other libraries, and what they write weights and pictures with; they look at
contents, or where weights lie."""

_IS_SPARSE_AT: Mapping[str, int] = {"aten.embedding": 4, "aten._embedding_bag": 5}
"""Place among the arguments of whether the gradient is sparse."""


def unsaved_models(note: Callable[[str], None]) -> dict[tuple[Any, str], Any]:
    """Attributes of the imported libraries, which then save neither models nor pictures."""

    def skip(*_: Any, **__: Any) -> None:
        note("saving a model or a picture was skipped")

    values: dict[tuple[Any, str], Any] = {}
    for module, owner, name in _SAVED_BY:
        library = sys.modules.get(module)
        if library is not None and owner:
            values[getattr(library, owner), name] = skip
        elif library is not None:
            values |= everywhere(getattr(library, name), skip)
    return values


def refuse_sparse_gradients(name: str, args: Sequence[Any]) -> None:
    """Refuse a look into an embedding whose gradient is sparse: that needs contents.

    Args:
        name: The operator, as torch names it.
        args: What it is given.
    """
    place = _IS_SPARSE_AT.get(name, len(args))
    if place < len(args) and args[place]:
        rule = "asks for sparse gradients, but tensors without contents are not sparse"
        hint = "use sparse=False: gradient and update are then those of the whole table"
        raise InputError.single(user_line(), rule, hint=hint)


@contextlib.contextmanager
def nothing_leaves(note: Callable[[str], None], compiled: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, nothing is written or sent.

    Args:
        note: Told what is skipped.
        compiled: Stands in for ``torch.compile``.
    """

    def skipped(name: str) -> Callable[..., None]:
        def skip(*_: Any, **__: Any) -> None:
            note(f"{name} was skipped")

        return skip

    def made(make: Callable[..., None]) -> Callable[..., None]:
        def make_folder(path: Any, *args: Any, **kwargs: Any) -> None:
            if _may_be_written(path):
                make(path, *args, **kwargs)
            else:
                note("making a folder was skipped")

        return make_folder

    open_file = builtins.open

    def read_only(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not set(mode) & set("wax+") or _may_be_written(file):
            return open_file(file, mode, *args, **kwargs)
        note(f"what is written to {os.path.basename(file)} goes nowhere")
        return open_file(os.devnull, mode.replace("x", "w"), *args, **kwargs)

    def refuse_connection(*_: Any, **__: Any) -> None:
        rule = "connects to a network, but a captured script must not"
        raise InputError.single(user_line(), rule, hint="use local data")

    iterate = DataLoader.__iter__

    def batches(loader: Any) -> Iterator[Any]:
        """The batches with contents, read in this process."""
        # Past the loader's own refusal to change once it is made.
        vars(loader).update(
            num_workers=0, prefetch_factor=None, persistent_workers=False, pin_memory=False
        )
        with unset_fake_temporarily():
            inner = iterate(loader)
        while True:
            with unset_fake_temporarily():
                try:
                    batch = next(inner)
                except StopIteration:
                    return
            yield batch

    make_tensor = torch.tensor

    def tensor(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return make_tensor(*args, **kwargs)

    def as_compiled(model: Any = None, *_: Any, **__: Any) -> Any:
        note("torch.compile was not run: what is one kernel, and what is kept, follows from a rule")
        return compiled if model is None else compiled(model)

    checkpoint = torch.distributed.checkpoint
    scripted = torch.jit._builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    scripted[id(tensor)] = "aten::tensor"  # what it is in code that TorchScript compiles
    try:
        with replaced(
            {
                (builtins, "open"): read_only,
                (socket.socket, "connect"): refuse_connection,
                (torch, "compile"): as_compiled,
                (torch.nn.Module, "compile"): lambda module, *_, **__: as_compiled(module),
                (torch, "save"): skipped("torch.save"),
                (checkpoint, "save"): skipped("a distributed checkpoint"),
                (checkpoint, "async_save"): skipped("a distributed checkpoint"),
                (os, "makedirs"): made(os.makedirs),
                (os, "mkdir"): made(os.mkdir),
                (DataLoader, "__iter__"): batches,
                (torch, "tensor"): tensor,
                (torch.Tensor, "pin_memory"): lambda tensor, *_: tensor,
                (torch.Tensor, "record_stream"): lambda *_: None,
            }
        ):
            yield
    finally:
        del scripted[id(tensor)]


def _may_be_written(file: Any) -> bool:
    if isinstance(file, int):
        return True
    places = (tempfile.gettempdir(), str(Path.home() / ".cache"), os.devnull)
    return "__pycache__" in str(file) or os.path.abspath(file).startswith(places)
