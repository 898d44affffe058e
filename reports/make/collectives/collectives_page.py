"""Writes reports/collectives.md: how good are predicted exchanges, and where do profiles come from?

Run with a table of :mod:`reports.make.collectives.left_out`, one of overlaps, and those of measured
collectives.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from reports.make.collectives.left_out import Prediction, read_predictions
from reports.make.collectives.overlaps import Pair, fitted_accesses, halves, pairs
from simulator.described.cluster.common import shipped_common
from simulator.described.load import load_profile, profile_names
from simulator.validate.collective_errors import validate_collectives

_KINDS = ("measured", "fitted", "published", "datasheet", "assumed")


def page(left_out: Path, overlaps: Path, tables: Sequence[Path]) -> Iterator[str]:
    """The lines of the page.

    Args:
        left_out: Errors with and without the source of each row.
        overlaps: Products beside collectives.
        tables: Measured collectives.
    """
    found = read_predictions(left_out)
    yield "# Collectives, and computing beside them"
    yield ""
    yield "Made by `make collectives` from published nccl-tests and rccl-tests rows"
    yield f"({', '.join(f'`{table.name}`' for table in tables)})."
    yield "*Shipped* are the profiles as they are, which are fitted to these rows. *Left out*: a"
    yield "source, what one team measured on one kind of GPU, is predicted with networks fitted to"
    yield "all others."
    yield ""
    yield from _errors(found, "all", lambda _: "all rows")
    yield from _refused(tables)
    yield ""
    yield "## By links"
    yield ""
    yield "Fabrics where rows cross them, else the links inside a node or a rack."
    yield ""
    yield from _errors(found, "links", lambda each: each.links)
    yield ""
    yield "## By source"
    yield ""
    yield "Where a team is the only one with a kind of GPU or fabric, the left-out figure is that"
    yield "of its relatives alone."
    yield ""
    yield from _errors(found, "source", lambda each: each.source)
    yield ""
    yield from _overlap_lines(pairs(overlaps))
    yield ""
    yield from _provenance_lines()


def _errors(
    found: Sequence[Prediction], name: str, group_of: Callable[[Prediction], str]
) -> Iterator[str]:
    yield f"| {name} | rows | shipped: median | 90 % within | left out: median | 90 % within |"
    yield "|---|--:|--:|--:|--:|--:|"
    groups: dict[str, list[Prediction]] = {}
    for each in found:
        groups.setdefault(group_of(each), []).append(each)
    for group, members in sorted(groups.items()):
        cells = [
            cell
            for errors in (
                [abs(each.shipped_error) for each in members],
                [abs(each.left_out_error) for each in members],
            )
            for cell in (f"{statistics.median(errors):.1%}", f"{_within(errors):.1%}")
        ]
        yield f"| {group} | {len(members)} | {' | '.join(cells)} |"


def _within(errors: Sequence[float]) -> float:
    return sorted(errors)[int(0.9 * (len(errors) - 1))]


def _refused(tables: Sequence[Path]) -> Iterator[str]:
    rows = [row for table in tables for row in validate_collectives(table).rows]
    reasons = Counter(row.skipped for row in rows if row.skipped)
    yield ""
    yield f"Of {len(rows)} rows {sum(reasons.values())} are refused:"
    yield ""
    for reason, count in reasons.most_common():
        yield f"- {count}: {reason}"


def _overlap_lines(measured: Sequence[Pair]) -> Iterator[str]:
    fitted, other = halves(measured)
    accesses = shipped_common().memory_accesses_per_link_byte
    yield "## Computing beside a collective"
    yield ""
    yield "A collective takes its multiprocessors, one per channel, and for every byte on its links"
    yield f"{accesses:g} bytes of memory traffic from what computes beside it; the even half of the"
    yield f"pairs says {fitted_accesses(fitted):.3g}. Both engines use this law. Balanced pairs,"
    yield "with parts within a third of each other, take so many times the longer part. Copies to"
    yield "and from the host slow nothing; measured between nodes, they and collectives take turns."
    yield ""
    yield "| pairs | rows | median error | balanced, measured | balanced, predicted |"
    yield "|---|--:|--:|--:|--:|"
    for half, some in (("fitted", fitted), ("other", other)):
        for inside, place in ((True, "inside a node"), (False, "between nodes")):
            group = [pair for pair in some if pair.inside is inside]
            error = statistics.median(abs(pair.error(accesses)) for pair in group)
            yield (
                f"| {half} half, {place} | {len(group)} | {error:.1%} | "
                f"{_stretch(group, lambda pair: pair.together_s)} | "
                f"{_stretch(group, lambda pair: pair.predicted_s(accesses))} |"
            )


def _stretch(group: Sequence[Pair], together_s: Callable[[Pair], float]) -> str:
    stretches = [
        together_s(pair) / max(pair.product_s, pair.collective_s)
        for pair in group
        if min(pair.product_s, pair.collective_s) > 0.75 * max(pair.product_s, pair.collective_s)
    ]
    return f"{statistics.median(stretches):.2f}" if stretches else ""


def _provenance_lines() -> Iterator[str]:
    yield "## What the numbers of profiles rest on"
    yield ""
    yield "Numbers of each shipped profile, without those that hold on every system."
    yield ""
    yield f"| profile | {' | '.join(_KINDS)} |"
    yield "|---|" + "--:|" * len(_KINDS)
    for name in profile_names():
        sources = load_profile(name).provenance.items()
        kinds = Counter(source.kind for path, source in sources if not path.startswith("common."))
        yield f"| {name} | {' | '.join(str(kinds[kind]) for kind in _KINDS)} |"


if __name__ == "__main__":
    errors_file, overlaps_file, *measured_tables = map(Path, sys.argv[1:])
    sys.stdout.write("\n".join(page(errors_file, overlaps_file, measured_tables)) + "\n")
