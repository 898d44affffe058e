"""Which rectangles make up the pipeline picture?

Geometry only: a row per rank class, time to the right, every rectangle in seconds and
rows. A row is one unit high and holds the compute stream above thin lanes for
data-parallel collectives, for transfers between stages, and for what continues between the GPU
and its host.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.engine.timeline import STREAMS
from simulator.program.ir import COMMUNICATION, Category, Kind, Operation, Stream
from simulator.results.step import StepResult

_SENDS = (Stream.SEND_NEXT, Stream.SEND_PREVIOUS)
_HOST = (
    Stream.NVME_WRITE, Stream.NVME_READ, Stream.TO_DEVICE, Stream.HOST, Stream.TO_HOST,
)  # fmt: skip
"""Streams of copies and of the CPUs, the lowest lane first."""
_MARGIN, _LANE, _GAP = 0.05, 0.09, 0.03
_INVISIBLE = 1e-5
"""A gap of this share of the step is narrower than a hundredth of a point."""


@dataclass(frozen=True)
class RowLayout:
    """Where things lie in a row, from its top (0) to its bottom (1).

    Attributes:
        compute: Top and bottom of the compute stream.
        data_parallel: Top and bottom of the collectives, None where there are none.
        transfers: Top and bottom of the sends, None where there are none.
        host: Top and bottom of every stream between the GPU and its host that is used.
    """

    compute: tuple[float, float]
    data_parallel: tuple[float, float] | None
    transfers: tuple[float, float] | None
    host: Mapping[Stream, tuple[float, float]] = field(default_factory=dict)

    def lane(self, stream: Stream) -> tuple[float, float] | None:
        """Top and bottom of a stream beside the computation; None where it is not shown."""
        if stream is Stream.DATA_PARALLEL:
            return self.data_parallel
        return self.transfers if stream in _SENDS else self.host.get(stream)


@dataclass(frozen=True)
class Look:
    """What the rectangles of one artist have in common.

    Attributes:
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


@dataclass
class _Stretch:
    """Operations of one microbatch that follow each other without a gap.

    A program splits a microbatch where something else may happen in between, for example
    where a layer's gradients are ready. What then runs in one go is one box.

    Attributes:
        start_s, end_s: The whole stretch [s].
        band_s: Time by band.
    """

    rank_class: int
    first: Operation
    start_s: float
    end_s: float
    band_s: dict[Category | None, float]

    def continues(self, other: _Stretch, gap_s: float) -> bool:
        """Whether the other one continues where this one ends."""
        mine, others = self.first, other.first
        return (
            self.rank_class == other.rank_class
            and (mine.kind, mine.microbatch, mine.chunk)
            == (others.kind, others.microbatch, others.chunk)
            and other.start_s - self.end_s <= gap_s
        )

    def append(self, other: _Stretch) -> None:
        """Take the other one in."""
        self.end_s = other.end_s
        for band, seconds in other.band_s.items():
            self.band_s[band] = self.band_s.get(band, 0.0) + seconds


