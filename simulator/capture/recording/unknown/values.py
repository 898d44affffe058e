"""What happens where the code asks a tensor for a number?

Tensors have no contents, but for small ones on the host that code makes of what it states itself:
how much of a path each layer drops (``torch.linspace(0, rate, depth)``), positions, sizes, places
in the data that it draws. Their numbers are computed, and those of what is made of them alone. Of
all others, numbers that are only printed, logged or scaled with become "not a number"; where one
decides what runs next, nobody can say what would, and the line is named. But for checks that a
healthy run passes: numbers are taken to be finite, and what torch is told to assert to hold. And a
number is neither above, below nor equal to another, as nothing is that is not a number: a loss is
no new best one, and the line is noted. Random numbers that are drawn again until they suit are not
drawn.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from simulator.capture.recording.absent_streams import replaced
from simulator.capture.recording.unknown.library_answers import healthy_answer
from simulator.capture.stated_values import OPTION, StatedValues
from simulator.errors import InputError


class UnknownNumber(float):
    """A number that only a real run knows.

    Attributes:
        was_asked_for: Whether any tensor of this process was asked for one.
        note: Told of a comparison that is taken to be false.
        stated: What the user states.
    """

    was_asked_for: ClassVar[bool] = False
    note: ClassVar[Callable[[str], None]] = staticmethod(lambda _: None)
    stated: ClassVar[StatedValues] = StatedValues()

    def __new__(cls, *_: Any) -> UnknownNumber:
        """Not a number, whatever it is called with."""
        return super().__new__(cls, math.nan)

    def _same(self, *_: Any) -> Any:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _same
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __neg__ = __abs__ = _same
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __round__ = _same

    def _compared(self, other: Any, compare: Callable[[Any, Any], bool]) -> bool:
        stated = stated_number()
        if stated is not None:
            return compare(stated, other)
        UnknownNumber.note(f"{user_line()}: taken to be false, since only a run knows the number")
        return False

    def __lt__(self, other: Any) -> bool:
        """What is stated, or false."""
        return self._compared(other, operator.lt)

    def __le__(self, other: Any) -> bool:
        """What is stated, or false."""
        return self._compared(other, operator.le)

    def __gt__(self, other: Any) -> bool:
        """What is stated, or false."""
        return self._compared(other, operator.gt)

    def __ge__(self, other: Any) -> bool:
        """What is stated, or false."""
        return self._compared(other, operator.ge)

    def __eq__(self, other: object) -> bool:
        """What is stated, or false."""
        return self._compared(other, operator.eq)

    def __ne__(self, other: object) -> bool:
        """Of itself, a number that is one is not different."""
        return other is not self and needed_number() != other

    def __bool__(self) -> bool:
        """What is stated."""
        return bool(needed_number())

    def __int__(self) -> int:
        """What is stated."""
        return int(needed_number())

    __index__ = __int__

    def __format__(self, how: str) -> str:
        """Not a number; such a one is written like a float where a whole one is asked for."""
        return format(math.nan, how.replace("d", "g") if how.endswith("d") else how)

    __hash__ = float.__hash__


def stated_number() -> float | None:
    """What the user states of the line at work."""
    return UnknownNumber.stated.number(*user_place()[:2])


def needed_number() -> float:
    """What the user states of the line at work, or what a library always hears there.

    Raises:
        InputError: Nobody knows.
    """
    stated = stated_number()
    if stated is None:
        frame = _user_frame()
        stated = None if frame is None else healthy_answer(frame.filename, frame.name)
    if stated is None:
        raise unknown_value()
    return stated


def unknown_value(error: BaseException | None = None) -> InputError:
    """The error for a decision that needs contents, at the user's line.

    Args:
        error: What torch raised for a shape that depends on data; None where a number is asked for.
    """
    file, line, _ = user_place(error)
    parts = Path(file).parts
    # In libraries many files have the same name.
    name = os.path.join(*parts[-2:]) if "site-packages" in parts else parts[-1]
    place = f"{OPTION} {name}:{line}"
    if error is None:
        rule, stated = "needs the value of a tensor", f"state it with {place}=NUMBER"
    else:
        rule = "needs the value of a tensor for a shape"
        stated = (
            f"state how many elements are selected, with {place}=NUMBER or, of all, {place}=25%; "
            f"{OPTION} {name}=25% states it of each such line of the file"
        )
    return InputError.single(
        user_line(error),
        f"{rule}, but captured tensors have no values",
        hint=f"{stated}; or decide it before the step, or use shapes that do not depend on data",
    )


_OURS = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))


def user_place(error: BaseException | None = None) -> tuple[str, int, str]:
    """File, line and text of the user's code that is at work, or where an error left it."""
    frame = _user_frame(error)
    if frame is None:
        return sys.argv[0], 0, ""
    return frame.filename, frame.lineno or 0, frame.line or ""


