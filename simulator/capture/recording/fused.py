"""Which operators of compiled code are one kernel?

``torch.compile`` makes kernels for a device that is there, so that none can be asked for here. The
rule in its place, for operators that Inductor writes kernels for itself (pointwise ones, casts,
joins, sums, norms, softmax, the loss), in a layer's forward, and in its backward with what a
checkpoint inside it computes again:

- What was done on the same values before is not done again.
- A result of few inputs that is as large as they are is made wherever it is read; it is written
  when another operator reads it, or it is still held when the layer ends.
- A sum, such as the largest value of a tensor, belongs to the kernel that shares most bytes with
  it, unless that needs by way of others what the kernel makes; so does what is written. A number
  that is made of a whole tensor is known when its kernel has run.

- A sum over a whole tensor and sums of its rows are not one kernel.

A kernel reads what comes from outside once, and writes what others read and what is still held.
What kernels of this kind alone read of forward, backward makes again of what is kept; in its place
stays what it is made of, where that is smaller.

Ignores: what else Inductor's partitioner keeps of forward instead of making it again, kernels that
it cuts because they grow too large, and what it puts around its own products. Against Inductor, a
layer of Llama has the same kernels, which move as many bytes to 0.1 %, and keeps the same for
backward; casts to fp8 with one scale for a tensor move 6 % less forward and 1 % less backward
(``tests/capture/test_compiled.py``). A Llama of 1.2B with compiled layers allocates 41.19 GiB on an
H100 where 41.21 were measured; eager, 45.19 and 45.22 (``reports/gpu/raw.jsonl.gz``).

Source: ``torch._inductor``: ``scheduler.py`` (vertical and horizontal fusion), ``ir.py``
(``StorageBox.should_realize_on_reuse``), ``torch._functorch``: ``compile_utils.fx_graph_cse`` and
``partitioners.py`` (``min_cut_rematerialization_partition``, which makes nothing again that
backward would have to write), and the tag ``pointwise`` of torch's operators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from simulator.capture.recording.record import Record
from simulator.capture.table import Call, Phase

_ALSO = {
    "_to_copy", "clone", "contiguous", "copy_", "cat", "sum", "mean", "max", "amax", "amin", "var",
    "_fused_rms_norm", "_fused_rms_norm_backward", "native_layer_norm",
    "native_layer_norm_backward", "_softmax", "_softmax_backward_data", "_log_softmax",
    "_log_softmax_backward_data", "nll_loss_forward",
    "nll_loss_backward", "zeros_like", "ones_like", "full_like", "arange", "new_zeros",
}  # fmt: skip
_NAME = "inductor.fused"
_MOST_READS = 4
"""Of what a result is made of that is made wherever it is read; one of more is written. Source:
Inductor's ``config.realize_reads_threshold``."""


class Work(NamedTuple):
    """An operator of compiled code; memory by number of its block.

    Attributes:
        at: Stream, phase and module.
        reads, makes, changes: Bytes read, made anew, and written of what was there [B].
        again: What of that it makes can be made again from what was read and the rest.
        whole: What of that it makes is there only when all of it has run.
        sums: Whether it sums rows or columns.
    """

    at: tuple[int, Phase, int]
    reads: Mapping[int, int]
    makes: Mapping[int, int]
    changes: Mapping[int, int]
    again: Collection[int]
    whole: Collection[int]
    sums: bool = False


@dataclass(slots=True, eq=False)
class _Kernel:
    """A kernel that may still grow; memory by number of its block.

    Attributes:
        number: Of its operation.
        read_bytes: Read from outside [B].
        made_bytes: What it made [B].
        changed_bytes: Written of what lies outside [B].
        needed: What of that it made others read.
        whole: What of that is there only when all of it has run.
        sums: Whether it sums rows or columns.
        after: Kernels whose results it needs, by way of others too.
    """

    number: int
    read_bytes: dict[int, int] = field(default_factory=dict)
    made_bytes: dict[int, int] = field(default_factory=dict)
    changed_bytes: dict[int, int] = field(default_factory=dict)
    needed: set[int] = field(default_factory=set)
    whole: set[int] = field(default_factory=set)
    sums: bool = False
    after: set[_Kernel] = field(default_factory=set)

    def shared_bytes(self, reads: Mapping[int, int]) -> int:
        """What it has at hand of what an operator reads [B]."""
        at_hand = self.made_bytes.keys() | self.read_bytes.keys()
        return sum(num_bytes for block, num_bytes in reads.items() if block in at_hand)


