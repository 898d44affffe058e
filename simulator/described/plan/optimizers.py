"""Which optimizers are there: what does each keep of a parameter, read and write?

To add one, write its line here. What it keeps of rows, columns or some tensors only is said in
:mod:`simulator.program.states.optimizer_states`.

Source: LAMB, arXiv 1904.00962, algorithm 2; Lion, arXiv 2302.06675, algorithm 2; 8-bit
optimizers, arXiv 2110.02861, section 2.2, and bitsandbytes, whose blocks have 256 elements (2048
before version 0.44); Adafactor, arXiv 1804.04235, algorithms 4 and 5; Muon,
https://kellerjordan.github.io/posts/muon, and arXiv 2502.16982; GaLore, arXiv 2403.03507, algorithm
2, without what it does every few hundred steps: the decomposition of every gradient; SOAP, arXiv
2409.11321, algorithm 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.described.faults import nearest_hint

_FP32 = 4.0
_BLOCK = 256
"""Elements that share one fp32 constant in an 8-bit state."""


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """What an optimizer keeps of every parameter and how often its step passes over data.

    Attributes:
        state_bytes: Kept of every parameter, whatever tensor it belongs to [B].
        gradient_reads: Times that the gradient is read, without its norm.
        weight_reads: Times that the weight is read.
        update_bytes: Traffic of an update that is written out before it is applied [B].
        eager_passes: Reads and writes of numbers as wide as weights by a kernel for each operator,
            beyond those of one kernel for all.
        eager_kernels: How many such operators there are.
        has_fixed_format: Whether states keep their format where all else is 16-bit.
        is_paged: Whether states are in memory that host and GPU share, whose pages the driver
            moves, and not in that of PyTorch's allocator (bitsandbytes' paged optimizers).
    """

    state_bytes: float
    gradient_reads: int = 1
    weight_reads: int = 1
    update_bytes: float = 0.0
    eager_passes: int = 0
    eager_kernels: int = 0
    has_fixed_format: bool = False
    is_paged: bool = False


_EIGHT_BIT_BYTES = 1 + _FP32 / _BLOCK

UPDATE_RULES: Mapping[str, UpdateRule] = {
    # Decay (2), first moments (3), second ones (2 and 3), their root (2), its correction (2), a
    # constant (2), and the weights (4): ``_multi_tensor_adam`` of PyTorch, and so its
    # ``_single_tensor_adam``. One kernel has 7.
    "adam": UpdateRule(8.0, eager_passes=20 - 7, eager_kernels=8),
    "sgd": UpdateRule(0.0),
    "sgd-momentum": UpdateRule(4.0),
    # The update is written, and read for its norm and again to be applied (apex's two
    # stages); so is the weight.
    "lamb": UpdateRule(8.0, weight_reads=3, update_bytes=3 * _FP32),
    "adam-8bit": UpdateRule(2 * _EIGHT_BIT_BYTES, has_fixed_format=True),
    "adam-paged": UpdateRule(8.0, has_fixed_format=True, is_paged=True),
    "adam-8bit-paged": UpdateRule(2 * _EIGHT_BIT_BYTES, has_fixed_format=True, is_paged=True),
    "lion": UpdateRule(4.0),
    "lion-8bit": UpdateRule(_EIGHT_BIT_BYTES, has_fixed_format=True),
    # Sums of squares, the size of the update, the update; the size of the weight.
    "adafactor": UpdateRule(0.0, gradient_reads=3, weight_reads=2),
    "muon": UpdateRule(4.0),
    # The update is written as large as the weight, and read to be applied.
    "galore": UpdateRule(0.0, update_bytes=2 * _FP32),
    # So is SOAP's; gradient and momentum are rotated, and the update is rotated back.
    "soap": UpdateRule(8.0, gradient_reads=3, update_bytes=6 * _FP32),
}
"""Every optimizer by the name that a plan uses."""


def known_optimizer(name: str) -> str:
    """The name as given, if it is one.

    Raises:
        ValueError: No optimizer has the name.
    """
    if name not in UPDATE_RULES:
        raise ValueError(f"no such optimizer; {nearest_hint(name, UPDATE_RULES)}")
    return name
