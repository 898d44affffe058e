"""What does a pipeline ask of those who know the layers, the weights and the activations?

It knows orders and transfers alone. What a run of layers costs, which weights must be brought
together for it and where its activations go are the answers of these.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Memory, Work
from simulator.program.strategies.split_backward import Halves
from simulator.schedule.slots import Phase


class Costs(Protocol):
    """What a pipeline must know about a run of layers."""

    def work(self, run: Slice, phase: Phase, exposed: float = 1.0, host_s: float = 0.0) -> Work:
        """Cost of one microbatch through the run.

        Args:
            run: The layers.
            phase: Direction.
            exposed: Share of its exchanges with experts that delays it.
            host_s: Time that the device waits for the host before the first kernel [s].
        """

    def exposed_share(self, run: Slice, phase: Phase, beside: Slice, beside_phase: Phase) -> float:
        """Share of a pass's expert exchanges that another pass beside it does not hide."""

    def saved(self, run: Slice) -> Memory:
        """Activations kept from forward to the end of backward."""

    def passing(self, run: Slice) -> Memory:
        """Memory held while forward runs."""

    def working(self, run: Slice, phase: Phase, *, makes_gradients: bool) -> Memory:
        """Memory held while a backward pass runs.

        Args:
            run: The layers.
            phase: Direction.
            makes_gradients: Whether the pass takes its gradients, so that none were there.
        """

    def peaks_in_attention(self, run: Slice) -> bool:
        """Whether a backward pass holds the most while attention runs."""

    @property
    def waiting_gradient(self) -> Memory:
        """What backward of a tied head leaves for that of the embedding."""

    def halves(self, run: Slice) -> Halves:
        """What the halves of a split backward take and free."""


class Gather(NamedTuple):
    """Weights that are brought together for a piece.

    Attributes:
        operations: What the piece waits for.
        takes: Memory of the weights, from when they are asked for.
    """

    operations: tuple[int, ...] = ()
    takes: Memory = ()


class Attachment(Protocol):
    """What data parallelism adds between the layers of a pass."""

    def forward_runs(self, run: Slice, *, is_first: bool) -> list[Slice]:
        """Pieces of a forward pass, in order."""

    def backward_runs(self, run: Slice, *, is_first: bool, reduces: bool) -> list[Slice]:
        """Pieces of a backward pass, in order."""

    def makes_gradients(self, *, is_first: bool) -> bool:
        """Whether a backward takes the gradients that it makes; else they are there already."""

    def reduces_after(self, *, is_last: bool, ends_turn: bool) -> bool:
        """Whether a backward's gradients are reduced while it runs.

        Args:
            is_last: Whether no other of its virtual stage follows before the update.
            ends_turn: Whether the rank's next backward is of another virtual stage; where there
                is only one, every backward ends its turn.
        """

    def before(self, rank: int, run: Slice, *, is_first: bool, is_forward: bool) -> Gather:
        """What a piece must wait for."""

    def launched_after(self, rank: int) -> tuple[int, ...]:
        """What must have ended before the host launches a rank's next piece."""

    def reads_weights(self, run: Slice) -> bool:
        """Whether a piece has weights of its own, so that the next gather is issued with it."""

    def weights_in_turn(
        self, run: Slice, *, is_forward: bool, in_attention: bool = False
    ) -> Memory:
        """Weights that come and go one by one while a piece runs: the most at once.

        Args:
            run: The piece.
            is_forward: Direction.
            in_attention: Whether only the moments count in which backward of attention runs.
        """

    def after_use(self, rank: int, operation: int, run: Slice, *, is_forward: bool) -> Memory:
        """Memory that a piece gives back because it no longer needs its weights."""

    def after_backward(
        self, rank: int, operation: int, run: Slice, *, is_last: bool, reduces: bool
    ) -> Memory:
        """Memory that a piece's finished gradients take."""


class ActivationCopies(Protocol):
    """Where activations go that do not stay on the GPU."""

    def send(self, rank: int, operation: int, run: Slice) -> None:
        """Copies out what a forward pass keeps."""

    def fetch(self, rank: int, run: Slice) -> tuple[int, ...]:
        """Copies in what a backward pass needs; what it waits for."""

    def ran_backward(self, rank: int, operation: int) -> None:
        """Books a backward pass."""
