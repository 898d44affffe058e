"""What was measured in a file of nccl-tests or rccl-tests, text or JSON?

- ``nccl_tests_text.py``: what they print.
- ``nccl_tests_json.py``: what ``-J FILE`` writes.
- ``nccl_tests_run.py``: from a run to rows, with the reasons for what is left out.
"""

from __future__ import annotations

import datetime
from pathlib import Path

from simulator.files import read_text as read_file
from simulator.importers.nccl_tests.nccl_tests_json import read_json
from simulator.importers.nccl_tests.nccl_tests_run import CollectiveFile, file_of_runs
from simulator.importers.nccl_tests.nccl_tests_text import read_text

MAX_OUTPUT_BYTES = 32 * 1024**2
"""Larger files are refused; a run prints some thousand bytes."""
_WANTED = "give what nccl-tests or rccl-tests print, or the JSON that they write"


def read_nccl_tests(path: str | Path, *, partial: bool = False) -> CollectiveFile:
    """The measured collectives of a file, and what became of the rest of it.

    Times are those out of place. Hosts are counted, their names are not kept; nor is the
    environment that the JSON holds.

    Args:
        path: Text as nccl-tests or rccl-tests print it, or JSON as nccl-tests writes it.
        partial: Take the rows of runs that were cut off, instead of refusing the file.

    Raises:
        InputError: Another kind of file, a run that was cut off, or one that contradicts
            itself; with the line.
    """
    file = Path(path)
    text = read_file(file, _WANTED, max_bytes=MAX_OUTPUT_BYTES, errors="replace")
    modified_s = file.stat().st_mtime
    date = ""
    if text.lstrip().startswith("{"):
        runs, assumed, date = read_json(text, file.name, partial=partial)
    else:
        runs, assumed = read_text(text, file.name, partial=partial)
    modified = datetime.datetime.fromtimestamp(modified_s, datetime.UTC)
    return file_of_runs(runs, file.name, assumed, date or modified.date().isoformat())
