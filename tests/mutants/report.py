"""What does a run of mutations say, as a page?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tests.mutants.judging import Outcome

_HEAD = """\
# Mutants

Lines of the core, drawn at random (seed {seed}) and changed in one place each: {count} mutations.
An *oracle* is a test whose answer comes from elsewhere (torch, a closed form, a published table, a
property). *Golden numbers* notice that something moved and cannot say what is right.

Written by `make mutants`. {survived} of {count} survived: {share:.1%}.

| room | drawn | noticed by an oracle | by golden numbers alone | survived | share |
|---|---|---|---|---|---|
"""


def report(outcomes: Sequence[Outcome], seed: int) -> str:
    """The page, in Markdown."""
    survived = sum(each.survived for each in outcomes)
    count = len(outcomes)
    head = _HEAD.format(seed=seed, count=count, survived=survived, share=survived / max(1, count))
    rooms = sorted({each.room for each in outcomes})
    rows = [_row(room, [each for each in outcomes if each.room == room]) for room in rooms]
    table = "\n".join([*rows, _row("all", outcomes)])
    parts = [
        *_listed("Survivors", (each for each in outcomes if each.survived)),
        *_listed("Golden numbers alone", (each for each in outcomes if each.is_golden_only)),
    ]
    return head + table + "\n" + "".join(parts)


def _row(room: str, outcomes: Sequence[Outcome]) -> str:
    survived = sum(each.survived for each in outcomes)
    golden = sum(each.is_golden_only for each in outcomes)
    count = len(outcomes)
    counts = (count, count - golden - survived, golden, survived)
    return f"| {room} | {' | '.join(map(str, counts))} | {survived / max(1, count):.0%} |"


def _listed(title: str, outcomes: Iterable[Outcome]) -> Iterator[str]:
    yield f"\n## {title}\n\n"
    for each in sorted(outcomes, key=lambda each: (each.path, each.line)):
        yield f"- `{each.path}:{each.line}` ({each.what})\n"
        yield f"  - `{each.before}`\n  - `{each.after}`\n"