@dataclass(frozen=True)
class Scene:
    """Everything to draw.

    Attributes:
        work: Boxes on the compute stream, by look.
        lanes: Boxes on the thin lanes, by look.
        waits: Gaps of the compute stream, by what was waited for.
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
    host = {}
    for stream in _HOST:
        if stream in streams:
            host[stream] = (bottom - _LANE, bottom)
            bottom -= _LANE + _GAP
    return RowLayout((_MARGIN, bottom), data_parallel=slots[1], transfers=slots[0], host=host)


def build_scene(result: StepResult, classes: Sequence[int], layout: RowLayout) -> Scene:
    """The rectangles of some rank classes, one row each in the order given."""
    row_of = {rank_class: row for row, rank_class in enumerate(classes)}
    scene = Scene(defaultdict(Boxes), defaultdict(Boxes), defaultdict(Boxes), [])
    labels: dict[tuple[int, Look, int], Label] = {}
    for stretch in _stretches(result):
        if stretch.rank_class in row_of:
            _add_work(scene, labels, stretch, row_of[stretch.rank_class], layout.compute)
    scene.labels.extend(labels.values())
    _add_lanes(scene, result, row_of, layout)
    _add_waits(scene, result, row_of, layout)
    return scene


def _stretches(result: StepResult) -> Iterator[_Stretch]:
    """What the compute streams do, in order, one class after the other."""
    timeline = result.timeline
    gap_s = _INVISIBLE * result.step_time_s
    current: _Stretch | None = None
    for row in np.flatnonzero(timeline.stream == STREAMS.index(Stream.COMPUTE)).tolist():
        index = int(timeline.operation[row])
        start_s = float(timeline.operation_start_s[index])
        end_s = float(timeline.operation_end_s[index])
        if end_s <= start_s:
            continue
        operation = timeline.program.operations[index]
        band_s = {band: share * (end_s - start_s) for band, share in bands(operation)}
        following = _Stretch(int(timeline.rank_class[row]), operation, start_s, end_s, band_s)
        if current is not None and current.continues(following, gap_s):
            current.append(following)
            continue
        if current is not None:
            yield current
        current = following
    if current is not None:
        yield current


def _add_work(
    scene: Scene,
    labels: dict[tuple[int, Look, int], Label],
    stretch: _Stretch,
    row: int,
    slot: tuple[float, float],
) -> None:
    """Stack the bands of a stretch; its number goes to the longest of its microbatch."""
    kind, chunk = stretch.first.kind, stretch.first.chunk
    microbatch = stretch.first.microbatch
    height = (slot[1] - slot[0]) / math.fsum(stretch.band_s.values())
    top = row + slot[0]
    for band in (None, *(c for c in Category if c in stretch.band_s)):
        look = Look(kind, chunk, band)
        bottom = top + height * stretch.band_s.get(band, 0.0)
        if bottom > top:
            scene.work[look].add(stretch.start_s, stretch.end_s, top, bottom)
        if band is None and microbatch >= 0:
            label = Label(microbatch, look, stretch.start_s, stretch.end_s, top, bottom)
            known = labels.setdefault((row, look, microbatch), label)
            if label.end_s - label.start_s > known.end_s - known.start_s:
                labels[row, look, microbatch] = label
        top = bottom


def bands(operation: Operation) -> Iterator[tuple[Category | None, float]]:
    """Horizontal bands of a box and their shares of its height, from the top.

    The area of a band is its share of the operation's time: the work itself (None)
    first, then recomputation, then communication that blocks inside the operation.
    """
    seconds: dict[Category, float] = defaultdict(float)
    for part in operation.work.parts:
        if part.category is Category.RECOMPUTE or part.category in COMMUNICATION:
            seconds[part.category] += part.seconds
    total = operation.work.seconds
    shares = {c: seconds[c] / total for c in Category if seconds.get(c, 0.0) > 0 and total > 0}
    own = 1.0 - math.fsum(shares.values())
    if own > 1e-9:  # beyond the rounding of the sum
        yield None, own
    yield from shares.items()


def _add_lanes(scene: Scene, result: StepResult, row_of: dict[int, int], layout: RowLayout) -> None:
    """What runs beside the work; a transfer only on the side of its sender."""
    for (rank_class, stream), ids in result.timeline.program.lanes.items():
        slot = layout.lane(stream)
        if slot is None or rank_class not in row_of:
            continue
        top, bottom = (row_of[rank_class] + edge for edge in slot)
        for index in ids:
            start_s = float(result.timeline.operation_start_s[index])
            end_s = float(result.timeline.operation_end_s[index])
            if end_s > start_s:
                kind = result.timeline.program.operations[index].kind
                scene.lanes[Look(kind)].add(start_s, end_s, top, bottom)


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