class MadeAgain:
    """What kernels of backward make again of what is kept, so that forward keeps less.

    In place of a block stays what it is made of, as far as nothing else holds that.

    Args:
        record: Where the blocks of memory are.
        resize: Gives a block another size [B].
    """

    def __init__(self, record: Record, resize: Callable[[int, int], None]) -> None:
        self._record, self._resize = record, resize
        self._sources: dict[int, Mapping[int, int]] = {}
        self._whole_bytes: dict[int, int] = {}
        self._made_of: dict[int, set[int]] = {}

    def __bool__(self) -> bool:
        """Whether there is anything of the kind."""
        return bool(self._sources)

    def __contains__(self, block: int) -> bool:
        """Whether a block is made again where it is read."""
        return block in self._sources

    def add(self, block: int, sources: Mapping[int, int]) -> None:
        """Keep what a block is made of instead of it; bytes read of each [B]."""
        self._sources[block] = sources
        self._whole_bytes[block] = self._record.blocks[block].num_bytes
        for source in sources:
            self._made_of.setdefault(source, set()).add(block)
        self._fit(block)

    def sources(self, block: int) -> Mapping[int, int]:
        """What a block is made of, and bytes that are read of each [B]."""
        return self._sources[block]

    def keep(self, block: int) -> None:
        """Something reads the block itself."""
        if block in self._sources:
            self._resize(block, self._whole_bytes[block])
            self._forget(block)

    def gone(self, block: int) -> None:
        """A block was given back."""
        if block in self._sources:
            self._forget(block)
        for made in self._made_of.pop(block, ()):
            self._fit(made)

    def _forget(self, block: int) -> None:
        del self._whole_bytes[block]
        for source in self._sources.pop(block):
            self._made_of.get(source, set()).discard(block)

    def _fit(self, block: int) -> None:
        blocks = self._record.blocks
        sources = self._sources[block].items()
        alone_bytes = sum(num_bytes for each, num_bytes in sources if blocks[each].given >= 0)
        self._resize(block, min(self._whole_bytes[block], alone_bytes))


