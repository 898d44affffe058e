"""Schedules at equal work against the closed forms of their papers."""

import pytest

from simulator.errors import InputError
from simulator.schedule import SCHEDULES
from simulator.schedule.unit_run import compare


def by_name(names, *sizes, **options):
    comparison = compare(names, *sizes, **options)
    return {
        run.info.name: (run, peak)
        for run, peak in zip(comparison.runs, comparison.relative_peaks, strict=True)
    }


@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 16), (8, 16)])
def test_a_step_is_the_work_and_the_bubble_of_the_paper(p, m):
    found = by_name(["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "dualpipe"], p, m, chunks=2)
    steps = {name: run.step_time for name, (run, _) in found.items()}
    assert steps == {
        "gpipe": 3 * m + 3 * (p - 1),
        "1f1b": 3 * m + 3 * (p - 1),
        "interleaved-1f1b": 3 * m + 3 * (p - 1) / 2,
        "zb-h1": 3 * m + (p - 1),
        "dualpipe": 3 * m + 2 * (p / 2 - 1),
    }


def test_activations_are_compared_with_those_of_1f1b():
    found = by_name(["gpipe", "1f1b", "zb-h2", "v-half", "v-min"], 8, 32)
    assert {name: peak for name, (_, peak) in found.items()} == {
        "gpipe": 32 / 8,
        "1f1b": 1,
        "zb-h2": 15 / 8,
        "v-half": 5 / 8,
        "v-min": 4 / 8,
    }


def test_chunks_go_to_the_schedules_that_run_with_so_many():
    found = by_name(["1f1b", "interleaved-1f1b", "zb-v"], 4, 8, chunks=4)
    assert {name: run.chunks for name, (run, _) in found.items()} == {
        "1f1b": 1, "interleaved-1f1b": 4, "zb-v": 2,
    }  # fmt: skip


def test_chunks_that_no_schedule_runs_with_are_refused():
    with pytest.raises(InputError, match="--vpp = 3: none of these schedules uses it"):
        compare(["1f1b", "zb-v"], 4, 8, chunks=3)


def test_all_schedules_can_be_compared_and_written_as_plain_data():
    rows = compare(list(SCHEDULES), 4, 8).to_dict()["schedules"]
    assert [row["schedule"] for row in rows] == list(SCHEDULES)
    assert {row["busy"] for row in rows} == {24}
