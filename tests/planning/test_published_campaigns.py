"""The table of published campaigns."""

import csv
from pathlib import Path

REPORTED = Path(__file__).parents[2] / "reports" / "data" / "campaigns.csv"


def test_no_remark_of_the_table_is_cut_at_a_comma():
    with REPORTED.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert [row["name"] for row in rows if None in row] == []
