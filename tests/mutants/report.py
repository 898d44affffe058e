"""What does a run of mutations say, as a page?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tests.mutants.judging import Outcome

_HEAD = """\
# Mutants

Lines of the core, drawn at random (seed {seed}) and changed in one place each: {count} mutations.
Written by `make mutants`. {survived} of {count} survived: {share:.1%}.

| room | drawn | noticed by golden results | by other tests | survived | share |
|---|---|---|---|---|---|
"""


def report(outcomes: Sequence[Outcome], seed: int) -> str:
    """The page, in Markdown."""
    survived = sum(each.survived for each in outcomes)
    count = len(outcomes)
    head = _HEAD.format(seed=seed, count=count, survived=survived, share=survived / max(1, count))
    rooms = sorted({each.room for each in outcomes})
    rows = [_row(room, [each for each in outcomes if each.room == room]) for room in rooms]
    survivors = "".join(_listed("Survivors", (each for each in outcomes if each.survived)))
    return head + "\n".join([*rows, _row("all", outcomes)]) + "\n" + survivors


def _row(room: str, outcomes: Sequence[Outcome]) -> str:
    survived = sum(each.survived for each in outcomes)
    golden = sum(each.is_golden for each in outcomes)
    count = len(outcomes)
    counts = (count, golden, count - golden - survived, survived)
    return f"| {room} | {' | '.join(map(str, counts))} | {survived / max(1, count):.0%} |"


def _listed(title: str, outcomes: Iterable[Outcome]) -> Iterator[str]:
    yield f"\n## {title}\n\n"
    for each in sorted(outcomes, key=lambda each: (each.path, each.line)):
        yield f"- `{each.path}:{each.line}` ({each.what})\n"
        yield f"  - `{each.before}`\n  - `{each.after}`\n"
