"""Does every way of failing have its exit code, and every command its help?"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.cli.app import SECTIONS
from simulator.errors import DoesNotFitError
from simulator.version import __version__

ROOT = Path(__file__).parents[2]
COMMANDS = [
    "run", "compare", "memory", "strategies", "limits", "traffic", "balance", "sweep", "plan",
    "advise", "capacity", "rent", "rl", "sensitivity", "checks", "diagnose", "distribution",
    "schema",
    "import hf", "import megatron", "import deepspeed", "import torchtitan", "import accelerate",
    "import nemo", "import axolotl", "import llamafactory", "import ms-swift", "import torchtune",
    "import automodel", "import xtuner", "import nanotron", "import gpt-neox", "import llm-foundry",
    "import primus", "import maxtext", "import topo", "export megatron", "export deepspeed",
    "export torchtitan", "export accelerate", "export axolotl",
    "export chakra", "replay",
    "profile list", "profile show", "profile check", "models list", "models show", "models count",
    "init", "mcp", "studio", "calibrate gpu",
    "calibrate collectives",
    "placement", "collective list", "collective show",
    "validate published", "validate collectives", "validate kernels",
    "validate torch", "trace compare",
    "schedule list", "schedule show", "schedule compare", "capture",
    "serve run", "serve sweep", "serve plan", "serve capacity",
]  # fmt: skip


@pytest.fixture
def broken(monkeypatch):
    """Make loading a job raise what the test wants."""

    def install(error: Exception) -> None:
        def load_job(*_: object) -> None:
            raise error

        monkeypatch.setattr("simulator.api.load_job", load_job)

    return install


def run_process(*words: str, stdout: int = subprocess.PIPE, **env: str):
    return subprocess.run(
        [sys.executable, "-m", "simulator", *words],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **env},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def test_the_version_is_printed(clustersim):
    assert clustersim("--version") == (0, f"clustersim {__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example_of_it(clustersim, command):
    outcome = clustersim(*command.split(), "--help")
    assert outcome.code == 0
    assert f"Example:  clustersim {command}" in outcome.out


def test_no_command_is_missing_from_this_test(clustersim):
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted({command.partition(" ")[0] for command in COMMANDS})


def test_the_help_lists_commands_by_what_a_person_is_after(clustersim):
    lines = clustersim("--help").out.splitlines()
    for title, names in SECTIONS.items():
        first = lines.index(f"{title}:") + 1
        assert [line.split()[0] for line in lines[first : first + len(names)]] == list(names)


def test_a_command_loads_no_other_command():
    words = (
        "import sys; from simulator.cli.app import build_app; build_app('run'); print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "simulator.cli.step.run" in loaded
    assert not {
        "simulator.cli.planning.plan",
        "simulator.cli.foreign_files",
        "simulator.api",
    } & set(loaded)


@pytest.mark.parametrize(
    "words",
    [
        ["fly"],
        ["run"],
        ["run", "job.yaml", "--fast"],
        ["schedule", "show", "1f1b", "--pp", "many"],
        ["schema", "cluster"],
        ["validate", "published", "runs.csv", "--workers", "0"],
    ],
)
def test_a_wrong_command_line_is_the_users_to_mend(clustersim, words):
    outcome = clustersim(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert "Error" in outcome.err


def test_wrong_input_ends_with_2_and_all_faults_on_stderr(clustersim, write):
    path = write("plan: {tpp: 1}\n")
    outcome = clustersim("run", path)
    assert (outcome.code, outcome.out) == (2, "")
    assert "4 errors" in outcome.err
    assert f"{path}: plan.tpp = 1: no such field; did you mean 'tp'" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_missing_file_ends_with_2(clustersim, tmp_path):
    outcome = clustersim("run", tmp_path / "none.yaml")
    assert outcome.code == 2
    assert "none.yaml" in outcome.err
    assert "No such file" in outcome.err


def test_a_folder_that_is_a_file_ends_with_2(clustersim, job_file):
    outcome = clustersim("run", job_file, "--plot", job_file)
    assert outcome.code == 2
    assert f"{job_file}: File exists" in outcome.err
    assert "internal error" not in outcome.err


def test_trouble_of_the_system_without_a_file_of_the_user_is_a_bug(clustersim, broken):
    broken(OSError(24, "Too many open files"))
    assert clustersim("run", "job.yaml").code == 3


def test_a_full_disk_is_no_bug(clustersim, broken):
    broken(OSError(errno.ENOSPC, "No space left on device"))
    assert clustersim("run", "job.yaml") == (2, "", "cannot write: No space left on device\n")


@pytest.mark.parametrize(
    "words",
    [
        "run {job} --html page",
        "run {job} --trace trace.txt",
        "compare {job} --variant plan.tp=1 --html .",
        "compare {job} --variant plan.tp=1 --plot picture",
        "memory {job} --over-time curve.gif",
        "sweep {job} --grid plan.tp=1,2 --plot map",
        "plan {job} --pareto front.gif",
        "sensitivity {job} --plot tornado",
        "strategies {job} --plot ways",
        "capacity {job} --tokens 1T --plot time",
        "placement {job} --plot map",
        "profile show l40s --plot system",
        "schedule show 1f1b --pp 2 --microbatches 4 --plot order",
        "collective show ring_all_reduce --ranks 4 --plot ring",
        "trace compare trace.json {job} --plot both",
    ],
)
def test_a_file_that_nothing_is_written_as_is_refused_before_anything_takes_time(
    clustersim, job_file, broken, words
):
    broken(ZeroDivisionError("work has begun"))
    outcome = clustersim(*words.format(job=job_file).split())
    assert (outcome.code, outcome.out) == (2, "")
    assert "change the suffix" in outcome.err


def test_what_does_not_fit_ends_with_1(clustersim, broken):
    broken(DoesNotFitError("needs 90 GiB of 80 GiB"))
    assert clustersim("run", "job.yaml") == (1, "", "needs 90 GiB of 80 GiB\n")


def test_a_bug_ends_with_3_and_says_how_to_report_it(clustersim, broken):
    broken(ZeroDivisionError("by zero"))
    outcome = clustersim("run", "job.yaml")
    assert (outcome.code, outcome.out) == (3, "")
    assert outcome.err.startswith("internal error: ZeroDivisionError: by zero\n")
    assert f"clustersim {__version__}" in outcome.err
    assert "--traceback" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_bug_shows_its_traceback_on_demand(clustersim, broken, monkeypatch):
    broken(ZeroDivisionError("by zero"))
    assert "Traceback" in clustersim("--traceback", "run", "job.yaml").err
    monkeypatch.setenv("CLUSTERSIM_TRACEBACK", "1")
    assert "Traceback" in clustersim("run", "job.yaml").err


def loaded_by(*words: str) -> set[str]:
    """Modules that a command has loaded when it ends."""
    code = (
        "import sys\n"
        "from simulator.cli import main\n"
        "try:\n"
        f"    main({list(words)})\n"
        "finally:\n"
        "    print(*sys.modules, file=sys.stderr)\n"
    )
    env = {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_a_step_loads_nothing_that_only_searches_captures_or_campaigns_need():
    loaded = loaded_by("run", "gpt2-1xa100", "--json")
    assert "simulator.engine" in loaded
    assert not {"simulator.planning", "simulator.chakra"} & loaded


def test_help_loads_no_heavy_library():
    loaded = loaded_by("--help")
    assert "simulator.cli.app" in loaded
    assert not {"pydantic", "yaml", "numpy", "pandas", "matplotlib", "simpy", "torch"} & loaded


def test_output_that_is_no_terminal_is_plain_text_with_whole_columns():
    done = run_process("profile", "list", COLUMNS="40", TERM="xterm-256color")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "…" not in done.stdout
    assert any(len(line) > 120 for line in done.stdout.splitlines())
    assert all(line == line.rstrip() for line in done.stdout.splitlines())


@pytest.fixture
def left_pipe():
    """A pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_a_reader_that_leaves_early_is_no_error(left_pipe):
    done = run_process("schema", "job", stdout=left_pipe)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_terminal_that_lacks_a_letter_shows_the_rest(encoding, job_file):
    named = job_file.read_text().replace("{base:", "{name: 'a → 模型', base:")
    job_file.write_text(named, encoding="utf-8")
    done = run_process("run", str(job_file), PYTHONIOENCODING=encoding, COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    assert "step time" in done.stdout


@pytest.mark.parametrize("words", ["schema job", "run gpt2-1xa100 --json"])
def test_a_closed_stdout_is_an_error_and_no_empty_answer(words):
    command = f"{sys.executable} -m simulator {words} >&-"
    done = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "stdout is closed" in done.stderr


@pytest.mark.parametrize("shape", [[], ["--json"]])
def test_files_are_written_though_the_reader_of_the_tables_left(left_pipe, job_file, shape):
    trace = job_file.with_name("trace.json")
    done = run_process("run", str(job_file), *shape, "--trace", str(trace), stdout=left_pipe)
    assert (done.returncode, done.stderr) == (0, f"wrote {trace}\n")
    assert trace.exists()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("clustersim profile show h200", "h200-sxm-141gb"),
        ("clustersim schedule show gp", "gpipe"),
        ("clustersim import hf config.json --profile mi355", "mi355x"),
    ],
)
def test_the_shell_completes_names(words, offered):
    environment = {"_CLUSTERSIM_COMPLETE": "complete_bash", "COMP_WORDS": words}
    done = run_process(**environment, COMP_CWORD=str(len(words.split()) - 1))
    assert offered in done.stdout.split()


