"""How are --set assignments read?"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from simulator.cli.completion import complete_model, complete_profile
from simulator.cli.options import file_to_write, measured_step_s, parse_assignments
from simulator.described.load import load_job
from simulator.errors import InputError
from simulator.files import PICTURES
from simulator.plots.style import save


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("true", True),
        ("full", "full"),
        ("450 GB/s", "450 GB/s"),
        ("", None),
        ("a=b", "a=b"),
        ("{count: 4}", {"count": 4}),
        ("'8'", "8"),
    ],
)
def test_a_value_is_what_yaml_says_it_is(text, value):
    assert parse_assignments([f"plan.x={text}"]) == {"plan.x": value}


@pytest.mark.parametrize("text", ["plan.tp", "=4", "", "plan.tp=[1", "plan.tp={a: 1, a: 2}"])
def test_what_is_no_assignment_is_refused(text):
    with pytest.raises(InputError, match="--set"):
        parse_assignments([text])


def test_setting_one_field_twice_is_refused():
    with pytest.raises(InputError, match=r"sets plan.tp twice"):
        parse_assignments(["plan.tp=1", "plan.tp=2"])


def test_names_are_completed_from_the_shipped_files():
    assert complete_profile("h200") == ["h200-nvl-141gb", "h200-sxm-141gb"]
    assert "llama3.1-8b" in complete_model("llama3.1")


@pytest.mark.parametrize(
    "text",
    ["4 s", "4000ms", "16384 tokens/s", "16384 tok/s", "16,384 Tokens/s", "1024.0 tokens/s/GPU"],
)
def test_a_measured_step_is_said_by_its_time_or_its_tokens(job_file, text):
    """The job has 32 sequences of 2048 tokens on 16 GPUs: 65,536 tokens."""
    assert measured_step_s(text, load_job(job_file)) == 4.0


@pytest.mark.parametrize("text", ["0 tokens/s", "7000 tokens", "fast tokens/s", "4"])
def test_a_step_that_is_neither_is_refused(job_file, text):
    with pytest.raises(InputError, match="--step"):
        measured_step_s(text, load_job(job_file))


@pytest.mark.parametrize("suffix", PICTURES)
def test_what_a_command_takes_as_a_picture_is_what_a_picture_is_written_as(tmp_path, suffix):
    path = tmp_path / f"picture{suffix.upper()}"
    check = file_to_write("", *PICTURES).callback
    assert check(SimpleNamespace(opts=["--plot"]), path) == path
    save(Figure(), path)
    assert path.stat().st_size > 0


def test_asking_how_pictures_are_written_loads_nothing_that_draws():
    code = "import sys, simulator.cli.step.memory; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        (
            "cluster.device.peak.bf16=1979 TFLOP/s",
            "device.peak.bf16 = '1979 TFLOP/s': is 4.0 times",
        ),
        (
            "cluster.device.memory_bandwidth=3.35 GB/s",
            "network.scale_up.bandwidth = '450 GB/s': is",
        ),
        (
            "cluster.network.fabric.nic=400 GB/s",
            "network.fabric.nic = '400 GB/s': is more than the fastest known today",
        ),
    ],
)
def test_hardware_that_does_not_exist_is_simulated_but_said_to_be_doubtful(
    clustersim, job_file, change, doubt
):
    outcome = clustersim("run", job_file, "--set", change)
    assert outcome.code == 0
    assert f"doubtful: cluster.{doubt}" in outcome.err
    assert clustersim("run", job_file).err == ""


def _options_without_a_name():
    """Every parameter of a command with what is written for its value, where no name is given."""
    for path in (Path(__file__).parents[2] / "simulator" / "cli").rglob("*.py"):
        functions = (
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef)
        )
        parameters = (arg for each in functions for arg in (*each.args.args, *each.args.kwonlyargs))
        for parameter in parameters:
            for call in ast.walk(parameter.annotation) if parameter.annotation else ():
                is_option = isinstance(call, ast.Call) and ast.unparse(call.func) == "option"
                if is_option and not any(each.arg == "name" for each in call.keywords):
                    yield parameter.arg, *(ast.unparse(each) for each in call.args[1:2])


def test_an_option_whose_value_is_written_like_its_parameter_states_its_name():
    """Else typer 0.27 takes the one for the other: ``--MINUTES``."""
    found = list(_options_without_a_name())
    assert len(found) > 50
    assert not [name for name, *value in found if value and value[0].strip("'").lower() == name]
