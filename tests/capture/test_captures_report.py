"""Captured steps of plain torch code, and the simulator's own programs of the same jobs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from reports.make.captures.captured_case import captured_rank
from reports.make.captures.captures_page import PEAK_LIMIT, STEP_LIMIT, page
from reports.make.captures.cases import Case, all_cases
from reports.make.captures.causes import NOTHING, SYSTEMS, Without
from reports.make.captures.comparison import compared
from reports.make.captures.foundry_rows import (
    capture_name,
    foundry_rows,
    keep,
    kept_captures,
    microbatches,
    script_arguments,
)
from reports.make.captures.published_captures import capture_command
from reports.make.captures.published_rows import (
    CAPTURES,
    both_ways,
    kept_capture,
    not_captured_lines,
    published_file,
    published_rows,
)
from simulator.capture.file import read_capture, write_capture
from simulator.capture.recording import one_rank
from simulator.capture.table import BlockOwner
from simulator.errors import InputError
from simulator.validate.torch_run import parallelise
from tests.capture.made_up import Step, capture_of

pytestmark = pytest.mark.filterwarnings("ignore")
LLAMA = {
    "layers": 4, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336, "vocab": 128256,
}  # fmt: skip
PURE = {"base": "torch@2.11", "keeps_master_weights": False}


def a_case(**plan) -> Case:
    return Case(
        "llama",
        {
            "model": LLAMA,
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 16},
            "batch": {"global": 32, "micro": 2, "seq_len": 4096},
            # The kernel that captures choose is that of torch from 2.11 on.
            "plan": {"precision": "bf16", "stack": "torch@2.11", **plan},
        },
    )


@pytest.mark.parametrize("plan", [{"zero": 3}, {"zero": 3, "zero_group": 8, "recompute": "full"}])
def test_torchs_own_sharding_is_captured_as_the_simulator_builds_it(plan):
    found = captured_rank(a_case(**plan), 0, Path("nothing"))
    result = compared(a_case(**plan), found, ("h100-sxm-80gb",))
    (stage,) = result.stages
    assert stage.exchanges_are_equal
    assert stage.exchanges > 5
    assert stage.tracked_difference == 0
    assert abs(stage.peak_difference) < PEAK_LIMIT
    assert abs(stage.owner_difference[1]) < PEAK_LIMIT
    differences = *result.step_differences, *result.device_differences
    assert max(map(abs, differences)) < STEP_LIMIT
    assert "| llama |" in page([result], [])


def test_every_job_of_the_report_is_one():
    cases = all_cases()
    assert len({case.name for case in cases}) == len(cases) >= 20
    assert all(case.job().cluster.gpus > 1 for case in cases)


def test_a_published_run_is_captured_or_says_why_not():
    given = published_file()
    assert given["published"].keys() | given["not_captured"].keys() <= published_rows().keys()
    assert not given["published"].keys() & given["not_captured"].keys()
    answered = given["published"].keys() | given["not_captured"].keys()
    asked = {run for run in published_rows() if run.startswith(("titan-", "torchao-"))}
    assert asked == {run for run in answered if not run.startswith("llmf-")}


def test_every_kept_capture_is_of_a_published_run_and_says_how_it_was_made():
    given = published_file()
    kept = {file.stem for file in CAPTURES.glob("*.capture")}
    assert kept == set(given["published"].values()) == given["captured"].keys()
    for name, made in given["captured"].items():
        command = capture_command(name, given, "python", Path("out"))
        assert str(made["world"]) in command
        assert Path(command[4]).is_file()
        found = read_capture(CAPTURES / f"{name}.capture")
        assert command[command.index("--device") + 1] == found.device
        assert made["world"] == found.world


def test_a_published_run_has_its_error_by_the_capture_beside_that_by_the_job():
    rows, given = published_rows(), published_file()["published"]
    run = both_ways(rows["titan-037"], kept_capture(given["titan-037"]))
    assert run.errors_pct[0] == pytest.approx(100 * (run.captured_s / 2.8209 - 1))
    assert f"{run.own_s:.3f} s, {run.errors_pct[1]:+.1f} %" in run.line()


def test_every_published_run_of_llm_foundry_has_a_kept_capture_or_a_reason():
    given, rows = published_file(), foundry_rows()
    left_out = {run for run in given["not_captured"] if run.startswith("llmf-")}
    assert len(left_out) + len(rows) == 61 + 52 + 18 + 7
    arguments = {capture_name(row): script_arguments(row) for row in rows.values()}
    assert kept_captures().keys() == arguments.keys()
    assert len(set(arguments.values())) == len(arguments)


def test_a_step_of_many_microbatches_is_a_captured_one_so_often_and_one_optimizers_step():
    row, captures = foundry_rows()["llmf-a100-80-034"], kept_captures()
    assert microbatches(row) == 4
    capture = captures[capture_name(row)]
    one, two, four = (both_ways(row, capture, n).captured_s for n in (1, 2, 4))
    assert four - two == pytest.approx(2 * (two - one))
    assert 0.98 * one < two - one < one


def test_an_archive_of_captures_gives_back_each(tmp_path):
    step = Step()
    step.kernel()
    write_capture(capture_of(step), tmp_path / "one.capture")
    keep(tmp_path, tmp_path / "kept.tar.xz")
    (found,) = kept_captures(tmp_path / "kept.tar.xz").values()
    assert found.tables[0].calls == capture_of(step).tables[0].calls


def test_runs_that_are_not_captured_are_listed_by_their_reason():
    lines = [*not_captured_lines({"a-1": "no code", "a-2": "a value decides", "a-3": "no code"})]
    assert lines[2:] == ["- a-1, a-3: no code", "- a-2: a value decides"]


def test_functions_that_were_imported_before_a_capture_are_answered_too():
    original = parallelise.init_device_mesh
    with one_rank._process_groups(0, 2):
        assert parallelise.init_device_mesh is not original
    assert parallelise.init_device_mesh is original


def test_results_that_are_left_out_take_no_memory_but_for_gradients():
    step = Step()
    step.kernel()
    step.kernel()
    step.block(100, 0, owner=BlockOwner.PARAMETER)
    step.block(1000, 1, 2)
    step.block(10, 1, owner=BlockOwner.GRADIENT)
    capture = capture_of(step)
    for name in ("mm", "mm 4096x4096"):
        (table,) = Without(operators=(name,)).capture(capture).tables
        assert table.held_bytes.tolist() == [100, 110]
    (table,) = Without(operators=("mm 1x1", "bmm")).capture(capture).tables
    assert max(table.held_bytes) == 1110


def test_exchanges_are_compared_in_order_in_any_order_or_by_their_sums():
    first, second = ("all_gather", 8, 4.0, ()), ("all_gather", 8, 2.0, ())
    joined = ("all_gather", 8, 6.0, ())
    here, swapped, apart = {"dp": [first, second]}, {"dp": [second, first]}, {"edp": [joined]}
    assert NOTHING.issued(here) != NOTHING.issued(swapped)
    in_any_order, by_sums = (Without(exchanges=(each,)) for each in ("order", "buckets"))
    assert in_any_order.issued(here) == in_any_order.issued(swapped) != in_any_order.issued(apart)
    assert by_sums.issued(here) == by_sums.issued(apart)


def test_owners_that_are_counted_together_are_one():
    held = Without(together=("a", "b")).held(Counter(a=1, b=2, c=3))
    assert held == {"a and b": 3, "c": 3}


def test_systems_without_a_cause_are_changes_of_a_job():
    job = a_case(zero=3).job()
    changed = job.replace(Without(systems=tuple(SYSTEMS)).changes(job.cluster.profile))
    kernels = changed.cluster.profile.kernels
    assert kernels.launch_s == 0
    assert kernels.row_efficiency == kernels.memory_efficiency


def test_a_reason_that_takes_nothing_away_is_refused():
    with pytest.raises(InputError, match="leaves nothing out"):
        Without.of({"nothing": ["mm"]})
