"""Which rectangles make up the pipeline picture?

Geometry only: a row per rank class, time to the right, every rectangle in seconds and
rows. A row is one unit high and holds the compute stream above thin lanes for
data-parallel collectives and for transfers between stages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.engine.timeline import STREAMS
from simulator.program.ir import COMMUNICATION, Category, Kind, Operation, Stream
from simulator.results.step import StepResult

_SENDS = (Stream.SEND_NEXT, Stream.SEND_PREVIOUS)
_MARGIN, _LANE, _GAP = 0.05, 0.09, 0.03


@dataclass(frozen=True)
class RowLayout:
    """Where things lie in a row, from its top (0) to its bottom (1).

    Attributes:
        compute: Top and bottom of the compute stream.
        data_parallel: Top and bottom of the collectives, None where there are none.
        transfers: Top and bottom of the sends, None where there are none.
    """

    compute: tuple[float, float]
    data_parallel: tuple[float, float] | None
    transfers: tuple[float, float] | None

    def slot(self, stream: Stream) -> tuple[float, float] | None:
        """Top and bottom of a stream; None for those that are not drawn."""
        if stream is Stream.COMPUTE:
            return self.compute
        if stream is Stream.DATA_PARALLEL:
            return self.data_parallel
        return self.transfers if stream in _SENDS else None


@dataclass(frozen=True)
class Look:
    """What the rectangles of one artist have in common.

    Attributes:
        kind: What the operation does.
        chunk: Model chunk, -1 where meaningless.
        part: The band of the box; None is the operation itself, otherwise the category
            of the part of its time that the band stands for.
    """

    kind: Kind
    chunk: int = -1
    part: Category | None = None


@dataclass
class Boxes:
    """Rectangles of one look, as growing columns."""

    start_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)
    top: list[float] = field(default_factory=list)
    bottom: list[float] = field(default_factory=list)

    def add(self, start_s: float, end_s: float, top: float, bottom: float) -> None:
        """Append one rectangle."""
        self.start_s.append(start_s)
        self.end_s.append(end_s)
        self.top.append(top)
        self.bottom.append(bottom)

    def corners(self) -> NDArray[np.float64]:
        """Corner points, shape (boxes, 4, 2)."""
        x0, x1, y0, y1 = (np.asarray(c) for c in (self.start_s, self.end_s, self.top, self.bottom))
        return np.stack([np.stack(c, 1) for c in ((x0, y0), (x1, y0), (x1, y1), (x0, y1))], 1)


@dataclass(frozen=True)
class Label:
    """A microbatch number and the box it belongs to."""

    microbatch: int
    look: Look
    start_s: float
    end_s: float
    top: float
    bottom: float


@dataclass(frozen=True)
class Scene:
    """Everything to draw.

    Attributes:
        work: Boxes on the compute stream, by look.
        lanes: Boxes on the thin lanes, by look.
        waits: Gaps of the compute stream, by what was waited for.
        labels: Microbatch numbers.
    """

    work: dict[Look, Boxes]
    lanes: dict[Look, Boxes]
    waits: dict[Category, Boxes]
    labels: list[Label]


def row_layout(result: StepResult) -> RowLayout:
    """How a row is divided, given which streams the program uses."""
    streams = {stream for _, stream in result.timeline.program.lanes}
    bottom = 1.0 - _MARGIN
    slots: list[tuple[float, float] | None] = []
    for is_used in (bool(streams & set(_SENDS)), Stream.DATA_PARALLEL in streams):
        slots.append((bottom - _LANE, bottom) if is_used else None)
        bottom -= (_LANE + _GAP) if is_used else 0.0
    return RowLayout((_MARGIN, bottom), data_parallel=slots[1], transfers=slots[0])


def build_scene(result: StepResult, classes: Sequence[int], layout: RowLayout) -> Scene:
    """The rectangles of some rank classes, one row each in the order given."""
    row_of = {rank_class: row for row, rank_class in enumerate(classes)}
    scene = Scene(defaultdict(Boxes), defaultdict(Boxes), defaultdict(Boxes), [])
    timeline = result.timeline
    columns = (timeline.rank_class, timeline.stream, timeline.start_s, timeline.end_s)
    for rank_class, stream, start_s, end_s, operation in zip(
        *(column.tolist() for column in columns), timeline.operations, strict=True
    ):
        row = row_of.get(rank_class)
        if row is None or end_s <= start_s:
            continue
        slot = layout.slot(STREAMS[stream])
        if slot is None:  # the receiving side of a transfer is the sender's box again
            continue
        top, bottom = row + slot[0], row + slot[1]
        if STREAMS[stream] is Stream.COMPUTE:
            _add_work(scene, operation, (top, bottom), (start_s, end_s))
        else:
            scene.lanes[Look(operation.kind)].add(start_s, end_s, top, bottom)
    _add_waits(scene, result, row_of, layout)
    return scene


def _add_work(
    scene: Scene, operation: Operation, slot: tuple[float, float], span_s: tuple[float, float]
) -> None:
    top, bottom = slot
    look = Look(operation.kind, operation.chunk)
    upper = top
    for part, share in bands(operation):
        band = Look(operation.kind, operation.chunk, part)
        lower = upper + share * (bottom - top)
        scene.work[band].add(*span_s, upper, lower)
        if part is None and operation.microbatch >= 0:
            label = Label(operation.microbatch, look, *span_s, upper, lower)
            scene.labels.append(label)
        upper = lower


def bands(operation: Operation) -> Iterator[tuple[Category | None, float]]:
    """Horizontal bands of a box and their shares of its height, from the top.

    The area of a band is its share of the operation's time: the work itself first, then
    recomputation, then communication that blocks inside the operation.
    """
    seconds: dict[Category, float] = defaultdict(float)
    for part in operation.work.parts:
        if part.category is Category.RECOMPUTE or part.category in COMMUNICATION:
            seconds[part.category] += part.seconds
    total = operation.work.seconds
    shares = {c: seconds[c] / total for c in Category if seconds.get(c, 0.0) > 0 and total > 0}
    own = 1.0 - sum(shares.values())
    if own > 1e-9:  # beyond the rounding of the sum
        yield None, own
    yield from shares.items()


def _add_waits(scene: Scene, result: StepResult, row_of: dict[int, int], layout: RowLayout) -> None:
    waits = result.waits
    columns = (waits.rank_class, waits.start_s, waits.end_s)
    for rank_class, start_s, end_s, category in zip(
        *(column.tolist() for column in columns), waits.category, strict=True
    ):
        row = row_of.get(rank_class)
        if row is not None and end_s > start_s:
            top, bottom = (row + edge for edge in layout.compute)
            scene.waits[category].add(start_s, end_s, top, bottom)
