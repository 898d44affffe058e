"""Do scripts and commands give the same answers, as tables, JSON and pages?"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import clustersim
import pytest

import simulator as sim
from simulator.api import Answer
from simulator.cli import main
from simulator.errors import InputError
from simulator.exporters.html.answer_tables import (
    AnswerPage,
    Bar,
    Cell,
    Column,
    Meaning,
    Table,
    cells,
    columns,
    page_text,
)

ROOT = Path(__file__).parent.parent
JOB = """
    model: {base: llama3.1-8b, layers: 2}
    cluster: {profile: h100-sxm-80gb, gpus: 8}
    batch: {global: 16, seq_len: 1024}
    plan: {tp: 2}
    campaign:
      tokens: 1B
      goodput: 0.9
      systems: {h100-sxm-80gb: {on_demand: 2.5 USD/h}}
"""
FEW = {
    "plan.tp": [1, 2], "plan.pp": [1], "plan.vpp": [1], "plan.cp": [1], "plan.zero": [1],
    "plan.recompute": ["none"], "batch.micro": [1],
}  # fmt: skip
VARY = [
    word
    for path, values in FEW.items()
    for word in ("--vary", f"{path}={','.join(map(str, values))}")
]
ONE = ["--workers", "1"]

ASKED = {
    "plan": (lambda job: sim.plan(job, vary=FEW, workers=1), [*VARY, *ONE]),
    "advise": (lambda job: sim.advise(job, vary=FEW, workers=1), [*VARY, *ONE]),
    "strategies": (lambda job: sim.strategies(job, [1]), ["--nodes", "1"]),
    "sensitivity": (lambda job: sim.sensitivity(job, engine="replay"), ["--replay"]),
    "limits": (sim.limits, []),
    "memory": (sim.memory, []),
    "run": (sim.simulate, []),
    "capacity": (sim.capacity, []),
    "diagnose": (lambda job: sim.diagnose(job, 0.1), ["--step", "0.1 s"]),
    "checks": (lambda job: sim.checks(job, workers=1), ONE),
}
"""The function, and the options of the command that ask the same."""


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("answers") / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def answers(path):
    """Each function's answer, asked once."""
    job = sim.load_job(path)
    found = {name: ask(job) for name, (ask, _) in ASKED.items()}
    compared = sim.compare([("job", job), ("plan.tp=1", job.replace({"plan.tp": 1}))])
    clusters = sim.capacity(job, gpus=[8, 16], keep_plan=True, workers=1)
    return {**found, "compare": compared, "clusters": clusters}


def printed(capsys, *words: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    assert stopped.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ASKED)
def test_a_command_prints_the_json_of_the_function_with_its_name(name, answers, path, capsys):
    assert printed(capsys, name, path, *ASKED[name][1], "--json") == answers[name].to_json() + "\n"


def test_commands_on_several_jobs_or_clusters_print_the_json_of_the_function(answers, path, capsys):
    words = ("compare", path, "--variant", "plan.tp=1", "--json")
    assert printed(capsys, *words) == answers["compare"].to_json() + "\n"
    words = ("capacity", path, "--gpus", "8,16", "--keep-plan", *ONE, "--json")
    assert printed(capsys, *words) == answers["clusters"].to_json() + "\n"


def test_schedule_and_sweep_and_validation_print_what_the_functions_give(path, capsys, tmp_path):
    shown = printed(capsys, "schedule", "show", "1f1b", "--pp", 4, "--microbatches", 8, "--json")
    assert shown == sim.schedule("1f1b", 4, 8).to_json() + "\n"
    rows = json.loads(printed(capsys, "sweep", path, "--grid", "plan.tp=1,2", *ONE, "--json"))
    table = sim.sweep(sim.load_job(path), {"plan.tp": [1, 2]})
    assert rows["rows"] == json.loads(table.to_json(orient="records"))
    measured = ROOT / "reports" / "data" / "collectives_open.csv"
    few = tmp_path / "few.csv"
    few.write_text("".join(measured.read_text().splitlines(keepends=True)[:6]), encoding="utf-8")
    shown = printed(capsys, "validate", "collectives", few, "--json")
    assert shown == sim.validate(few, "collectives").to_json() + "\n"


def test_own_runs_calibrate_alike_in_both(path, capsys):
    job = sim.load_job(path)
    shown = printed(capsys, "calibrate", "runs", "--job", path, "--step", "0.05s", "--json")
    assert shown == sim.calibrate([(job, 0.05)], "h100-sxm-80gb").to_json() + "\n"


UNITS = ("_s", "_bytes", "_probability", "_per_gpu", "_hours", "_kwh", "_kg", "_days", "_share")
WITHOUT = {
    "dp", "gpus", "nodes", "stage", "now", "largest", "largest_even", "step", "amount", "lower",
    "higher", "mfu", "goodput", "usd", "probability", "gain", "microbatch", "chunk",
}  # fmt: skip
"""Counts and shares; factors say their unit in a column, and share of the step is said."""