def _user_frame(error: BaseException | None = None) -> traceback.FrameSummary | None:
    frames: list[traceback.FrameSummary] = [*traceback.extract_stack()]
    if error is not None:
        frames += traceback.extract_tb(error.__traceback__)
    library = str(Path(traceback.__file__).parent)
    for frame in reversed(frames):
        inside = frame.filename.startswith((*_OURS, "<"))
        if not inside and not frame.filename.startswith(library):
            return frame
    return None


def user_line(error: BaseException | None = None) -> str:
    """The same as one text."""
    file, line, text = user_place(error)
    return f"{file}:{line}: {text}" if line else file


def _known(tensor: Tensor) -> bool:
    """Whether its numbers are there; an unknown number that was put among them is not."""
    if tensor.device.type != "cpu" or _is_real(tensor):
        return tensor.device.type == "cpu"
    constant: Tensor | None = getattr(tensor, "constant", None)
    if constant is None or not constant.is_floating_point():
        return constant is not None
    with unset_fake_temporarily(), torch._C._DisableTorchDispatch():
        return not bool(torch.isnan(constant).any())


def _is_real(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter)


_VERDICT = "_clustersim_verdict"
"""Attribute of a tensor that says whether numbers are finite, or are not; of one that says whether
they are above or below others, an unknown number."""


def _finite_numbers() -> dict[tuple[Any, str], Any]:
    """Questions after finite numbers, which are answered as in a healthy run."""

    def judged(method: Callable[..., Any], verdict: bool) -> Callable[..., Any]:
        def judge(value: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(value, UnknownNumber):
                return verdict
            found = method(value, *args, **kwargs)
            if isinstance(found, Tensor) and not _known(found):
                setattr(found, _VERDICT, verdict)
            return found

        return judge

    def kept(method: Callable[..., Any]) -> Callable[..., Any]:
        def keep(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            found = method(self, *args, **kwargs)
            if hasattr(self, _VERDICT):
                setattr(found, _VERDICT, getattr(self, _VERDICT))
            return found

        return keep

    def compared(method: Callable[..., Any]) -> Callable[..., Any]:
        def compare(self: Tensor, other: Any) -> Any:
            found = method(self, other)
            is_one = isinstance(found, Tensor) and found.numel() == 1
            if is_one and not all(map(_known, (self, found))):
                setattr(found, _VERDICT, UnknownNumber())
            return found

        return compare

    verdicts = {"isnan": False, "isinf": False, "isfinite": True}
    asked = {
        (place, name): judged(getattr(place, name), verdict)
        for name, verdict in verdicts.items()
        for place in (torch, Tensor, math)
    }
    asked |= {
        (Tensor, f"__{name}__"): compared(getattr(Tensor, f"__{name}__"))
        for name in ("lt", "le", "gt", "ge", "eq")
    }
    return asked | {(Tensor, name): kept(getattr(Tensor, name)) for name in ("any", "all")}


def _typed(number: float, tensor: Tensor) -> Any:
    """A number as a tensor of this type would give it."""
    if tensor.dtype is torch.bool:
        return bool(number)
    return number if tensor.is_floating_point() else int(number)


MOST_NUMBERS = 1 << 20
"""Elements of a tensor that still has numbers: as many as tables of relative positions have."""

_UNSTATED = ("empty", "empty_strided", "empty_permuted", "empty_like", "new_empty")
"""They make space for numbers."""
_FILLS = ("fill_", "zero_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_")
"""They fill space with numbers, whatever is in it."""
_MOST_FILLED = 1 << 12
"""Elements of a tensor that is filled with numbers; larger ones are weights."""


def with_its_numbers(func: Any, args: Any, kwargs: Any, made: Any) -> Any:
    """What an operator made, with its numbers where the operator was given nothing but numbers.

    Args:
        func: The operator.
        args: What it was given.
        kwargs: What it was given by name.
        made: The tensor without numbers.
    """
    if not (isinstance(made, FakeTensor) and made.constant is None):
        return made
    if func.overloadpacket.__name__ in _FILLS:
        _fill(func, args, kwargs, made)
        return made
    is_small = made.device.type == "cpu" and made.numel() <= MOST_NUMBERS
    if not is_small or func.namespace != "aten" or func.overloadpacket.__name__ in _UNSTATED:
        return made
    if any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs))):
        return made
    mode: Any = made.fake_mode
    with unset_fake_temporarily(), torch._C._DisableTorchDispatch():
        numbers = func(*args, **kwargs)
    convert: Callable[..., Any] = mode.fake_tensor_converter.from_real_tensor
    return convert(mode, numbers, make_constant=True)


