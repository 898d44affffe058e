"""Print ``reports/captures.md``; with words, of the jobs that have one of them in their names."""

from __future__ import annotations

import sys

from reports.make.captures.captured_case import captured_case
from reports.make.captures.captures_page import page
from reports.make.captures.cases import all_cases
from reports.make.captures.comparison import compared
from reports.make.captures.foundry_rows import foundry_section
from reports.make.captures.published_rows import published_section


def main(words: list[str]) -> None:
    """Capture, compare and print."""
    found = []
    for case in all_cases():
        if not words or any(word in case.name for word in words):
            print(case.name, file=sys.stderr)
            found.append(compared(case, captured_case(case)))
    sys.stdout.write(page(found, [*published_section(), *foundry_section()]))


if __name__ == "__main__":
    main(sys.argv[1:])
