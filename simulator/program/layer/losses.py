"""What does the loss read, write and keep of the logits, by how it is computed?

The kinds are those of :data:`simulator.described.plan.stack_options.CrossEntropy`. Everything is
counted in copies of the logits, in the format of activations and in fp32.

Ignores: what Liger and cut cross-entropy hold of a part of the logits beside that part, and that
torch reads rows below 48 KiB once only.
Source: Megatron-LM's ``cross_entropy``; PyTorch's, with ``cunn_SoftMaxForward`` and ``Backward`` of
``SoftMax.cu`` and ``nll_loss_backward_out_cuda_template`` of ``Loss.cu``,
``cross_entropy_loss_symint`` of ``LossNLL.cpp``, ``fp32_set_opt_dtype`` of ``autocast_mode.h`` and
``torch.distributed.tensor.parallel.loss``; Megatron-Core,
``fusions/fused_cross_entropy.py``; the graphs that AOTAutograd and its min-cut partitioner make of
a GPT-2 that returns its logits and their loss (PyTorch 2.13), and ``set_materialize_grads``, which
its ``runtime_wrappers.py`` leaves on; torchtune, ``modules/loss/ce_chunked_output_loss.py``;
torchtitan 0.3, ``components/loss.py``;
transformers 4.45, ``modeling_llama.py``, 4.46 and 4.49, ``ForCausalLMLoss`` of
``loss/loss_utils.py``; Liger-Kernel, ``ops/cross_entropy.py`` and
``ops/fused_linear_cross_entropy.py``; Unsloth, ``kernels/cross_entropy_loss.py``;
cut cross-entropy, arXiv 2411.09009; TRL 1.16, ``kernels/chunked_logprob.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from simulator.cost.rates import FULL_BYTES
from simulator.described.plan.stack_options import CrossEntropy

_PARTS = 8
"""Parts whose losses are computed one after another (torchtune's ``num_output_chunks``, and
``num_chunks`` of torchtitan's ``ChunkedLossWrapper``)."""


class Copies(NamedTuple):
    """So many copies of the logits.

    Attributes:
        half: In the format of activations.
        full: In fp32.
    """

    half: float = 0.0
    full: float = 0.0

    def num_bytes(self, logits: float, element_bytes: float) -> float:
        """Their size [B]."""
        return logits * (self.half * element_bytes + self.full * FULL_BYTES)


_NOTHING = Copies()
_ONE_HALF, _ONE_FULL, _PART = Copies(half=1), Copies(full=1), Copies(full=1 / _PARTS)
CHUNK_OF_HEAD = Copies(half=1 / _PARTS, full=3 / _PARTS)
"""What an eager loss of one part holds at most: its logits, what it keeps, and two gradients."""


@dataclass(frozen=True, kw_only=True)
class LossKernel:
    """One way to compute the loss.

    Attributes:
        forward, backward: Copies that are read and written.
        kernels: Launches in each direction.
        kept: What stays from forward to backward.
        passing: Held while forward runs.
        freed: Given back before that, too small for what is made next.
        working: Held while backward runs; empty where nothing is said.
        returned: Logits as the model gives them, where they are not among what is kept.
        has_logits: Whether there are ever all logits.
        divided: The kernel where tensor-parallel ranks divide the vocabulary, if it is another.
    """

    forward: Copies
    backward: Copies
    kernels: int
    kept: Copies = _NOTHING
    passing: tuple[Copies, ...] = ()
    freed: tuple[Copies, ...] = ()
    working: tuple[Copies, ...] = ()
    returned: Copies = _ONE_HALF
    has_logits: bool = True
    divided: LossKernel | None = None

    def with_returned(self) -> LossKernel:
        """The same where something else keeps what the model returns as long as its loss."""
        if self.returned == _NOTHING or not self.has_logits:
            return self
        returned = self.returned
        kept = Copies(self.kept.half + returned.half, self.kept.full + returned.full)
        passing, freed = (_without(copies, self.returned) for copies in (self.passing, self.freed))
        return replace(self, kept=kept, passing=passing, freed=freed, returned=_NOTHING)


def _without(copies: tuple[Copies, ...], one: Copies) -> tuple[Copies, ...]:
    """All but the first that equals one, if any does."""
    place = copies.index(one) if one in copies else len(copies)
    return copies[:place] + copies[place + 1 :]


# Cast, maximum, subtract, exponentials, sum, divide; backward scales and casts.
_WRITTEN_OUT = LossKernel(forward=Copies(1, 7), backward=Copies(1, 3), kernels=8, kept=_ONE_FULL)
# Cast, maximum, subtract, exponentials, sum, subtract; backward fills zeros, which it adds the
# exponentials of the log-probabilities to, scales and casts.
_OF_DTENSORS = LossKernel(
    forward=Copies(1, 9),
    backward=Copies(1, 9),
    kernels=8,
    kept=_ONE_FULL,
    passing=(_ONE_HALF, _ONE_FULL),
    working=(_ONE_FULL,) * 3,
)
# Maximum, exponentials with their sum, and the gradient.
_ONE_KERNEL = LossKernel(
    forward=Copies(3), backward=Copies(2), kernels=3, kept=_ONE_HALF, returned=_NOTHING
)
# A part of them is read for the sums and overwritten.
_WITHOUT_LOGITS = LossKernel(forward=Copies(3), backward=_NOTHING, kernels=2, has_logits=False)

LOSSES: Mapping[CrossEntropy, LossKernel] = MappingProxyType(
    {
        "fused": _ONE_KERNEL,
        "in-place": _WRITTEN_OUT,
        # Three compiled functions and one for backward, with reductions between ranks: the first
        # casts and finds the maximum; what the second changes in place is a copy of what the first
        # kept, so that it writes that and the exponentials; the third divides. Backward subtracts
        # at the targets, scales and casts (Megatron-Core, ``fusions/fused_cross_entropy.py``).
        "compiled": LossKernel(
            forward=Copies(1, 6), backward=Copies(1, 2), kernels=5, kept=_ONE_FULL,
            passing=(_ONE_HALF,), working=(_ONE_FULL, _ONE_HALF), returned=_ONE_HALF,
        ),
        # Of one graph: forward reads them for the maximum and the sum, backward makes the gradient
        # of the loss beside the zeros that autograd gives for that of the logits themselves.
        "whole-graph": LossKernel(
            forward=Copies(2), backward=Copies(4), kernels=2, kept=_ONE_HALF, returned=_NOTHING,
            working=(_ONE_HALF,) * 2,
        ),
        # As before, but the gradient of log-probabilities is first written in fp32: zeros, into
        # which targets are scattered. The gradient of the loss reads it twice, for the sum, too.
        "whole-graph-scattered": LossKernel(
            forward=Copies(2), backward=Copies(4, 3), kernels=4, kept=_ONE_HALF, returned=_NOTHING,
            working=(_ONE_FULL, _ONE_HALF, _ONE_HALF),
        ),
        # What is subtracted from stays with its caller until the loss is there.
        "copied": replace(
            _WRITTEN_OUT, passing=(_ONE_FULL,), freed=(_ONE_HALF,), working=(_ONE_HALF,)
        ),
        # Cast; a softmax that reads its rows for the maximum, the sum and the result. Backward
        # fills zeros, reads these twice and the result once, writes the gradient and casts it.
        "eager": LossKernel(
            forward=Copies(1, 5), backward=Copies(1, 6), kernels=4, kept=_ONE_FULL,
            passing=(_ONE_HALF, _ONE_FULL), working=(_ONE_FULL,) * 2, divided=_OF_DTENSORS,
        ),
        # Cast, copy, and the passes of "eager". Backward fills further zeros, and puts the gradient
        # of the copy into them. 16-bit logits and their fp32 ones are there until the loss is;
        # the model returns the latter (transformers 4.45, ``modeling_llama.py``).
        "eager-shifted": LossKernel(
            forward=Copies(1, 7), backward=Copies(1, 9), kernels=6, kept=_ONE_FULL,
            passing=(_ONE_HALF, _ONE_FULL, _ONE_FULL),
            working=(_ONE_FULL,) * 2, returned=_ONE_FULL,
            divided=replace(
                _OF_DTENSORS, passing=(_ONE_HALF, _ONE_FULL, _ONE_FULL)
            ),
        ),
        # A softmax of 16-bit logits, as their loss asks for their own format, and a cast of its
        # result for the rest. Backward fills fp32 zeros, casts them and makes gradients from that.
        "eager-autocast": LossKernel(
            forward=Copies(5, 1), backward=Copies(5, 2), kernels=4, kept=Copies(1, 1),
            passing=(_ONE_HALF,), working=(_ONE_FULL,),
        ),
        # That of "eager" without a cast.
        "eager-16bit": LossKernel(
            forward=Copies(6), backward=Copies(8), kernels=5, kept=_ONE_HALF,
            passing=(_ONE_HALF,) * 2, working=(_ONE_HALF,) * 2,
        ),
        # That of "eager", of logits that the model has cast.
        "eager-32bit": LossKernel(
            forward=Copies(1, 5), backward=Copies(1, 6), kernels=4, kept=_ONE_FULL,
            passing=(_ONE_FULL,), freed=(_ONE_HALF,), working=(_ONE_FULL,) * 2, returned=_ONE_FULL,
        ),
        # Cast, copy, and the kernel's passes; backward puts the copy back and casts it.
        "shifted": LossKernel(
            forward=Copies(1, 6), backward=Copies(1, 6), kernels=5, kept=_ONE_FULL,
            passing=(_ONE_FULL,), working=(_ONE_FULL,),
        ),
        # Cast, and the kernel's passes, which leave gradients in that copy; backward scales them
        # and casts them back.
        "overwritten": LossKernel(
            forward=Copies(1, 4), backward=Copies(1, 3), kernels=4, kept=_ONE_FULL,
            passing=(_ONE_HALF,), working=(_ONE_HALF,),
        ),
        "overwritten-16bit": replace(_ONE_KERNEL, working=(_NOTHING,)),
        "chunked": replace(_ONE_KERNEL, passing=(_PART,) * 2, working=(_PART,) * 2),
        # That of "eager", eight times.
        "chunked-head": LossKernel(
            forward=Copies(1, 5), backward=Copies(1, 6), kernels=4 * _PARTS, has_logits=False
        ),
        "linear-fused": _WITHOUT_LOGITS,
        "cut": _WITHOUT_LOGITS,
        # Each direction reads and writes tiles of 16-bit logits, or of their gradient, once.
        "tiled": replace(_WITHOUT_LOGITS, forward=Copies(1), backward=Copies(2)),
        # The gradient is one number for all, which each product of the head copies out
        # (``prepare_matrix_for_cublas`` of PyTorch's ``Blas.cpp``).
        "sum": LossKernel(
            forward=Copies(1), backward=Copies(2), kernels=2,
            passing=(_ONE_HALF,), working=(_ONE_HALF,),
        ),
    }
)  # fmt: skip
"""Every way by the name that a plan uses."""
