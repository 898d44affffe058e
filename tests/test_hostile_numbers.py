"""Inputs that once took the machine down, or ended in a traceback, are refused in a sentence.

Each was found by trying hostile inputs; the sentence names the field and the bound.
"""

from __future__ import annotations

import json
from threading import Timer

import pytest

import simulator as sim
from simulator.cli.app import main
from simulator.errors import InputError
from simulator.planning.sweep import Journal
from simulator.schedule import rendezvous
from simulator.schedule.unit_run import run_schedule
from simulator.tables.cells import read_table

JOB = {
    "model": "gpt2",
    "cluster": {"profile": "a100-sxm-80gb", "gpus": 8},
    "batch": {"global": 8, "seq_len": 1024},
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model.vocab", 2**31),
        ("model.multi_token_layers", 100_000_000),
        ("model.experts", {"count": 2**31, "top_k": 2, "ffn_hidden": 64}),
        ("cluster.network.scale_up.gpus", 10**11),
        ("cluster.gpus", 10**11),
        ("plan.pp", 10**9),
        ("batch.global", 10**400),
        ("cluster.kernels.sustained_clock", 0),
        ("cluster.kernels.sustained_clock", False),
        ("cluster.device.memory", "0 GiB"),
        ("cluster.device.memory_bandwidth", "0 GB/s"),
        ("cluster.device.memory", "1e400 GiB"),
        ("cluster.value", "abc"),
        ("perturbations", [{"gpu": 0, "slowdown": 1e308}]),
    ],
)
def test_a_number_far_beyond_anything_is_refused_by_its_field(field, value):
    with pytest.raises(InputError) as refused:
        sim.load_job(JOB, {field: value})
    assert any(field in fault.path for fault in refused.value.faults)


def test_a_step_of_more_passes_than_anyone_waits_for_is_refused_before_it_is_built():
    changes = {"plan.pp": 512, "cluster.gpus": 512, "batch.global": 1024, "model.layers": 512}
    with pytest.raises(InputError, match="524,288 passes"):
        sim.load_job(JOB, changes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["collective", "show", "tree_all_reduce", "--ranks", "100000"], "ranks squared"),
        (["schedule", "show", "gpipe", "--pp", "99999", "--microbatches", "9"], "899,991 passes"),
    ],
)
def test_pictures_that_nobody_could_look_at_are_refused(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["!!bool 3", '!!int ""', "!!timestamp x", "!!binary x", "0x" + "f" * 4300]
)
def test_a_tag_that_belies_its_value_is_no_valid_yaml(text):
    from simulator.cli.options import parse_assignments

    with pytest.raises(InputError, match=r"not valid YAML|too"):
        parse_assignments([f"batch.micro={text}"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('id,model\n1,"a\n2,b\n', "is not CSV"),
        ('id,model\n1,"a\n2,b"\n3,c\n', "check for an unclosed quote"),
        ("id,model\n1,a,b\n", "more cells than columns in line 2"),
        ("id,model,id\n1,a,2\n", "has the column id twice"),
    ],
)
def test_a_table_that_would_lose_a_row_or_a_cell_in_silence_is_refused(text, said, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_table(path, ("id", "model"))


def test_two_sweeps_cannot_write_one_journal(tmp_path, monkeypatch):
    monkeypatch.setattr("simulator.planning.sweep._LOCK_PATIENCE_S", 0.0)
    path = tmp_path / "table.csv.journal"
    with Journal(path, {"job": "a"}) as first:
        first.add(0, {"error": ""})
        with pytest.raises(InputError, match="being written by another sweep"):
            Journal(path, {"job": "a"}).__enter__()
        with pytest.raises(InputError, match="being written by another sweep"):
            Journal.clear(path)
    with Journal(path, {"job": "a"}) as later:
        assert later.rows == {0: {"error": ""}}


def test_a_journal_that_is_let_go_within_a_moment_is_waited_for(tmp_path):
    path = tmp_path / "table.csv.journal"
    first = Journal(path, {"job": "a"}).__enter__()
    Timer(0.1, first.__exit__, (None, None, None)).start()
    with Journal(path, {"job": "a"}) as later:
        assert later.rows == {}


@pytest.mark.parametrize(
    "line", ["[]", '{"number": 0, "row": null}', '{"number": 1e999, "row": {"error": ""}}',
             '{"number": 0, "row": {}}'],
)  # fmt: skip
def test_a_journal_with_a_line_that_is_no_row_is_refused(line, tmp_path):
    path = tmp_path / "table.csv.journal"
    path.write_text(json.dumps({"job": "a"}) + "\n" + line + "\n")
    with pytest.raises(InputError, match="is not a journal of a sweep"):
        Journal(path, {"job": "a"}).__enter__()


@pytest.mark.parametrize(("name", "vpp"), [("gpipe", 1), ("1f1b", 1), ("dualpipe", 1)])
def test_the_fewest_buffers_are_one_more_than_what_still_blocks(name, vpp):
    run = run_schedule(name, 4, 8, vpp)
    fewest = run.buffers_needed
    arguments = run.order, run.chunks, run.info.placement
    assert not rendezvous.blocked_ranks(*arguments, fewest)
    assert not fewest or rendezvous.blocked_ranks(*arguments, fewest - 1)


def test_more_than_this_machine_holds_is_said_as_such_and_is_no_bug(monkeypatch, capsys):
    def fails(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr("simulator.api.simulate", fails)
    with pytest.raises(SystemExit) as ended:
        main(["run", "gpt2-1xa100"])
    assert ended.value.code == 2
    assert "not enough memory here" in capsys.readouterr().err


def test_an_interrupt_while_a_command_is_loaded_is_no_traceback(monkeypatch, capsys):
    def interrupted(*words):
        raise KeyboardInterrupt

    monkeypatch.setattr("simulator.cli.app.build_app", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["run", "gpt2-1xa100"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
