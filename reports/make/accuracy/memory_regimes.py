"""Is predicted memory surer of some runs than of others, as far as is known before they run?

Runs with and without a trait (:data:`~reports.make.fit.memory_errors.TRAITS`) are held against the
one spread that all other sources give, and against one that only those give that have the trait, or
lack it, as the run does. A spread of its own is worth having where it gives the runs of a source
that it has not seen a higher density; and where it does not, one spread stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean
from typing import NamedTuple

from reports.make.fit.memory_errors import TRAITS, MemoryResidual, fitted_spread, log_density
from simulator.processor import core_count

_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
_LEAST_SOURCES = 5
"""Sources that a group must have for its shares to be shown."""
_LEAST_OF_A_SPREAD = 2
"""Sources that a spread must rest on; with fewer, it is that of all."""

_HEAD = """## Surer of some than of others?

What share of runs holds no more than is allowed at a probability, by what is known of a run before
its error is: sources counted alike, each held against what all others give; groups of five sources
and more. The last two columns are the mean logarithm of the density of runs of a source that was
left out, over all runs, with the one spread and with a spread for each of the two groups. More is
better; sources differ so much that steps of less than a tenth are chance.
"""


class Placed(NamedTuple):
    """Where the memory of a run lies in the distribution that other sources give."""

    source: str
    probability: float
    traits: frozenset[str] = frozenset()


class SplitScore(NamedTuple):
    """Mean logarithm of the density of runs that were left out, sources counted alike.

    Attributes:
        one: With one spread.
        two: With one for runs that have the trait and one for those that do not.
    """

    one: float
    two: float


def split_scores(known: Sequence[MemoryResidual]) -> dict[str, SplitScore]:
    """What a spread of its own for each trait is worth."""
    names = ("", *TRAITS)
    with ProcessPoolExecutor(core_count()) as executor:
        scores = dict(
            zip(names, executor.map(left_out_score, [known] * len(names), names), strict=True)
        )
    return {name: SplitScore(scores[""], scores[name]) for name in TRAITS}


def left_out_score(known: Sequence[MemoryResidual], trait: str = "") -> float:
    """The same of one trait, or with one spread for all where none is given."""
    densities: dict[str, list[float]] = {}
    for has in (True, False) if trait else (False,):
        group = [each for each in known if (trait in each.traits) is has]
        for source in {each.source for each in group}:
            others = [each for each in group if each.source != source]
            if len({each.source for each in others}) < _LEAST_OF_A_SPREAD:
                others = [each for each in known if each.source != source]
            spread = fitted_spread(others)
            own = [each.log_ratio for each in group if each.source == source]
            densities.setdefault(source, []).extend(log_density(spread, ratio) for ratio in own)
    return fmean(fmean(of_source) for of_source in densities.values())


def share_within(found: Sequence[Placed], level: float) -> float:
    """Share of runs at or below a probability; sources count the same."""
    by_source: dict[str, list[bool]] = {}
    for each in found:
        by_source.setdefault(each.source, []).append(each.probability <= level)
    return fmean(fmean(inside) for inside in by_source.values())


def regimes_section(found: Sequence[Placed], scores: Mapping[str, SplitScore]) -> str:
    """Shares and scores in Markdown.

    Args:
        found: All runs.
        scores: What a spread of its own is worth, by trait.
    """
    lines = [_HEAD, f"| runs | sources | {' | '.join(f'{p:.0%}' for p in _LEVELS)} | one | two |"]
    lines += ["|---|---:|" + "---:|" * (len(_LEVELS) + 2)]
    for trait, score in scores.items():
        for has, words in ((True, trait), (False, f"without {trait}")):
            group = [each for each in found if (trait in each.traits) is has]
            sources = len({each.source for each in group})
            if sources < _LEAST_SOURCES:
                continue
            shares = " | ".join(f"{share_within(group, p):.0%}" for p in _LEVELS)
            ends = f"{score.one:.2f} | {score.two:.2f}" if has else " | "
            lines.append(f"| {words} | {sources} | {shares} | {ends} |")
    return "\n".join(lines) + "\n"
