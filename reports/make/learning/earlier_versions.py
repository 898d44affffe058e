"""What would earlier versions of the simulator have predicted for the runs of today's tables?

Each version is checked out beside this one and predicts the tables as they are read now, but
without facts of their sources. A version that is in the file already is not asked again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from reports.make.accuracy.first_sight_page import STATED
from simulator.cells import Row
from simulator.errors import InputError
from simulator.files import whole_file
from simulator.validate.first_sight import read_first_sight

REFUSED = "refused"
"""Cell of a run that a version could not predict."""
NEWEST = "newest"
"""The version that asks the others."""
_ID = "id"
_DECIMALS = 1


class Version(NamedTuple):
    """A version that saw runs first.

    Attributes:
        commit: What git calls it.
        moment: When it was made, as YYYY-MM-DDThh:mm.
    """

    commit: str
    moment: str

    @property
    def column(self) -> str:
        """Its name in the file."""
        return f"{self.moment} {self.commit}"


def versions_of(first_sight: Sequence[Row], repository: Path) -> list[Version]:
    """Every version that saw runs first, the oldest first."""
    commits = dict.fromkeys(row["seen_by"] for row in first_sight)
    dated = sorted((_git(repository, "log", "-1", "--format=%cI", each), each) for each in commits)
    return [Version(commit, moment[:16]) for moment, commit in dated]


def predicted_errors(tree: Path, tables: Sequence[Path]) -> dict[str, str]:
    """Signed errors of the step time [%] by run, as cells, by the simulator of a source tree.

    Tables are copied, so that no file of facts lies beside them.
    """
    cells: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for table in tables:
            copy = Path(folder) / table.name
            copy.write_bytes(table.read_bytes())
            words = ("simulator", "validate", "published", str(copy), "--json")
            environment = {**os.environ, "PYTHONPATH": str(tree)}
            answer = subprocess.run(
                [sys.executable, "-m", *words],
                cwd=tree,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if answer.stdout.strip():
                cells.update(_cells(json.loads(answer.stdout)["rows"]))
    return cells


def _cells(rows: Sequence[Mapping[str, object]]) -> dict[str, str]:
    errors = {str(row[_ID]): row.get("error_pct") for row in rows}
    return {
        name: REFUSED if error is None else f"{error:.{_DECIMALS}f}"
        for name, error in errors.items()
    }


@contextmanager
def _checked_out(repository: Path, version: Version) -> Iterator[Path]:
    """The files of a version, in a folder that goes when they are no longer needed."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / version.commit
        _git(repository, "worktree", "add", "--detach", str(tree), version.commit)
        try:
            yield tree
        finally:
            _git(repository, "worktree", "remove", "--force", str(tree))


def _git(repository: Path, *words: str) -> str:
    answer = subprocess.run(
        ["git", *words],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        rule = f"failed: {answer.stderr.strip()}"
        hint = "earlier versions need a clone with the whole history"
        raise InputError.single(f"git {words[0]}", rule, words[-1], hint)
    return answer.stdout.strip()


def read_errors(path: Path) -> pd.DataFrame:
    """What versions said: one row a run, one column a version; empty where one was not asked."""
    if not path.exists():
        return pd.DataFrame(index=pd.Index([], name=_ID), dtype=str)
    return pd.read_csv(path, dtype=str, keep_default_na=False).set_index(_ID)


def write_errors(path: Path, errors: pd.DataFrame) -> None:
    """One column a version, the oldest first; the newest comes last."""
    in_time = sorted(errors.columns, key=lambda name: (name == NEWEST, name))
    with whole_file(path) as draft:
        errors[in_time].to_csv(draft, lineterminator="\n")


def counts(row: Row) -> bool:
    """Whether a run of a file of first sights says all that decides its step, and the step."""
    return row["grade"] in STATED and bool(row["measured_step_s"])


def _runs_of(table: Path, counted: Collection[str]) -> list[str]:
    return [run for run in pd.read_csv(table, usecols=[_ID])[_ID] if run in counted]


def _asked(errors: pd.DataFrame, column: str, runs: list[str]) -> bool:
    return column in errors and bool((errors.loc[runs, column] != "").any())


def main() -> None:
    """Ask every version that the file lacks, and the newest; keep what each says at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first_sight", type=Path, help="predictions of unseen runs (CSV)")
    parser.add_argument("errors", type=Path, help="what earlier versions say (CSV), completed")
    parser.add_argument("tables", type=Path, nargs="+", help="tables of runs (CSV)")
    options = parser.parse_args()
    repository = Path(__file__).resolve().parents[3]
    first_sight = read_first_sight(options.first_sight)
    counted = {row[_ID] for row in first_sight if counts(row)}
    runs = {table: _runs_of(table, counted) for table in options.tables}
    errors = read_errors(options.errors).reindex([run for each in runs.values() for run in each])
    errors = errors.rename_axis(_ID).fillna("")
    for version in versions_of(first_sight, repository):
        missing = [table for table in runs if not _asked(errors, version.column, runs[table])]
        if missing:
            print(f"{version.column}: {len(missing)} tables", file=sys.stderr)
            with _checked_out(repository, version) as tree:
                cells = predicted_errors(tree, missing)
            before = errors.get(version.column, "")
            found = errors.index.to_series().map(cells)
            errors[version.column] = found.fillna(before)
            write_errors(options.errors, errors)
    print(NEWEST, file=sys.stderr)
    newest = pd.Series(predicted_errors(repository, list(runs)))
    errors[NEWEST] = newest.reindex(errors.index).fillna("")
    write_errors(options.errors, errors)


if __name__ == "__main__":
    main()
