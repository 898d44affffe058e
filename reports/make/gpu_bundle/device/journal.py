"""How is every finished measurement safe on the disk, and known to the next call?"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any


class Journal:
    """One JSON object per line and finished item, synchronised to the disk at once.

    Args:
        path: The file; half a line, of a call that was killed, is cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        self.records: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]

    @property
    def done(self) -> set[str]:
        """Items that need not be measured again."""
        return {record["id"] for record in self.records}

    @property
    def lost(self) -> set[str]:
        """Items that two calls began and did not survive; one may have run out of its time."""
        begun = Counter(record["of"] for record in self.records if record["kind"] == "begin")
        return {name for name, times in begun.items() if times > 1} - self.done

    def add(self, record: dict[str, Any]) -> None:
        """Write a record down."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.records.append(record)
