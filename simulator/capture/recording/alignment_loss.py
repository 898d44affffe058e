"""What does a GPU run for the loss of connectionist temporal classification (``ctc_loss``)?

One kernel forward, which keeps a table of every target and time, and one backward. Torch has none
for tensors without contents: the longest target decides how wide the table is. It is taken to
fill its row, as sequences are taken not to be padded, or to be the mean where they are joined.

Source: torch's ``LossCTC.cu`` (``ctc_loss_gpu_template``, ``ctc_loss_backward_gpu_template``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from simulator.capture.recording.absent_streams import everywhere, replaced


@contextlib.contextmanager
def alignment_loss() -> Iterator[None]:
    """Inside, ``torch.nn.functional.ctc_loss`` runs without contents."""
    library: Any = torch.library.Library("clustersim", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("ctc_loss(Tensor log_probs, Tensor targets) -> (Tensor, Tensor)")
    library.define("ctc_loss_backward(Tensor loss, Tensor log_probs, Tensor table) -> Tensor")
    library.impl("ctc_loss", _forward, "Meta")
    library.impl("ctc_loss_backward", lambda _, probs, __: torch.empty_like(probs), "Meta")
    functional = torch.nn.functional
    try:
        with replaced(everywhere(functional.ctc_loss, _ctc_loss)):
            yield
    finally:
        library._destroy()


def _forward(log_probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    times, batch = log_probs.shape[:2]
    longest = targets.shape[1] if targets.dim() == 2 else -(-targets.numel() // batch)
    table = log_probs.new_empty((batch, times, 2 * longest + 1))
    return log_probs.new_empty((batch,)), table


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, log_probs: Tensor, targets: Tensor) -> Tensor:
        losses, table = torch.ops.clustersim.ctc_loss(log_probs, targets)
        context.save_for_backward(log_probs, table)
        kept: Tensor = losses
        return kept

    @staticmethod
    def backward(context: Any, *losses: Tensor) -> tuple[Tensor, None]:
        log_probs, table = context.saved_tensors
        return torch.ops.clustersim.ctc_loss_backward(losses[0], log_probs, table), None


def _ctc_loss(  # noqa: PLR0917 - the signature is torch's
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    del input_lengths, target_lengths, blank, zero_infinity
    if torch.is_autocast_enabled("cuda"):  # of the operators that autocast runs in fp32
        log_probs = log_probs.float()
    losses: Tensor = _Loss.apply(log_probs, targets)  # type: ignore[no-untyped-call]
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()
