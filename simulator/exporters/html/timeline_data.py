"""What does the page's timeline draw?

Packed columns, one row per operation and lane, lane by lane and in order of time, so that a
script finds what is in view by binary search. What many rows share (kind, kernels, FLOP,
bytes, sources) is on one *sheet* that they point to. Waits are lanes of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.described.cluster.hardware import HardwareProfile, Provenance
from simulator.described.job import Job
from simulator.engine.timeline import STREAMS
from simulator.exporters.html.page import packed
from simulator.plots import style
from simulator.program.ir import COMMUNICATION, Category, Memory, Operation, Work, total_bytes
from simulator.results.step import StepResult
from simulator.results.views.pipeline_boxes import bands
from simulator.results.views.rank_classes import spread

_COMPUTING = "kernels"


_PORT_BLOCKS = {"scale_up": "network.scale_up", "fabric": "network.fabric"}


def source_blocks(job: Job) -> dict[str, str]:
    """The blocks of the profiles that this job uses, and in words where their numbers come from."""
    found: dict[str, Counter[str]] = {}
    for _, path, source in used_numbers(job):
        block = next((b for b in (_COMPUTING, *_PORT_BLOCKS.values()) if path.startswith(b)), None)
        if block:
            found.setdefault(block, Counter())[source.kind] += 1
    return {
        block: ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        for block, kinds in found.items()
    }


def profiles(job: Job) -> list[HardwareProfile]:
    """The kinds of GPUs of a job's cluster, each once."""
    kinds = [pool.profile for pool in job.cluster.kinds]
    return list({profile.name: profile for profile in kinds}.values())


def used_numbers(job: Job) -> Iterator[tuple[HardwareProfile, str, Provenance]]:
    """Profile, path and source of every number but those of products in other formats."""
    for profile in profiles(job):
        gemm = "kernels.gemm."
        used = f"{gemm}{job.plan.precision}."
        for path, source in profile.provenance.items():
            if path.startswith(used) or not path.startswith(gemm):
                yield profile, path, source


def _rests_on(operation: Operation, blocks: Sequence[str]) -> list[str]:
    """Those of the blocks that decide how long an operation takes."""
    work = operation.work
    used = set()
    if any(part.category not in COMMUNICATION and part.seconds for part in work.parts):
        used.add(_COMPUTING)
    exchanges = [collective.port_bytes for collective in work.collectives]
    if work.traffic is not None:
        exchanges.append(work.traffic.port_bytes)
    for port_bytes in exchanges:
        used |= {
            # Whatever climbs the fabric's tiers also passes the NIC.
            _PORT_BLOCKS["scale_up" if port == "scale_up" else "fabric"]
            for port, num_bytes in port_bytes.items()
            if num_bytes
        }
    return [block for block in blocks if block in used]


WAITS = "waits"
MOST_ROWS = 500_000
"""Beyond that whole rank classes are left out, evenly between the first and the last."""

Color = tuple[str, str]
"""On a light page and on a dark one."""


def timeline_data(
    result: StepResult, blocks: Mapping[str, str], *, most_rows: int
) -> dict[str, Any]:
    """Columns, lanes and sheets as the script ``timeline.js`` reads them."""
    return _Tables(result, blocks).document(shown_classes(result, most_rows))


def shown_classes(result: StepResult, most_rows: int) -> list[int]:
    """Indices of the rank classes that there is room for."""
    classes = len(result.timeline.program.classes)
    rows = np.bincount(result.timeline.rank_class, minlength=classes)
    rows += np.bincount(result.waits.rank_class, minlength=classes)
    for count in range(classes, 1, -1):
        shown = spread(classes, count)
        if rows[shown].sum() <= most_rows:
            return shown
    return [0]


def both(color: str) -> Color:
    """A colour as it is, and as a dark page shows it."""
    return color, style.on_dark(color)