GROUPS = ["", *sorted({command.split()[0] for command in COMMANDS if " " in command})]


@pytest.mark.parametrize("group", GROUPS)
def test_the_list_of_commands_says_each_ones_purpose_in_full(clustersim, group):
    heading = "Commands:" if group else "First steps:"
    listed = clustersim(*group.split(), "--help").out.partition(heading)[2]
    assert listed.strip()
    assert "..." not in listed


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_names_what_an_option_takes_not_its_type(clustersim, command):
    shown = clustersim(*command.split(), "--help").out.partition("Options:")[2]
    assert re.findall(r"--\S+ <(?:int|float|str)", shown) == []


def test_scripts_get_what_is_wrong_as_json(clustersim, job_file):
    outcome = clustersim("run", job_file, "--set", "plan.tp=3", "--json")
    assert outcome.code == 2
    first = json.loads(outcome.out)["errors"][0]
    assert (first["path"], first["value"]) == ("plan.tp", "3")
    assert first["rule"] in outcome.err


def test_a_file_where_a_command_of_a_group_belongs_is_answered_with_those_it_has(clustersim):
    outcome = clustersim("serve", "serving.yaml")
    assert outcome.code == 2
    assert (
        "'serving.yaml' is not a command of serve: run, compare, sweep, plan, capacity."
        in outcome.err
    )
    assert "Did you mean 'run'?" in clustersim("serve", "rum").err
