"""``make versions``: do the golden jobs give the same digits on every Python?

``python -m tests.golden.versions PYTHON...``, each with clustersim installed, prints the page
``reports/versions.md``; the first is what the others are held against.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.metadata import version
from typing import Any

from tests.golden.results import job_names, moved, results_of

_LIBRARIES = ("numpy", "pandas", "pydantic", "simpy")


def _results_here() -> dict[str, Any]:
    libraries = ", ".join(f"{library} {version(library)}" for library in _LIBRARIES)
    return {
        "python": platform.python_version(),
        "libraries": libraries,
        "results": {name: results_of(name) for name in job_names()},
    }


def _results_on(python: str) -> dict[str, Any]:
    command = [python, "-m", "tests.golden.versions"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def page(found: list[dict[str, Any]]) -> str:
    """The page in Markdown."""
    first = found[0]["results"]
    lines = [
        "# Versions of Python\n",
        "Every golden job, simulated on each; compared are all numbers that `tests/golden/` keeps,",
        f"to the last digit, with those of Python {found[0]['python']}. Made by `make versions`.\n",
        "| Python | libraries | jobs | jobs that differ | numbers that differ |",
        "|---|---|---:|---:|---:|",
    ]
    for each in found:
        counts = [len(moved(first.get(name, {}), each["results"][name])) for name in first]
        differ = sum(map(bool, counts))
        lines.append(
            f"| {each['python']} | {each['libraries']} | {len(counts)} | {differ} | {sum(counts)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(page([_results_on(python) for python in sys.argv[1:]]))
    else:
        print(json.dumps(_results_here()))