def test_columns_of_numbers_end_in_their_unit(answers):
    for answer in answers.values():
        table = answer.to_frame()
        assert len(table)
        for name in table.select_dtypes("number").columns:
            is_field = "." in name
            assert is_field or name in WITHOUT or name.endswith(UNITS) or name in FRAME_OF_STEP


FRAME_OF_STEP = {"rank_class", "first_layer", "end_layer", "flop", "bytes"}


def test_an_answer_shows_itself_and_writes_a_page_that_fetches_nothing(answers, tmp_path):
    for name, answer in answers.items():
        if not isinstance(answer, Answer):
            continue
        assert "<table" in answer._repr_html_()
        page = answer.write_html(tmp_path / f"{name}.html").read_text(encoding="utf-8")
        assert "http:" not in page
        assert "https:" not in page


def test_an_answer_that_is_printed_says_what_its_page_says(answers):
    for answer in answers.values():
        if isinstance(answer, Answer):
            text, page = str(answer), answer.page()
            assert text.startswith(page.title)
            assert all(sentence in text for sentence in page.sentences)
            assert max(map(len, text.splitlines())) < 300, "no line holds a whole job"


def test_thousands_of_excluded_plans_are_counted_on_the_page_too(answers):
    found = answers["plan"]
    search = found.search
    many = replace(search, plans=1_716, pruned=replace(search.pruned, slower_bound=12_345))
    answer = replace(found, search=many)
    assert re.search("slower, by a lower bound +12,345", str(answer))
    assert "slower, by a lower bound: 12,345" in answer.pruned_text()
    assert "12,345" in answer._repr_html_()


def test_tables_in_a_terminal_are_aligned_and_leave_bars_out():
    bars = Column("where", "bars")
    bar = Cell(bars=(Bar("a", Meaning.GAIN, 1.0),))
    heads = columns(["way"], ["time"])
    rows = [[*cells(["dp", "1.5 s", "a"]), bar], [*cells(["zero", "12 s", "b"]), bar]]
    table = Table("Steps", "", [*heads, Column("why"), bars], rows)
    only_bars = Table("Shares", "", [*heads, bars], [[*cells(["dp", "1.5 s"]), bar]])
    assert page_text(AnswerPage("Ways", ["dp is best."], [table, only_bars])).splitlines() == [
        "Ways",
        "dp is best.",
        "",
        "Steps",
        "way    time  why",
        "dp    1.5 s  a",
        "zero   12 s  b",
    ]


def test_a_table_without_headings_has_no_empty_line_for_them():
    table = Table("Rates", "", columns([""], [""]), [cells(["requests/s", "7"])])
    assert page_text(AnswerPage("Run", [], [table])).splitlines()[-2:] == ["Rates", "requests/s  7"]


def test_limits_say_which_values_fit_and_which_field_has_none(path):
    tight = sim.load_job(path, {"cluster.device.memory": "8 GiB"})
    found = sim.limits(tight)
    none = [limit.field for limit in found.limits if not limit.obstacle and not limit.largest]
    for field in none:
        assert f"No value of {field} fits." in str(found)
    assert none
    assert "may be at most" in str(sim.limits(sim.load_job(path)))


def test_names_from_files_are_only_names_on_a_page(path):
    named = {"name": "<script>alert(1)</script>", "base": "llama3.1-8b", "layers": 2}
    document = {"model": named, "cluster": {"profile": "h100-sxm-80gb", "gpus": 1}}
    job = sim.load_job({**document, "batch": {"global": 1, "seq_len": 128}})
    assert "<script>" not in sim.memory(job)._repr_html_()


def test_a_result_has_pictures_for_a_notebook(answers):
    assert answers["run"].picture("memory")._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="must be one of pipeline, memory, breakdown, links"):
        answers["run"].picture("weather")


def test_comparing_needs_two_jobs(path):
    with pytest.raises(InputError, match="needs a second job to compare with"):
        sim.compare({"one": sim.load_job(path)})


def test_both_names_of_the_package_give_the_same_functions():
    assert clustersim.__all__ == sim.__all__
    for name in clustersim.__all__:
        assert getattr(clustersim, name) is getattr(sim, name)
    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        _ = clustersim.simulat


@pytest.mark.parametrize("package", ["clustersim", "simulator"])
def test_both_names_are_light(package):
    code = (
        f"import sys, {package}\n"
        "heavy = {'torch', 'pandas', 'matplotlib', 'scipy', 'numpy', 'typer', 'pydantic'}\n"
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("name", ["schedule", "calibrate", "validate"])
def test_rooms_that_share_their_name_with_a_function_can_be_called(name):
    assert callable(getattr(sim, name))
