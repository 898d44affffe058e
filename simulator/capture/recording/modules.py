"""Which module does an operator belong to, and is it forward, backward or the update?

Forward is followed by hooks on all modules. Operators of backward belong to the module whose
forward made their node of the graph: nodes are numbered as they are made. Code that runs forward
inside backward is recomputation.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.utils.checkpoint as checkpointing
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
)

from simulator.capture.recording.absent_streams import replaced
from simulator.capture.table import Phase


class _Part(NamedTuple):
    """A module or function at work.

    Attributes:
        path: From the root.
        is_compiled: Whether it is compiled, or in compiled code.
        is_again: Whether it is, and a checkpoint around that runs it again.
    """

    path: str
    is_compiled: bool
    is_again: bool = False


_NO_PART = _Part("", is_compiled=False)


class Modules:
    """Follows the code through its modules.

    Attributes:
        has_updated: Whether an optimizer stepped since the last forward.
        last_update: How far the record was when one last did.
        updated_by: Those that stepped since the last forward, by number.

    Args:
        on_step: Called when the forward of another step begins.
        on_root: Called with a module that no other contains, before its forward.
        now: Says how far the record is.
        on_compiled: Called with what forward of compiled code returns to code that is not.
    """

    def __init__(
        self,
        on_step: Callable[[], None],
        on_root: Callable[[nn.Module], None],
        now: Callable[[], tuple[int, int]],
        on_compiled: Callable[[object], None],
    ) -> None:
        self._on_step, self._on_root, self._on_compiled = on_step, on_root, on_compiled
        self._names: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._stack: list[_Part] = []
        self._depth_in_backward = 0
        self._after_backward = False
        self._compiled: WeakSet[nn.Module] = WeakSet()
        self._functions = 0
        self._recomputed: list[Any] = []
        self._nodes: list[int] = [-1]
        self._owners: list[_Part] = [_NO_PART]
        self._now = now
        self.has_updated, self.last_update = True, (0, 0)
        self.updated_by: set[int] = set()

    def phase(self) -> Phase:
        """What goes on now, which an optimizer may run itself (``step(closure)``)."""
        if in_backward():
            self._after_backward = True
            is_again = torch.is_grad_enabled() or self._depth_in_backward > 0
            return Phase.RECOMPUTE if is_again else Phase.BACKWARD
        # Between backward, which operators were seen in, and the update, gradients are added up,
        # scaled or clipped.
        is_between = not self._stack and (self._after_backward or not torch.is_grad_enabled())
        return Phase.OPTIMIZER if is_between else Phase.FORWARD

    def path(self) -> str:
        """Path of the module that is at work, from the root."""
        return self._at_work().path

    @property
    def is_compiled(self) -> bool:
        """Whether the code at work is compiled; what backward does for such code is, too."""
        return self._at_work().is_compiled

    @property
    def is_again(self) -> bool:
        """Whether the code at work is compiled, and run again by a checkpoint around that."""
        return self._at_work().is_again

    def _at_work(self) -> _Part:
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node() if in_backward() else None
        if node is None:
            return _NO_PART
        return self._owners[bisect_right(self._nodes, node._sequence_nr()) - 1]

    def compiled(self, code: Any) -> Any:
        """A module or function as ``torch.compile`` would return it: it is run as it is, and noted.

        Everything that it calls is compiled with it.
        """
        if isinstance(code, nn.Module):
            self._compiled.add(code)
            return code

        @wraps(code)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._functions += 1
            self._push(self._compiled_part(self._path_of(code)))
            result = None
            try:
                result = code(*args, **kwargs)
            finally:
                self._functions -= 1
                self._leave_top(result)
            return result

        return run

    def _path_of(self, code: Any) -> str:
        """Path of a function: a method of a module is the module, whoever calls it."""
        module = getattr(code, "__self__", None)
        if isinstance(module, nn.Module):
            if module not in self._names:
                self._name_all(module)
            return self._names[module]
        name = getattr(code, "__name__", type(code).__name__)
        return ".".join(part for part in (self.path(), name) if part)

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Inside, modules and optimizers are followed."""
        handles = [
            nn.modules.module.register_module_forward_pre_hook(self._enter),
            nn.modules.module.register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_post_hook(self._end_update),
        ]
        try:
            with replaced({(checkpointing, "_recomputation_hook"): self._recomputation()}):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _recomputation(self) -> type:
        """The context in which torch runs a checkpoint again, which says which one it is."""
        recomputed = self._recomputed

        class Recomputation(checkpointing._recomputation_hook):
            def __init__(self, frame: Any, group: Any) -> None:
                super().__init__(frame, group)
                self._frame = frame()

            def __enter__(self) -> Any:
                recomputed.append(self._frame)
                return super().__enter__()

            def __exit__(self, *error: Any) -> None:
                recomputed.pop()
                super().__exit__(*error)

        return Recomputation

    def _enter(self, module: nn.Module, _: object) -> None:
        if in_backward():
            self._depth_in_backward += 1
        else:
            self._depth_in_backward, self._after_backward = 0, False
            is_outermost = len(self._stack) == self._functions
            if self.has_updated and is_outermost:
                self.has_updated = False
                self._on_step()
                self.updated_by = set()
            if is_outermost:
                self._on_root(module)
        if module not in self._names:
            self._name_all(module)
        path = self._names[module]
        if module in self._compiled:
            self._push(self._compiled_part(path))
        else:
            self._push(self._at_work()._replace(path=path))

    def _compiled_part(self, path: str) -> _Part:
        """Compiled code that begins; a checkpoint around it cannot stop it before its end."""
        is_outermost = not (self._stack and self._stack[-1].is_compiled)
        if in_backward() and is_outermost and self._recomputed:
            self._recomputed[-1].early_stop = False
        is_again = in_backward() if is_outermost else self.is_again
        return _Part(path, is_compiled=True, is_again=is_again)

    def _push(self, part: _Part) -> None:
        self._stack.append(part)
        self._mark(part)

    def _leave(self, module: nn.Module, _: object, result: object) -> None:
        self._depth_in_backward = max(0, self._depth_in_backward - 1)
        self._leave_top(result)

    def _leave_top(self, result: object) -> None:
        if self._stack:
            part = self._stack.pop()
            is_outermost = not (self._stack and self._stack[-1].is_compiled)
            if part.is_compiled and is_outermost and (part.is_again or not in_backward()):
                self._on_compiled(result)
            self._mark(self._stack[-1] if self._stack else _NO_PART)

    def _mark(self, part: _Part) -> None:
        """Nodes from here on belong to the part."""
        number = torch._C._autograd._get_sequence_nr()
        if self._nodes[-1] == number:
            self._owners[-1] = part
        else:
            self._nodes.append(number)
            self._owners.append(part)

    def _name_all(self, root: nn.Module) -> None:
        above = self._stack[-1].path if self._stack else ""
        for name, module in root.named_modules():
            path = ".".join(part for part in (above, name) if part)
            self._names.setdefault(module, path)

    def _end_update(self, optimizer: Any, *_: Any) -> None:
        self.updated_by.add(id(optimizer))
        self.has_updated, self.last_update = True, self._now()


def in_backward() -> bool:
    """Whether autograd runs a graph."""
    return bool(torch._C._current_graph_task_id() != -1)
