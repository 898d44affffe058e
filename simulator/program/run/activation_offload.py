"""Which copies does keeping activations in host memory add?

Activations of a layer leave after its forward and come back one layer ahead of its backward. Those
of the last layer stay, because its backward is next. Two layers' copies may be under way; then
computing waits for them, so that memory stays bounded on a slow link. Where fewer layers are
copied, each copy has more layers' computing to itself (:func:`offload_windows`).
"""

from __future__ import annotations

from simulator.cost.host import TO_DEVICE, TO_HOST
from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Memory, Owner, Program, total_bytes
from simulator.program.price.stage_cost import StageCosts
from simulator.program.run.host_links import HostLinks


class ActivationOffload:
    """Emits the copies of what layers keep from forward to backward."""

    def __init__(self, job: Job, costs: StageCosts, program: Program) -> None:
        self._costs, self._program = costs, program
        self._links = HostLinks(job, program)
        self._count = offloaded_layers(job)
        self._windows = offload_windows(job.model.layers, self._count)
        self._turns = {end: number for number, end in enumerate(self._windows)}
        """Whose window a layer ends."""
        self._away: dict[tuple[int, int], list[int]] = {}
        """Layers of each rank whose activations are on the host, with a copy per microbatch."""
        self._ran: dict[int, int] = {}
        """Last backward pass of each rank."""
        self._before: dict[tuple[int, int], tuple[int, ...]] = {}
        """What ran before the backward of a layer of each rank."""

    def send(self, rank: int, operation: int, run: Slice) -> None:
        """Copies out what layers keep whose turn it is after a forward pass."""
        for layer in range(run.first, run.end):
            if ended := self._away.get((rank, self._turns.get(layer - 1, -1))):
                computed = self._program.operations[operation]
                computed.after = (*computed.after, ended[-1])
            number = self._opened_by(layer)
            if number is not None:
                kept = kept_activations(self._costs, number)
                copy = self._links.copy(
                    rank, TO_HOST, total_bytes(kept), (operation,),
                    layers=(number, number + 1), gives=kept,
                )  # fmt: skip
                self._away.setdefault((rank, number), []).append(copy)

    def fetch(self, rank: int, run: Slice) -> tuple[int, ...]:
        """Copies back what has to be there when a backward pass begins; what it waits for."""
        copies = []
        for layer in reversed(range(run.first, run.end)):
            self._before[rank, layer] = (self._ran[rank],) if rank in self._ran else ()
            number = self._opened_by(layer)
            if number is None or not (away := self._away.get((rank, number))):
                continue
            window = self._before.get((rank, self._windows[number]), ())
            kept, waits = kept_activations(self._costs, number), away.pop(0)
            copy = self._links.copy(
                rank, TO_DEVICE, total_bytes(kept), (*window, waits),
                layers=(number, number + 1), takes=kept,
            )  # fmt: skip
            copies.append(copy)
        return tuple(copies)

    def ran_backward(self, rank: int, operation: int) -> None:
        """Books a backward pass, so that copies come no earlier than there is room for them."""
        self._ran[rank] = operation

    def _opened_by(self, layer: int) -> int | None:
        """Which layer's copy begins after the forward of a layer, and ends before its backward."""
        number = self._turns.get(layer, -1) + 1 if layer else 0
        return number if number < self._count and (layer == 0 or layer in self._turns) else None


def offloaded_layers(job: Job) -> int:
    """Layers, from the first on, whose activations leave the GPU: all but the last by default."""
    return job.plan.offload.activation_layers or job.model.layers - 1


def kept_activations(costs: StageCosts, layer: int) -> Memory:
    """What one layer keeps from forward to backward, counted from 0."""
    saved = costs.saved(Slice(layer, layer + 1))
    return tuple(block for block in saved if block[0] is Owner.ACTIVATIONS)


def offload_windows(layers: int, count: int) -> list[int]:
    """The layer during whose forward each copy to the host ends, of the first ``count`` layers.

    All layers of the model are shared out among the copies, which run one after another, so
    that each has about ``layers / count`` layers' computing to hide behind.

    Source: Transformer Engine, ``cpu_offload.py``, ``layer_window_map``.
    """
    each, more = divmod(layers, max(1, count))
    return [each * (n + 1) - 1 + min(n + 1, more) for n in range(count)]
