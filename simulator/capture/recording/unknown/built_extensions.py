"""What of a kernel that code builds with CUDA's compiler, which is not there?

An optimizer of DeepSpeed updates all tensors of a type in one kernel, which moves the same bytes as
torch's own, so that one stands for it. Of other kernels nobody knows what they compute: the line
that builds one is refused.

Source: ``csrc/adam/multi_tensor_adam.cu`` of DeepSpeed 0.19: it reads gradients, weights and both
moments, and writes all but the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils import cpp_extension

from simulator.capture.recording.unknown.values import user_line
from simulator.errors import InputError


def _multi_tensor_adam(  # noqa: PLR0917 - the signature is DeepSpeed's
    _: int,
    __: Tensor,
    lists: Sequence[list[Tensor]],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: Any,
    mode: int,
    ___: Any,
    weight_decay: float,
) -> None:
    del step, mode
    gradients, weights, first, second = lists
    steps = [torch.zeros((), device=weight.device) for weight in weights]
    torch._fused_adamw_(
        weights, gradients, first, second, [], steps, lr=lr, beta1=beta1, beta2=beta2,
        weight_decay=weight_decay, eps=eps, amsgrad=False, maximize=False,
    )  # fmt: skip


_STAND_INS: Mapping[str, Any] = {
    "fused_adam": SimpleNamespace(multi_tensor_adam=_multi_tensor_adam),
}
"""What is loaded, by the name under which it is built."""


def built_extensions(note: Callable[[str], None]) -> dict[tuple[Any, str], Any]:
    """Attributes of torch that load kernels, with those that stand for them.

    Args:
        note: Told what stands in.
    """

    def load(name: str, *_: Any, **__: Any) -> Any:
        if name not in _STAND_INS:
            rule = f"builds {name} with CUDA's compiler: what it computes is not known"
            hint = "use what torch has instead, such as torch.optim.AdamW(fused=True)"
            raise InputError.single(user_line(), rule, hint=hint)
        note(f"{name} was not built: torch's own kernel stands for it")
        return _STAND_INS[name]

    return {(cpp_extension, "load"): load, (cpp_extension, "load_inline"): load}
