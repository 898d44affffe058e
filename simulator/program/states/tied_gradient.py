"""What does backward hold of the gradient of a tied embedding beside the one that stays?

Where one rank holds both ends of the model, the table of tokens and the output matrix are one
parameter, whose gradient comes in two parts: the head's when backward begins, that of the lookup,
as large, when it ends. PyTorch's autograd hands on neither before their sum, so the head's part
waits in the engine all through backward. The sum is a third tensor: the gradient of a linear
layer's weight is a view, to which autograd adds nothing. Where the product adds to the gradient
itself and that stays from step to step, its part is a stand-in of zeros, which takes the lookup's.

Ignores: further uses by multi-token prediction, and a weight gradient apart from its backward.
Source: PyTorch 2.13, torch/csrc/autograd/input_buffer.cpp, ``accumulate`` and
``can_accumulate_inplace``; Megatron-Core, ``zero_out_wgrad`` of
``LinearWithGradAccumulationAndAsyncCommunication`` and ``LanguageModule``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Memory, Owner, total_bytes
from simulator.program.layer.model_ends import embedding_tensors
from simulator.program.states.resident import padded_vocab, state_bytes, tensor_parameters


class PlainCosts(Protocol):
    """Activations of a run of layers."""

    def saved(self, run: Slice) -> Memory:
        """Kept from forward to backward."""

    def plain_working(self, run: Slice) -> Memory:
        """Held while backward runs, but for gradients of a tied embedding."""


@dataclass(frozen=True)
class TiedGradient:
    """Parts of the gradient of one job's tied embedding.

    Attributes:
        job: The job.
        costs: Of its layers.
    """

    job: Job
    costs: PlainCosts

    @cached_property
    def waiting(self) -> Memory:
        """The head's part, from its backward to that of the embedding; empty where none waits."""
        job = self.job
        if not job.choices.holds_tied_gradients:
            return ()
        tokens, *_ = embedding_tensors(job.model, padded_vocab(job))
        numel, state = tensor_parameters(job, tokens).total, state_bytes(job)
        # Gradients that PyTorch keeps as its own have the format of their parameters.
        is_own = job.choices.frees_gradients and not job.choices.shards_gradients
        return ((Owner.GRADIENTS, numel * (state.gradients if is_own else state.gathered)),)

    def working(self, run: Slice, *, is_new: bool) -> Memory:
        """What a piece of backward holds beyond its activations and what it takes.

        Saved activations are booked until the end of a piece. They are gone when the two parts
        meet, so only what these need more than them counts.

        Args:
            run: The piece. The head's part is in it where it has head and loss, else taken.
            is_new: Whether the sum becomes the gradient itself, which the backward takes.
        """
        if not self.waiting:
            return ()
        booked = total_bytes(self.costs.saved(run) + self.costs.plain_working(run))
        more_bytes = max(self._moments(run, is_new=is_new), default=0.0) - booked
        return ((Owner.GRADIENTS, more_bytes),) if more_bytes > 0 else ()

    def _moments(self, run: Slice, *, is_new: bool) -> Iterator[float]:
        """What is there after the loss while the head, layers and embedding of a piece run [B]."""
        part = total_bytes(self.waiting)
        first, end, has_embedding = run.first, run.end, run.has_embedding
        waits = part if run.has_loss and run.has_head else 0.0
        if waits:
            body, layers = run._replace(has_loss=False), Slice(first, end, has_embedding)
            yield waits + self._held(body, Slice(end, end, has_head=True))
            yield waits + self._held(layers, Slice(first, end))
        if has_embedding:
            lookup = Slice(first, first, has_embedding)
            yield waits + part * (1 if is_new else 1 + self._makes_sum) + self._held(lookup, lookup)

    def _held(self, saved: Slice, running: Slice) -> float:
        return total_bytes(self.costs.saved(saved) + self.costs.plain_working(running))

    @property
    def _makes_sum(self) -> bool:
        choices = self.job.choices
        return choices.frees_gradients or not choices.fuses_accumulation
