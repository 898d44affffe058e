"""How is each item measured in a process of its own, without waiting for torch to be loaded?

While one process measures, the next loads torch and then waits for the name of its item; it touches
no device before it has one.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any


class OwnProcesses:
    """Processes of one command, one of them always ahead.

    Args:
        command: Starts a process that reads an item's name and the file for its answer as one
            JSON line.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._next = self._started()

    def __enter__(self) -> OwnProcesses:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._next.kill()
        self._next.communicate()

    def answer(self, item_id: str, left_s: float) -> dict[str, Any]:
        """What a process of its own says of an item, within some seconds."""
        process, self._next = self._next, self._started()
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "answer.json"
            asked = json.dumps({"id": item_id, "out": str(answer)})
            try:
                _, said = process.communicate(f"{asked}\n", timeout=left_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                return {"skipped": f"took longer than {left_s:.0f} s", "error": "timeout"}
            if not answer.exists():
                last = (said.strip().splitlines() or ["nothing"])[-1]
                return {"skipped": f"its process ended with {process.returncode}: {last[:200]}"}
            found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
            return found

    def wait_until_loaded(self) -> None:
        """Return when the process ahead has loaded torch, which slows the host of others down."""
        if self._next.stdout is not None:
            self._next.stdout.readline()

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


def asked_for(line: str) -> tuple[str, Path]:
    """The item and the file that a line of standard input names."""
    asked: Mapping[str, str] = json.loads(line)
    return asked["id"], Path(asked["out"])