def _fill(func: Any, args: Any, kwargs: Any, filled: FakeTensor) -> None:
    """Give a whole tensor on the host the numbers that it is filled with."""
    is_small = filled.device.type == "cpu" and filled.numel() <= _MOST_FILLED
    is_whole = filled.untyped_storage().nbytes() == filled.numel() * filled.element_size()
    others = any(isinstance(leaf, Tensor) for leaf in tree_leaves((args[1:], kwargs)))
    if not (is_small and is_whole) or filled._is_view() or others:
        return
    mode: Any = filled.fake_mode
    with unset_fake_temporarily(), torch._C._DisableTorchDispatch():
        filled.constant = func(torch.empty(filled.shape, dtype=filled.dtype), *args[1:], **kwargs)
    mode.fake_tensor_converter.add_constant_storage_mapping(filled)


@contextlib.contextmanager
def unknown_values(note: Callable[[str], None], stated: StatedValues) -> Iterator[None]:
    """Inside, numbers of tensors are unknown numbers.

    Args:
        note: Told of decisions by them that are taken to be false.
        stated: What the user states of them.
    """

    def asked(method: Callable[..., Any], answer: Callable[..., Any]) -> Callable[..., Any]:
        def ask(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            verdict = getattr(self, _VERDICT, None)
            if verdict is not None:
                return verdict < 0 if isinstance(verdict, UnknownNumber) else verdict
            if _known(self):
                return method(self, *args, **kwargs)
            UnknownNumber.was_asked_for = True
            return answer(self)

        return ask

    def item(tensor: Tensor) -> Any:
        number = stated_number()
        return UnknownNumber() if number is None else _typed(number, tensor)

    def array(tensor: Tensor) -> Any:
        number = math.nan if tensor.is_floating_point() else needed_number()
        return np.full(tensor.shape, number, str(tensor.dtype).removeprefix("torch."))

    def numbers(tensor: Tensor) -> Any:
        whole: Any = _typed(needed_number(), tensor)
        for size in reversed(tensor.shape):
            whole = [whole] * size
        return whole

    answers: dict[str, Callable[[Tensor], Any]] = {
        "item": item, "__float__": lambda _: math.nan, "tolist": numbers, "numpy": array,
        "__bool__": lambda _: bool(needed_number()), "__int__": lambda _: int(needed_number()),
        "__index__": lambda _: int(needed_number()),
    }  # fmt: skip
    values: dict[tuple[Any, str], Any] = {
        (fake_tensor, "CONSTANT_NUMEL_LIMIT"): MOST_NUMBERS,  # torch computes with these
        (UnknownNumber, "note"): staticmethod(note),
        (UnknownNumber, "stated"): stated,
    }
    values |= {
        (Tensor, name): asked(getattr(Tensor, name), answer) for name, answer in answers.items()
    }
    values |= _finite_numbers()
    all_true: Callable[[Tensor], Tensor] = torch._is_all_true
    # Distributions ask it whether their parameters are sound.
    values[torch, "_is_all_true"] = lambda tensor: not _known(tensor) or bool(all_true(tensor))
    formatted: Callable[..., str] = Tensor.__format__

    def written(self: Tensor, how: str) -> str:
        """One number as torch writes it, which does so for no class of tensors but its own."""
        return format(self.item(), how) if self.numel() == 1 else formatted(self, how)

    values[Tensor, "__format__"] = written
    check: Callable[..., None] = torch._check_tensor_all_with

    def passed(error_type: Any, condition: Any, message: Any = None) -> None:
        if not isinstance(condition, Tensor) or _known(condition):
            check(error_type, condition, message)

    values[torch, "_check_tensor_all_with"] = passed
    values[torch.nn.init, "_no_grad_trunc_normal_"] = lambda tensor, *_, **__: tensor

    def step_always(_: Any, optimizer: Any, __: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    values[torch.amp.GradScaler, "_maybe_opt_step"] = step_always
    with replaced(values):
        yield
