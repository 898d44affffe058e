"""The table of published campaigns."""

from pathlib import Path

from tests.csv_files import read_rows

REPORTED = Path(__file__).parents[2] / "reports" / "data" / "campaigns.csv"


def test_no_remark_of_the_table_is_cut_at_a_comma():
    rows = read_rows(REPORTED)
    assert rows
    assert [row["name"] for row in rows if None in row] == []