class _Tables:
    def __init__(self, result: StepResult, blocks: Mapping[str, str]) -> None:
        self._result = result
        self._blocks = list(blocks)
        self._chunks = 1 + max((o.chunk for o in result.timeline.program.operations), default=0)
        self._sheets: list[dict[str, Any]] = []
        self._sheet_of: dict[Any, int] = {}
        self._content_of: dict[int, tuple[Work, int]] = {}
        self._contents: dict[Any, int] = {}
        self._held: dict[int, tuple[Memory, float]] = {}

    def document(self, classes: Sequence[int]) -> dict[str, Any]:
        timeline, waits = self._result.timeline, self._result.waits
        rows = np.flatnonzero(np.isin(timeline.rank_class, classes))
        in_order = np.lexsort((waits.start_s, waits.rank_class))
        gaps = in_order[np.isin(waits.rank_class[in_order], classes)]
        ids = timeline.operation[rows]
        operations = timeline.program.operations
        sheets = [self._sheet(operations[i]) for i in ids.tolist()]
        sheets += [self._wait_sheet(waits.category[i]) for i in gaps.tolist()]
        microbatches = [operations[i].microbatch for i in ids.tolist()] + [-1] * gaps.size
        return {
            "step_s": self._result.step_time_s,
            "classes": [self._class(index) for index in classes],
            "lanes": [*self._lanes(classes, rows), *self._wait_lanes(classes, gaps, rows.size)],
            "start_s": packed(np.concatenate([timeline.start_s[rows], waits.start_s[gaps]])),
            "end_s": packed(np.concatenate([timeline.end_s[rows], waits.end_s[gaps]])),
            "sheet": packed(np.asarray(sheets, dtype=np.uint32)),
            "microbatch": packed(np.asarray(microbatches, dtype=np.int32)),
            "sheets": self._sheets,
        }

    def _class(self, index: int) -> dict[str, Any]:
        rank_class = self._result.timeline.program.classes[index]
        return {"name": rank_class.name, "ranks": rank_class.count, "cause": rank_class.cause}

    def _lanes(self, classes: Sequence[int], rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        place = {index: position for position, index in enumerate(classes)}
        timeline = self._result.timeline
        keys = timeline.rank_class[rows] * len(STREAMS) + timeline.stream[rows]
        found, first, count = np.unique(keys, return_index=True, return_counts=True)
        return [
            {
                "rank_class": place[key // len(STREAMS)],
                "stream": STREAMS[key % len(STREAMS)].value,
                "first": start,
                "count": size,
            }
            for key, start, size in zip(found.tolist(), first.tolist(), count.tolist(), strict=True)
        ]

    def _wait_lanes(
        self, classes: Sequence[int], gaps: NDArray[np.int64], offset: int
    ) -> list[dict[str, Any]]:
        owners = self._result.waits.rank_class[gaps]
        first = np.searchsorted(owners, classes, side="left")
        count = np.searchsorted(owners, classes, side="right") - first
        return [
            {"rank_class": place, "stream": WAITS, "first": offset + start, "count": size}
            for place, (start, size) in enumerate(zip(first.tolist(), count.tolist(), strict=True))
            if size
        ]

    def _sheet(self, operation: Operation) -> int:
        taken, given, held = (
            self._bytes(blocks)
            for blocks in (
                operation.takes + operation.leaves, operation.gives + operation.frees,
                operation.holds,
            )
        )  # fmt: skip
        key = (
            operation.kind, operation.category, self._content(operation), operation.chunk,
            operation.layers, taken, given, held,
        )  # fmt: skip
        known = self._sheet_of.get(key)
        if known is None:
            known = self._sheet_of[key] = len(self._sheets)
            work = operation.work
            self._sheets.append(
                {
                    "name": style.words(operation.kind),
                    "category": style.words(operation.category),
                    "bands": self._bands(operation),
                    "chunk": operation.chunk if self._chunks > 1 else -1,
                    "layers": list(operation.layers),
                    "alone_s": work.seconds,
                    "flop": work.flop,
                    "bytes": work.num_bytes,
                    "taken_bytes": taken,
                    "given_bytes": given,
                    "held_bytes": held,
                    "parts": [
                        [part.name, style.words(part.category), part.seconds, part.repeats]
                        for part in work.parts
                    ],
                    "sources": _rests_on(operation, self._blocks),
                }
            )
        return known

    def _content(self, operation: Operation) -> int:
        """A number that two operations share where their work looks the same."""
        work = operation.work
        known = self._content_of.get(id(work))
        if known is None:
            sources = tuple(_rests_on(operation, self._blocks))
            content = (work.seconds, work.flop, work.num_bytes, work.parts, sources)
            number = self._contents.setdefault(content, len(self._contents))
            known = self._content_of[id(work)] = (work, number)
        return known[1]

    def _bands(self, operation: Operation) -> list[tuple[Color, float]]:
        """Colours of a box from its top, and their shares of its height."""
        kind_color = style.KIND_COLOR[operation.kind]
        own = style.chunk_shade(kind_color, operation.chunk, self._chunks)
        if operation.category in (Category.DATA_PARALLEL, Category.PIPELINE):
            return [(both(own), 1.0)]
        found = [
            (both(own if band is None else style.CATEGORY_COLOR[band]), share)
            for band, share in bands(operation)
        ]
        return found or [(both(own), 1.0)]

    def _wait_sheet(self, category: Category) -> int:
        known = self._sheet_of.get(category)
        if known is None:
            known = self._sheet_of[category] = len(self._sheets)
            face, hatch = style.wait_face(category), style.wait_hatch_color(category)
            self._sheets.append(
                {
                    "name": style.wait_words(category),
                    "category": style.words(category),
                    "bands": [((face, style.mix(hatch, style.DARK_PAGE, 0.75)), 1.0)],
                    "hatch": (hatch, style.mix(hatch, style.DARK_PAGE, 0.4)),
                }
            )
        return known

    def _bytes(self, blocks: Memory) -> float:
        """Sum of some blocks; operations that do the same share their blocks."""
        known = self._held.get(id(blocks))
        if known is None:
            known = self._held[id(blocks)] = (blocks, total_bytes(blocks))
        return known[1]
