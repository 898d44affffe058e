"""How does torch come to take a CUDA device for present where there is none?

Fake tensors on ``cuda`` run forward with any build of torch. Autograd also asks which
accelerator the build has and for a guard of the device, and builds without a GPU answer with
an error. For the time of a capture both are answered: the device guard that torch offers to
backends written in Python is entered in the registry of guards, and three questions of torch's
accelerator interface (is it built in, is it available, has it a context) get their answers
here. Nothing is compiled, nothing on disk changes, and all is undone at the end.

Source: ``c10/core/impl/DeviceGuardImplInterface.h`` and the first three functions of
``ATen/detail/AcceleratorHooksInterface.h``, headers that torch installs.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from simulator.errors import UnsupportedError

_CUDA, _PRIVATE_USE = 1, 20
"""Numbers of device types, ``c10/core/DeviceType.h``."""
_DESTRUCTORS = 2
_SLOTS = 128
"""Functions of the interface to carry over: more than any release has."""
_IS_BUILT, _IS_AVAILABLE, _HAS_CONTEXT = 2, 3, 4
"""Places in the table of functions, after the destructors."""


def is_needed() -> bool:
    """Whether this machine has no CUDA device of its own."""
    return torch._C._get_accelerator().type != "cuda"


@contextlib.contextmanager
def pretended_gpu() -> Iterator[None]:
    """Inside, autograd runs on fake ``cuda`` tensors; nothing where a GPU is present.

    Raises:
        UnsupportedError: This build of torch is laid out otherwise.
    """
    if not is_needed():
        yield
        return
    with _guard(), _answers():
        if torch._C._get_accelerator().type != "cuda":
            rule = f"{torch.__version__} cannot simulate a GPU"
            raise UnsupportedError.single("torch", rule, hint="captures are made with 2.13")
        yield


def _guard_of_cuda() -> Any:
    """A device guard that names CUDA and guards nothing."""

    class Guard(torch._C._acc.DeviceGuard):
        def type_(self) -> Any:
            return torch._C._autograd.DeviceType.CUDA

    return Guard()


_GUARDS: list[Any] = []
"""Guards live as long as the process, as torch asks."""


@contextlib.contextmanager
def _guard() -> Iterator[None]:
    registry = (ctypes.c_void_p * (_PRIVATE_USE + 1)).in_dll(
        _library("c10"), "_ZN3c104impl26device_guard_impl_registryE"
    )
    before = registry[_CUDA]
    if not _GUARDS:
        _GUARDS.append(_guard_of_cuda())
        torch._C._acc.register_python_privateuseone_device_guard(_GUARDS[0])
        _GUARDS.append(registry[_PRIVATE_USE])
        registry[_PRIVATE_USE] = None
    registry[_CUDA] = _GUARDS[1]
    try:
        yield
    finally:
        registry[_CUDA] = before


@contextlib.contextmanager
def _answers() -> Iterator[None]:
    find = _library("torch_cpu")._ZN2at6detail12getCUDAHooksEv
    find.restype = ctypes.c_void_p
    pointers = ctypes.POINTER(ctypes.c_void_p)
    instance = ctypes.cast(find(), pointers)
    functions = instance[0]
    assert functions is not None
    size = ctypes.sizeof(ctypes.c_void_p)
    start = functions - _DESTRUCTORS * size
    known = ctypes.cast(start, pointers)
    table = (ctypes.c_void_p * _SLOTS)(*(known[i] for i in range(_SLOTS)))
    yes = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(lambda _: True)
    no = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int8)(lambda _, __: False)
    for place, answer in ((_IS_BUILT, yes), (_IS_AVAILABLE, yes), (_HAS_CONTEXT, no)):
        table[_DESTRUCTORS + place] = ctypes.cast(answer, ctypes.c_void_p).value
    instance[0] = ctypes.addressof(table) + _DESTRUCTORS * size
    try:
        yield
    finally:
        instance[0] = functions


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"lib{name}.so"))
