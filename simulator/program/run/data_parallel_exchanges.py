"""What does data parallelism ask of those who reduce gradients and bring weights together?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Kind, Work
from simulator.program.states.gather_units import Unit


class Exchanges(Protocol):
    """What ranks that hold copies of parameters exchange: collectives, or with servers."""

    @property
    def is_needed(self) -> bool:
        """Whether a rank has anybody to exchange with."""

    @property
    def hands_out(self) -> bool:
        """Whether ranks keep whole weights, of which others update a part."""

    @property
    def gathers_ahead(self) -> bool:
        """Whether updated weights may come together while the next forward runs."""

    @property
    def reduction_kind(self) -> Kind:
        """What adds up gradients."""

    @property
    def gather_kind(self) -> Kind:
        """What brings weights together."""

    def reduction(self, units: Sequence[Unit]) -> Work:
        """Adds up the gradients of units."""

    def gather(self, units: Sequence[Unit], *, is_forward: bool = True) -> Work:
        """Brings the weights of units together for a pass."""

    def hand_out(self, run: Slice) -> tuple[Kind, Work]:
        """Updated weights of a run on their way to all ranks that keep them whole."""

    def gather_small(self, runs: Sequence[Slice]) -> Work | None:
        """Updated weights that are too small to be gathered before every use; None without."""
