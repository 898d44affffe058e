"""Inputs that once took the machine down, or ended in a traceback, are refused in a sentence.

Each was found by trying hostile inputs; the sentence names the field and the bound.
"""

from __future__ import annotations

import json
import sys
from threading import Timer

import pytest

import simulator as sim
from simulator.cells import read_table
from simulator.cli.app import main
from simulator.errors import InputError
from simulator.planning.sweep import Journal
from simulator.results.simulation import run_step
from simulator.schedule import rendezvous
from simulator.schedule.unit_run import run_schedule
from tests.fuzz.attempts import little_memory

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
        ("cluster.device.memory_bandwidth", False),
        ("cluster.device.peak.bf16", "0 FLOP/s"),
        ("cluster.network.scale_up.bandwidth", "0 GB/s"),
        ("cluster.network.scale_up.efficiency", 0),
        ("cluster.network.fabric.efficiency", False),
        ("cluster.kernels.gemm.bf16.efficiency", 0),
        ("cluster.kernels.flash_attention.tail", 1e300),
        ("cluster.common.overlap_exponent", 1e-300),
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
    stages = {"plan.pp": 1024, "cluster.gpus": 1024, "model.layers": 1024}
    with pytest.raises(InputError, match="1,048,576 passes"):
        sim.load_job(JOB, {**stages, "batch.global": 1024, "batch.micro": 1})


def test_work_grows_with_layers_and_not_with_their_square():
    def calls(layers):
        job = sim.load_job(JOB, {"model.layers": layers, "plan.zero": 3, "batch.micro": 1})
        count = 0

        def seen(frame, event, argument):
            nonlocal count
            count += 1

        sys.setprofile(seen)
        try:
            run_step(job)
        finally:
            sys.setprofile(None)
        return count

    calls(10)  # what is worked out once and kept
    few, some, many = calls(100), calls(200), calls(400)  # each once: a second answer is kept
    assert many - some < 2.2 * (some - few)


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

    said = r"not valid YAML: (('3'|''|'x') is not valid as (bool|int|timestamp)|failed|a number of)"
    with pytest.raises(InputError, match=said) as refused:
        parse_assignments([f"batch.micro={text}"])
    assert len(str(refused.value)) < 300


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


TITAN = "[model]\nname='llama3'\nflavor='8B'\n{}\n[activation_checkpoint]\nmode='full'\n"
MEGATRON = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 "
    "--num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 1 --global-batch-size 8 --vocab-size 50257 --bf16 {}"
)
NEMO = (
    "trainer: {{devices: 8, num_nodes: 1}}\nmodel: {{num_layers: 12, hidden_size: 768, "
    "num_attention_heads: 12, encoder_seq_length: 1024, max_position_embeddings: 1024, "
    "micro_batch_size: 1, global_batch_size: 8, ffn_hidden_size: 3072, {}}}\n"
)
V100 = "model: {base: gpt2, layers: 6}\ncluster: {profile: dgx1-v100-32gb, gpus: 3}\n" + (
    "batch: {global: 6, seq_len: 128}\n"
    "plan: {pp: 3, schedule: zb-v, precision: bf16, first_stage_layers: 1}\n"
)
GPT2 = "--model gpt2 --gpus 8 --seq-len 1024 --global-batch 8"
DEGREE = "parallelism_config: {{parallelism_config_{}_size: 0}}\n"
HUGE = "1" + "0" * 400
FILES = [
    *(
        ("import torchtitan f.toml --gpus 8", TITAN.format(f"[parallelism]\n{name}_degree=0"), name)
        for name in ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel",
                     "data_parallel_replicate", "data_parallel_shard")
    ),
    ("import torchtitan f.toml --gpus 8", TITAN.format("converters = 0.5"), "converters = 0.5"),
    (
        "import torchtitan f.toml --gpus 8",
        TITAN.format("[compile]\nenable = true\ncomponents = 1.5"),
        "compile.components = 1.5: must be a word or a list of words",
    ),
    *(
        ("import megatron f.sh", MEGATRON.format(f"{more}--{name} 0"), "= 0: must be at least 1")
        for name, more in (
            ("tensor-model-parallel-size", ""), ("pipeline-model-parallel-size", ""),
            ("context-parallel-size", ""), ("expert-model-parallel-size", ""),
            ("expert-tensor-parallel-size", ""), ("make-vocab-size-divisible-by", ""),
            ("num-layers-per-virtual-pipeline-stage", "--pipeline-model-parallel-size 2 "),
            ("num-virtual-stages-per-pipeline-rank", "--pipeline-model-parallel-size 2 "),
        )
    ),
    *(
        ("import nemo f.yaml", NEMO.format(f"{name}: 0"), f"{name} = 0: must be at least 1")
        for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size",
                     "virtual_pipeline_model_parallel_size")
    ),
    *(
        (f"import accelerate f.yaml {GPT2}", DEGREE.format(name), f"{name}_size = 0: must be at")
        for name in ("tp", "cp", "dp_replicate", "dp_shard")
    ),
    ("import megatron f.sh --gpus 8", "elif [ 1 ]; then\nfi\n", "has an elif without an if"),
    ("run f.yaml", V100.replace("global: 6", f"global: {HUGE}"), "more than 250 digits"),
    (f"import deepspeed f.json {GPT2}", f'{{"train_batch_size": {HUGE}}}', "more than 250 digits"),
    ("calibrate collectives f.csv --profile h100-sxm-80gb", f"id\n{HUGE}\n", "250 digits"),
    (
        f"import deepspeed f.json {GPT2}",
        '{"zero_optimization": {"stage": 1}, "zero_optimization": {"stage": 3}}',
        "the key 'zero_optimization' appears twice",
    ),
    (
        "trace compare f.json gpt2-1xa100",
        '{"traceEvents": [{"ph": "X", "name": "a", "cat": [], "ts": 1, "dur": 2}]}',
        "has no kernels and no operators",
    ),
    *((f"export {name} f.yaml", V100, "3 errors") for name in ("megatron", "torchtitan")),
    ("capacity gpt2-1xa100 --systems h100-sxm-80gb", "", "campaign.tokens: is missing"),
    ("profile show h100-sxm-80gb --json --yaml", "", "cannot be combined with --json"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "text", "said"), FILES)
def test_a_file_that_once_ended_in_a_traceback_is_refused_by_its_field(
    words, text, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    name = next((word for word in words.split() if word.startswith("f.")), "f.txt")
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as ended, little_memory():
        main(words.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_dollar_in_a_name_is_no_formula(tmp_path):
    model = {"name": "a$b_{", "base": "gpt2", "layers": 2}
    result = sim.simulate(sim.load_job({**JOB, "model": model}), engine="replay")
    assert result.plot_memory(tmp_path / "memory.svg").stat().st_size > 0


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
