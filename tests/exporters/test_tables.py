"""Tables: the rows a person reads."""

from __future__ import annotations

from dataclasses import replace

from simulator.exporters.tables import breakdown_table, memory_table, summary_table
from tests.factories import GIB, Pipeline

# 4 stages, 8 microbatches, forward 1 s, backward 2 s: 33 s, of which 9 s bubble.
RESULT = Pipeline(stages=4, microbatches=8).result()


def test_the_breakdown_lists_categories_with_time_and_adds_up_to_the_step() -> None:
    assert breakdown_table(RESULT).rows == [
        ("forward", "8.00 s", "24.2 %", "8.00 s", "8.00 s"),
        ("backward", "16.0 s", "48.5 %", "16.0 s", "16.0 s"),
        ("bubble", "9.00 s", "27.3 %", "9.00 s", "9.00 s"),
        ("step", "33.0 s", "100.0 %", "", ""),
    ]


def test_memory_has_a_row_per_stage_and_a_column_per_owner() -> None:
    table = memory_table(RESULT)
    cells = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [cell["stage"] for cell in cells] == [f"stage {i}" for i in range(4)]
    assert [cell["activations"] for cell in cells] == [f"{i}.00 GiB" for i in (4, 3, 2, 1)]
    assert [cell["logits"] for cell in cells] == ["0 B", "0 B", "0 B", "2.00 GiB"]
    assert {cell["fits"] for cell in cells} == {"yes"}
    assert "gathered weights" not in table.columns


def test_memory_that_does_not_fit_says_by_how_much() -> None:
    needed = RESULT.memory[0].peak_device_bytes
    table = memory_table(replace(RESULT, capacity_bytes=needed - 0.5 * GIB))
    fits = [row[table.columns.index("fits")] for row in table.rows]
    assert fits == ["no, 512 MiB over", "yes", "yes", "yes"]


def test_the_summary_has_the_figures_of_the_step() -> None:
    cells = dict(summary_table(RESULT).rows)
    assert cells["step time"] == "33.0 s"
    assert cells["MFU"] == "40.4 %"
    assert cells["bubble"] == "27.3 %"
    assert cells["exposed communication"] == "0.0 %"
    assert cells["peak memory"].endswith("of 80.0 GiB")
