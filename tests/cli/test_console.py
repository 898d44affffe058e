"""Does a table reach a person whole, however narrow the terminal is?"""

from __future__ import annotations

import re
import sys

import pytest

from simulator.cli.console import number_columns, print_table, text_columns

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
    _, head, *body = terminal(columns)
    assert head.split() == ["stage", "tokens/s", "per", "GPU", "lost", "to"]
    words = " ".join(body).split()
    assert sorted(words) == sorted(" ".join(ROW).split())


def test_words_are_folded_to_the_width_of_the_terminal(terminal):
    lines = terminal(60)
    assert len(lines) > 4
    assert max(map(len, lines)) <= 60
    assert len(terminal(200)) == 4
