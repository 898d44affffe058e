"""Does a table reach a person whole, however narrow the terminal is?"""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext

import pytest

from simulator.cli import console
from simulator.cli.console import amounts, counting, number_columns, print_table, text_columns

COLUMNS = text_columns("stage") + number_columns("tokens/s per GPU") + text_columns("lost to")
ROW = ("first", "10,035.8", "bubble 6 % and a network card that is shared")


@pytest.fixture
def terminal(monkeypatch, capsys):
    """Print on a terminal of so many columns; returns the lines without colours."""

    def print_on(columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        print_table("plans", COLUMNS, [ROW])
        return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()

    return print_on


@pytest.mark.parametrize("columns", [1, 20, 40, 60])
def test_a_narrow_terminal_leaves_no_column_and_no_figure_out(terminal, columns):
    said = " ".join(terminal(columns)).split()
    assert set(" ".join([*(column.name for column in COLUMNS), *ROW]).split()) <= set(said)


@pytest.mark.parametrize("columns", [20, 40, 60])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_broken(terminal, columns):
    lines = terminal(columns)
    assert max(map(len, lines)) <= columns
    known = {*" ".join([*(column.name for column in COLUMNS), *ROW]).split(), "plans"}
    assert set(" ".join(lines).split()) <= known


def test_columns_that_do_not_fit_follow_behind_the_first(terminal):
    lines = terminal(20)
    assert sum(line.startswith("first") for line in lines) == 2
    assert [line.split()[0] for line in lines if line.startswith("stage")] == ["stage"] * 2


def test_words_are_folded_to_the_width_of_the_terminal(terminal):
    lines = terminal(60)
    assert len(lines) > 4
    assert len(terminal(200)) == 4


@pytest.mark.parametrize(
    ("between_s", "lines"), [(0.0, ["rows: 1 done", "rows: 2 done"]), (60.0, [])]
)
def test_off_a_terminal_long_work_is_heard_of_from_time_to_time(
    monkeypatch, capsys, between_s, lines
):
    monkeypatch.setattr(console, "_BETWEEN_LINES_S", between_s)
    with counting("rows") as count:
        count()
        count()
    assert capsys.readouterr().err.splitlines() == lines


def test_ten_thousand_things_are_told_percent_by_percent(monkeypatch):
    texts: list[str] = []
    monkeypatch.setattr(console, "status_line", lambda: nullcontext(texts.append))
    with amounts("requests") as counted:
        for _ in range(10_000):
            counted(1, 10_000)
    assert len(texts) == 100
    assert texts[-1] == "10,000 of 10,000 requests done"
