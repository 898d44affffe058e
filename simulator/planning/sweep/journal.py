"""How does a sweep that was killed go on where it stopped?

Every finished row is appended, as one line of JSON, to a journal beside the table. A line
that was cut off by the end of the process is dropped; its row is computed again. The first
line says which sweep the rows belong to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from simulator.errors import InputError

Row = dict[str, Any]


def fingerprint(part: object) -> str:
    """A short text that differs where the plain data differs."""
    import hashlib

    text = json.dumps(part, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def journal_path(table: Path) -> Path:
    """The journal of a table: beside it, with one more suffix."""
    return table.with_name(f"{table.name}.journal")


class Journal:
    """Rows that are finished, kept on disk one by one; a context manager.

    Args:
        path: The journal's file; made if it is not there.
        identity: What the rows belong to, as fingerprints by name, for example ``job``.

    Raises:
        InputError: The file holds the rows of another sweep, or cannot be read or written.
    """

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        self.path = path
        self.rows: dict[int, Row] = {}
        """Finished rows by their number, those of earlier runs first."""
        self._identity = dict(identity)
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            whole_bytes = self._read()
            self._file = self.path.open("ab")
            if self.path.stat().st_size > whole_bytes:
                self._file.truncate(whole_bytes)
            if not whole_bytes:
                self._write(self._identity)
        except OSError as error:
            rule = f"cannot be written: {error.strerror}"
            raise InputError.single("--out", rule, str(self.path)) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, number: int, row: Row) -> None:
        """Keep a finished row; once this returns, the end of the process cannot lose it."""
        self.rows[number] = row
        self._write({"number": number, "row": row})

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line, default=str).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> int:
        """Take over the rows of earlier runs; returns how many bytes are whole lines."""
        if not self.path.exists():
            return 0
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if not lines:
            return 0
        try:
            self._check(json.loads(lines[0]))
            entries = [json.loads(line) for line in lines[1:]]
            self.rows = {int(entry["number"]): entry["row"] for entry in entries}
        except (ValueError, KeyError, TypeError) as error:
            raise self._refusal("is no journal of a sweep") from error
        return len(whole)

    def _check(self, identity: Mapping[str, str]) -> None:
        changed = [name for name in self._identity if identity.get(name) != self._identity[name]]
        if changed:
            raise self._refusal(f"belongs to another sweep: {' and '.join(changed)} differ")

    def _refusal(self, rule: str) -> InputError:
        hint = "take another --out, or --fresh to drop the rows that it holds"
        return InputError.single("--out", rule, str(self.path), hint)