class FusedKernels:
    """Kernels of compiled code, written down when they end.

    Args:
        record: Where their operations and blocks of memory are.
        begin: Adds an operation on a stream, in a phase and a module; returns its number.
        resize: Gives a block of memory another size [B].
    """

    def __init__(
        self,
        record: Record,
        begin: Callable[[int, Phase, int], int],
        resize: Callable[[int, int], None],
    ) -> None:
        self._record, self._begin = record, begin
        self.made_again = MadeAgain(record, resize)
        self._place: object = None
        self._is_forward = False
        self._read_here: set[int] = set()
        self._open: list[_Kernel] = []
        self._sources: dict[int, frozenset[_Kernel]] = {}
        self._unwritten: dict[int, Work] = {}
        self._made_by: dict[Hashable, tuple[int, ...]] = {}

    @property
    def is_open(self) -> bool:
        """Whether there is something that a kernel may still do."""
        return bool(self._open or self._unwritten)

    def enter(self, stream: int, side: Phase, unit: str) -> None:
        """End the kernels of another place: a stream, a side of training and a layer."""
        place = stream, side, unit
        if place != self._place:
            self.leave()
        self._place, self._is_forward = place, side is not Phase.BACKWARD

    def leave(self) -> None:
        """End the kernels of a place; what only they read of forward, backward makes again.

        What is read by a kernel of another kind, such as a product, is kept: that one, or its
        backward, needs it written.
        """
        if self._is_forward:
            blocks = self._record.blocks
            for number in self._read_here & self._unwritten.keys():
                if blocks[number].given < 0:
                    self.made_again.add(number, self._unwritten.pop(number).reads)
        self.end()

    def done_before(self, what: Hashable) -> tuple[int, ...]:
        """Blocks of the results, where the same was done at this place: Inductor does it once.

        Args:
            what: An operator with all that it is given.
        """
        return self._made_by.get(what, ())

    def note_done(self, what: Hashable, makes: Sequence[int]) -> None:
        """Take note of where the results of an operator lie."""
        self._made_by[what] = tuple(makes)

    def add(self, work: Work) -> None:
        """Let a kernel do what one more operator does, or what reads its results do it."""
        self._read_here.update(work.reads)
        reads = self._read(work.reads)
        makes = {b: n for b, n in work.makes.items() if b not in work.again}
        small = {**reads, **makes}
        if len(small) > _MOST_READS or work.changes:
            makes = dict(work.makes)
        else:
            again = {b: n for b, n in work.makes.items() if b in work.again}
            for block, num_bytes in again.items():
                self._unwritten[block] = work._replace(
                    reads=small, makes={block: num_bytes}, again=(), sums=False
                )
        if makes or work.changes:
            self._write(work._replace(reads=reads, makes=makes))

    def _read(self, blocks: Mapping[int, int]) -> dict[int, int]:
        """What is read where some blocks are: of what was not written what it is made of [B]."""
        reads: dict[int, int] = {}
        for block, num_bytes in blocks.items():
            for each, size in self._made_of(block, num_bytes):
                reads[each] = max(reads.get(each, 0), size)
        return reads

    def _made_of(self, block: int, num_bytes: int) -> Iterable[tuple[int, int]]:
        unwritten = self._unwritten.get(block)
        if unwritten is not None:
            return unwritten.reads.items()
        if block in self.made_again and not self._is_forward:
            return self.made_again.sources(block).items()
        self.made_again.keep(block)
        return ((block, num_bytes),)

    def _write(self, work: Work) -> None:
        """Let the kernel that shares most with an operator do it, or a new one."""
        found = [
            kernel
            for kernel in self._open
            if kernel not in self._before(kernel, work.reads)
            and not (work.whole and kernel.sums)
            and not (work.sums and kernel.whole)
        ]
        shared = [(kernel.shared_bytes(work.reads), place) for place, kernel in enumerate(found)]
        most_bytes, place = max(shared, default=(0, 0))
        if most_bytes:
            kernel = found[place]
        else:
            kernel = _Kernel(self._begin(*work.at))
            self._open.append(kernel)
        before = self._before(kernel, work.reads)
        for later in self._open:
            if later is kernel or kernel in later.after:
                later.after |= before
        self._need(work.reads, kernel)
        for blocks, known in (
            (work.reads, kernel.read_bytes),
            (work.changes, kernel.changed_bytes),
        ):
            for block, num_bytes in blocks.items():
                if block not in kernel.made_bytes:
                    known[block] = max(known.get(block, 0), num_bytes)
        kernel.made_bytes |= work.makes
        kernel.sums |= work.sums
        kernel.whole.update(work.whole)
        kernel.needed.update(work.whole)
        for block in (*work.makes, *work.changes):
            self._sources[block] = self._sources.get(block, frozenset()) | {kernel}

    def _before(self, kernel: _Kernel, reads: Iterable[int]) -> set[_Kernel]:
        """Kernels that have run when a kernel reads these blocks, but for what it makes itself."""
        before: set[_Kernel] = set()
        for block in reads:
            for source in self._sources.get(block, ()):
                if source is not kernel or block in kernel.whole or block not in kernel.made_bytes:
                    before |= {source} | source.after
        return before

    def _need(self, reads: Iterable[int], kernel: _Kernel | None = None) -> None:
        for block in reads:
            for source in self._sources.get(block, ()):
                if source is not kernel and block in source.made_bytes:
                    source.needed.add(block)

    def give(self, blocks: Iterable[int]) -> None:
        """Write what an operator that is a kernel of its own reads."""
        for block in set(blocks):
            self.made_again.keep(block)
            work = self._unwritten.pop(block, None)
            if work is not None:
                self._write(work)

    def pass_by(self, reads: Iterable[int], makes: Iterable[int]) -> None:
        """Take note of an operator that is a kernel of its own."""
        reads = set(reads)
        self._need(reads)
        sources = frozenset[_Kernel]().union(
            *(self._sources.get(block, frozenset()) for block in reads)
        )
        self._sources |= dict.fromkeys(makes, sources)

    def end(self) -> None:
        """Write down what the open kernels move."""
        blocks = self._record.blocks
        self.give([block for block in self._unwritten if blocks[block].given < 0])
        for kernel in self._open:
            written_bytes = sum(kernel.changed_bytes.values()) + sum(
                num_bytes
                for block, num_bytes in kernel.made_bytes.items()
                if block in kernel.needed or blocks[block].given < 0
            )
            call = Call(_NAME, (), (), (), sum(kernel.read_bytes.values()), written_bytes, 0)
            operation = self._record.operations[kernel.number]
            operation.call = self._record.calls.setdefault(call, len(self._record.calls))
        self._place = None
        self._open.clear()
        self._read_here.clear()
        for known in (self._sources, self._unwritten, self._made_by):
            known.clear()


def is_fusible(func: Any) -> bool:
    """Whether Inductor writes the kernel of an operator itself."""
    name = func._schema.name.split("::")[1]
    return func.namespace == "aten" and (torch.Tag.pointwise in func.tags or name in _ALSO)
