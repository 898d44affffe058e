"""How long does everything take here, and how long did it take at another commit?

``python -m tests.bench.against COMMIT [CASE ...]`` (or ``make performance-against COMMIT=...``)
measures each case of :mod:`tests.bench.cases` in turn at both, so that a busy machine slows both.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.bench.cases import CASES, ROOT

_PARTS = ("simulator", "hardware_profiles", "workloads")
_TURNS = 2
"""How often each is measured at both; the fastest counts."""


def checked_out(commit: str, folder: Path) -> None:
    """Write what is needed of another commit into a folder."""
    words = ["git", "archive", commit, *_PARTS]
    packed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def measured(name: str, tree: Path) -> tuple[float, float]:
    """Processor time [s] and peak memory [MiB] of a case with the package of a tree."""
    paths = os.pathsep.join([str(tree), str(tree / "simulator" / "import_name"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.cases", name], cwd=tree, check=True,
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    peak_mib, seconds = map(float, done.stdout.split())
    return seconds, peak_mib


def compare(commit: str, names: list[str]) -> None:
    """Print a row per case: processor times here and there, their ratio, memory here."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        checked_out(commit, there)
        print(
            f"| what | here | at {commit} | ratio | peak memory here |\n|---|---:|---:|---:|---:|"
        )
        for name in names:
            turns = [(measured(name, ROOT), measured(name, there)) for _ in range(_TURNS)]
            here_s, there_s = (min(each[side][0] for each in turns) for side in (0, 1))
            peak_mib = max(here[1] for here, _ in turns)
            title, ratio = CASES[name].title, here_s / there_s
            row = f"{1e3 * here_s:,.0f} ms | {1e3 * there_s:,.0f} ms | {ratio:.2f}"
            print(f"| {title} | {row} | {peak_mib:.0f} MiB |", flush=True)


if __name__ == "__main__":
    compare(sys.argv[1], sys.argv[2:] or list(CASES))
