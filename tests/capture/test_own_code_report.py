"""Code over other libraries, captured: the rows, the table and the page of the report."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace

import pytest

from reports.make.captures.own_code import (
    Row,
    given_rows,
    page,
    ran,
    read_table,
    rows_of,
    write_table,
)
from simulator.errors import InputError
from tests.capture.test_examples import HOME

ROW = Row("a", 64, 8, 50.0, 20.0, 2.5, 0.125, 30.0, 1.5, 1.0)
GIVEN = {"a": {"gpus": [64], "seconds": 60, "gib": 6}}


def test_a_table_reads_as_it_was_written(tmp_path):
    file = tmp_path / "rows.csv"
    assert read_table(file) == []
    write_table([ROW], file)
    assert read_table(file) == [ROW]


def test_the_page_holds_the_time_of_a_processor_and_the_memory_against_the_limits():
    text = page([ROW], GIVEN)
    assert "| a | 64 | 50 s, 20 s of 60 | 2.5 GiB of 6 | 0.125 s | 30.0 GiB | 0.50 s |" in text
    assert "within their limits: 1 of 1" in text
    for far in ({"processor_s": 61.0}, {"memory_gib": 6.5}):
        assert "within their limits: 0 of 1" in page([replace(ROW, **far)], GIVEN)
    assert "within 1 s: 0 of 1" in page([replace(ROW, run_s=2.5)], GIVEN)


def test_rows_of_the_report_are_examples_and_kept_rows_are_among_them():
    given = given_rows()
    assert all((HOME / "workloads/capture" / row["script"]).is_file() for row in given.values())
    kept = {(row.name, row.gpus) for row in read_table()}
    assert kept <= {(name, gpus) for name, row in given.items() for gpus in row["gpus"]}


def test_every_network_of_the_families_is_a_row():
    code = ast.parse((HOME / "workloads/capture/families.py").read_text(encoding="utf-8"))
    (models,) = (
        node.value
        for node in code.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "MODELS"
    )
    assert isinstance(models, ast.Dict)
    named = {key.value for key in models.keys if isinstance(key, ast.Constant)}
    rows = (row for row in given_rows().values() if row["script"] == "families.py")
    assert {row["arguments"].split()[1] for row in rows} == named


def test_a_missing_library_is_said_with_what_to_install():
    row = {**given_rows()["T5 3B"], "needs": ["no_such_library"]}
    with pytest.raises(InputError, match=r"no_such_library[\s\S]*pip install"):
        list(rows_of("T5 3B", row, sys.executable))
    with pytest.raises(InputError, match="cannot be run"):
        list(rows_of("T5 3B", row, "no/such/python"))


def test_a_command_that_fails_is_said_with_its_last_words(tmp_path):
    assert ran([sys.executable, "-c", "print(1)"], tmp_path).output.strip() == "1"
    fails = [sys.executable, "-c", "import sys; print('it broke', file=sys.stderr); sys.exit(2)"]
    with pytest.raises(InputError, match=r"ended with 2[\s\S]*it broke"):
        ran(fails, tmp_path)
