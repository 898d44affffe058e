"""Write ``reports/importers.md``: how public settings files are read.

    python -m reports.make.importers PACKAGES > reports/importers.md

``PACKAGES`` is a folder of unpacked packages; those that are not there are left out.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from reports.make.importers.corpus import settings_files
from reports.make.importers.hints import Help, Outcome, outcome_of
from simulator.importers.formats import FORMATS

_HEAD = """# Settings files of other frameworks

Made by `python -m reports.make.importers PACKAGES`: every file is read as a person would who
follows the ways out that the errors name, for at most five rounds, with 8 GPUs and Llama-3.1-8B
where nobody else says it. *Bare*: as it is. *Options*: after GPUs, model, lengths or definitions
were given. *Ignored*: only by `--ignore` of settings that are not modelled. *Refused*: not at all.

The files are those of packages of the index, unpacked, of one format at most 60 (below), and
settings typed in our own words in `tests/importers`. Formats whose packages ship no settings are
held by few files, and those the importers were written with; their rows say little of other files.
A model that is not shipped counts as an option, for the user can give its `config.json`.

{packages}

| format | files | bare | options | ignored | refused |
|---|---|---|---|---|---|
"""
_KINDS: tuple[Help, ...] = ("bare", "options", "ignored", "refused")
_MOST_REASONS = 25


def main(packages: Path) -> None:
    """Print the report."""
    outcomes: dict[str, list[Outcome]] = {}
    for form, files in settings_files(packages).items():
        for number, file in enumerate(files):
            if number % 20 == 0:
                print(f"{form}: {number} of {len(files)}", file=sys.stderr)
            outcomes.setdefault(form, []).append(outcome_of(FORMATS[form], [Path(file)]))
    names = "\n".join(sorted(f"- `{path.name}`" for path in packages.iterdir() if path.is_dir()))
    print(_HEAD.format(packages=names), end="")
    for form in FORMATS:
        print(_row(form, outcomes.get(form, [])))
    every = [outcome for listed in outcomes.values() for outcome in listed]
    print(_row("**all**", every))
    circular = [outcome.reason for outcome in every if outcome.is_circular]
    print(f"\nWays out that led to the same error again: {len(circular)}.\n")
    _print_counted(circular)
    print("\n## What is refused\n")
    _print_counted(outcome.reason.partition(": ")[2] for outcome in every if outcome.reason)
    print("\n## What is left out most\n")
    _print_counted(
        f"{form}: `{key}`"
        for form, listed in outcomes.items()
        for outcome in listed
        for key in outcome.ignored
    )


def _row(name: str, outcomes: list[Outcome]) -> str:
    counted = Counter(outcome.help for outcome in outcomes)
    total = max(1, len(outcomes))
    cells = (f"{counted[kind]} ({100 * counted[kind] / total:.0f} %)" for kind in _KINDS)
    return f"| {name} | {len(outcomes)} | {' | '.join(cells)} |"


def _print_counted(texts: object) -> None:
    for text, number in Counter(texts).most_common(_MOST_REASONS):  # type: ignore[call-overload]
        print(f"- {number}: {text[:200]}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python -m reports.make.importers PACKAGES (a folder of unpacked packages)")
    main(Path(sys.argv[1]))
