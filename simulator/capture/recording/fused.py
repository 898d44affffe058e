"""Which operators of compiled code are one kernel?

``torch.compile`` makes kernels for a device that is there, so that none can be asked for here. The
rule in its place: operators that Inductor writes kernels for itself (pointwise ones, casts, joins,
sums, norms, softmax, the loss) are one kernel in a layer and phase, unless one needs by way of
other operators what another makes. It reads what comes from outside once, and writes what others
read and what is still held when it ends.

Ignores: what Inductor's partitioner computes again in backward to keep less, kernels that it cuts
because they grow too large, and what it puts around its own products. Memory is that of eager code.
In a layer of Llama the kernels are those of Inductor's scheduler, with 7 % more bytes, for the
first of these reasons (``tests/capture/test_compiled.py``).

Source: ``torch._inductor``: ``scheduler.py`` (vertical and horizontal fusion) and the tag
``pointwise`` of torch's operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from simulator.capture.recording.record import Record
from simulator.capture.table import Call

_ALSO = {
    "_to_copy", "clone", "copy_", "cat", "sum", "mean", "amax", "amin", "var", "_fused_rms_norm",
    "_fused_rms_norm_backward", "native_layer_norm", "native_layer_norm_backward", "_softmax",
    "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data", "nll_loss_forward",
    "nll_loss_backward", "zeros_like", "ones_like", "full_like", "arange", "new_zeros",
}  # fmt: skip
_NAME = "inductor.fused"


@dataclass(slots=True)
class _Kernel:
    """A kernel that may still grow; memory by number of its block.

    Attributes:
        number: Of its operation.
        place: Stream, phase and module that it is of.
        read_bytes: Read from outside [B].
        made_bytes: What it made [B].
        changed_bytes: Written of what lies outside [B].
        needed: What of that it made others read.
        behind: What others made of these.
    """

    number: int
    place: object
    read_bytes: dict[int, int] = field(default_factory=dict)
    made_bytes: dict[int, int] = field(default_factory=dict)
    changed_bytes: dict[int, int] = field(default_factory=dict)
    needed: set[int] = field(default_factory=set)
    behind: set[int] = field(default_factory=set)


class FusedKernels:
    """Kernels of compiled code, written down when they end.

    Args:
        record: Where their operations and blocks of memory are.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._open: _Kernel | None = None

    @property
    def is_open(self) -> bool:
        """Whether a kernel may still grow."""
        return self._open is not None

    def can_grow(self, place: object, reads: Iterable[int]) -> bool:
        """Whether a kernel at that place can do what an operator does that reads these blocks."""
        kernel = self._open
        return kernel is not None and kernel.place == place and kernel.behind.isdisjoint(reads)

    def begin(self, number: int, place: object) -> None:
        """An operation stands for a kernel from here on."""
        self._open = _Kernel(number, place)

    def pass_by(self, reads: Iterable[int], makes: Iterable[int]) -> None:
        """Take note of an operator that is a kernel of its own."""
        kernel = self._open
        assert kernel is not None
        needed = kernel.made_bytes.keys() & reads
        kernel.needed |= needed
        if needed or not kernel.behind.isdisjoint(reads):
            kernel.behind.update(makes)

    def add(
        self, reads: Mapping[int, int], makes: Mapping[int, int], changes: Mapping[int, int]
    ) -> None:
        """Let the open kernel do what one more operator does; blocks with bytes of them [B]."""
        kernel = self._open
        assert kernel is not None
        for blocks, known in ((reads, kernel.read_bytes), (changes, kernel.changed_bytes)):
            for block, num_bytes in blocks.items():
                if block not in kernel.made_bytes:
                    known[block] = max(known.get(block, 0), num_bytes)
        kernel.made_bytes |= makes

    def end(self) -> None:
        """Write down what the open kernel moves, if there is one."""
        kernel, self._open = self._open, None
        if kernel is None:
            return
        blocks = self._record.blocks
        written_bytes = sum(kernel.changed_bytes.values()) + sum(
            num_bytes
            for block, num_bytes in kernel.made_bytes.items()
            if block in kernel.needed or blocks[block].given < 0
        )
        call = Call(_NAME, (), (), (), sum(kernel.read_bytes.values()), written_bytes, 0)
        operation = self._record.operations[kernel.number]
        operation.call = self._record.calls.setdefault(call, len(self._record.calls))


def is_fusible(func: Any) -> bool:
    """Whether Inductor writes the kernel of an operator itself."""
    name = func._schema.name.split("::")[1]
    return func.namespace == "aten" and (torch.Tag.pointwise in func.tags or name in _ALSO)
