"""Is a run counted once, whoever found the thread that tells of it?"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from tests.csv_files import read_rows

_DATA = Path(__file__).parents[2] / "reports/data"
_TABLES = (
    *sorted(_DATA.glob("runs_*.csv")),
    _DATA / "memory_gathered.csv",
    _DATA / "out_of_memory.csv",
)


def test_runs_of_one_thread_stand_in_one_table():
    """Two people who gather from one thread otherwise count its runs twice."""
    tables: dict[str, set[str]] = defaultdict(set)
    for table in _TABLES:
        for row in read_rows(table):
            for thread in re.findall(r"github\.com/(\S+?/(?:issues|pull)/\d+)", row["source"]):
                tables[thread.lower()].add(table.name)
    assert {thread: names for thread, names in tables.items() if len(names) > 1} == {}
