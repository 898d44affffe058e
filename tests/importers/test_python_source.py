"""Configurations in Python are followed by their syntax, and nothing of them is run."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.importers.assembly import Given
from simulator.importers.formats import FORMATS
from simulator.importers.python_source.evaluation import (
    read_python_config,
    read_python_settings,
)


def settings_of(tmp_path, text):
    path = tmp_path / "settings.py"
    path.write_text(text, encoding="utf-8")
    return read_python_settings(path)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("x = 2 * 3 + 8 // 4", 8),
        ("a = 4\nx = a if a > 3 else 0", 4),
        ("x = 5\nx *= 2", 10),
        ("x = [1, 2]\nx += [3]\nx.append(4)", [1, 2, 3, 4]),
        ("x = dict(a=1, b=dict(c=2))\nx['b'] = dict(c=3)", {"a": 1, "b": {"c": 3}}),
        ("base = dict(a=1)\nx = dict(b=2, **base)", {"b": 2, "a": 1}),
        ("def double(n, by=2):\n    return n * by\nx = double(by=3, n=4)", 12),
        ("x = 0\nfor n in [1, 2, 3]:\n    x += n", 6),
        ("x = not None", True),
        ("a, b = 1, 2\nx = b", 2),
        ("x = list([list(n) for n in [[1], (2, 3)]])", [[1], [2, 3]]),
        ("by = {(4, 1): 'four'}\nx = by[(4, 1)] if (4, 1) in by else None", "four"),
        ("by = {(4, 1): 'four'}\nx = (8, 1) in by", False),
        ("m = dict(pp=4)\nx = getattr(m, 'pp', 1)", 4),
    ],
)
def test_assignments_are_followed(tmp_path, code, value):
    assert settings_of(tmp_path, code)[0]["x"] == value


def test_what_only_running_would_tell_stays_as_it_is_written_and_is_said(tmp_path):
    values, notes = settings_of(tmp_path, "import os\nx = os.cpu_count()\nif x > 4:\n    y = 1\n")
    assert values["x"] == {"_target_": "os.cpu_count"}
    assert "y" not in values
    assert notes == ["the condition (x > 4) is assumed to be false"]


def test_a_default_of_what_is_not_seen_is_not_known(tmp_path):
    """A block that another's code makes may have the field."""
    values, notes = settings_of(tmp_path, "m = make()\nif getattr(m, 'pp', 1) == 1:\n    y = 1\n")
    assert "y" not in values
    assert len(notes) == 1


def test_functions_of_files_beside_are_followed(tmp_path):
    (tmp_path / "base.py").write_text(
        "WIDTH = 8\ndef base(size=WIDTH):\n    return Config(n=size)\n"
    )
    (tmp_path / "__init__.py").write_text("")
    path = tmp_path / "recipe.py"
    path.write_text(
        "from .base import base\ndef mine():\n    cfg = base(size=4)\n    cfg.model.tp = 2\n"
        "    return cfg\n"
    )
    values, _ = read_python_config(path, "mine")
    assert values == {"_target_": "Config", "n": 4, "model": {"tp": 2}}


@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    x = 1\n",
        "def f():\n    return f()\nx = f()\n",
        "x = " + "(" * 5000,
        "x = 9 ** 9 ** 9\n",
        "x = [0] * 10**12\n",
        "x = 1\n" * 200_001,
    ],
)
def test_code_made_to_hurt_is_a_clear_error_or_stays_as_it_is_written(tmp_path, code):
    outcome = settings_or_error(tmp_path, code)
    assert isinstance(outcome, str)


def settings_or_error(tmp_path, code):
    """What ``x`` stays as, or the words of the error."""
    try:
        return settings_of(tmp_path, code)[0]["x"]
    except InputError as error:
        return str(error)


BRIDGE = """
def pretrain_recipe():
    cfg = _common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Llama-3.1-70B").to_megatron_provider()
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = 5
    cfg.model.sequence_parallel = True
    cfg.dataset.seq_length = 8192
    cfg.train.global_batch_size = 512
    cfg.train.micro_batch_size = 1
    cfg.mixed_precision = "bf16_mixed"
    return cfg


def _common():
    return ConfigContainer(
        model=None,
        train=TrainingConfig(train_iters=100),
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=True),
        dataset=GPTDatasetConfig(split="9999,8,2"),
    )
"""
NEMO = """
def trainer(tensor_parallelism: int = 4, num_nodes: int = 2, num_gpus_per_node: int = 8):
    strategy = run.Config(nl.MegatronStrategy, tensor_model_parallel_size=tensor_parallelism)
    return run.Config(nl.Trainer, devices=num_gpus_per_node, num_nodes=num_nodes,
                      plugins=run.Config(MegatronMixedPrecision, precision="bf16-mixed"),
                      strategy=strategy)


def pretrain_recipe():
    return run.Partial(
        pretrain,
        model=run.Config(LlamaModel, config=run.Config(Llama31Config8B)),
        trainer=trainer(tensor_parallelism=2),
        data=run.Config(MockDataModule, seq_length=8192, global_batch_size=64, micro_batch_size=1),
    )
"""


@pytest.mark.parametrize(
    ("code", "given", "model", "degrees"),
    [
        (BRIDGE, {"gpus": 64}, "llama3.1-70b", (64, 4, 4, 5, 512)),
        (NEMO, {}, "llama3.1-8b", (16, 2, 1, 1, 64)),
    ],
)
def test_a_recipe_in_python_is_the_job_that_it_configures(tmp_path, code, given, model, degrees):
    path = tmp_path / "recipe.py"
    path.write_text(code, encoding="utf-8")
    job, report = FORMATS["nemo"].read([path], Given(**given))
    plan = job.plan
    assert job.model.name == model
    assert (job.cluster.gpus, plan.tp, plan.pp, plan.vpp, job.batch.global_batch) == degrees
    assert plan.precision == "bf16"
    assert not report.unsupported


SPELT_OUT = """
def mixture():
    found = MixedPrecisionConfig(bf16=True, grad_reduce_in_fp32=True)
    found.fp8 = "hybrid"
    found.fp8_recipe = "tensorwise"
    return found
"""


def test_a_mixture_of_formats_that_is_spelt_out_is_its_settings(tmp_path):
    """Source: Megatron-Bridge 0.3.1, training/mixed_precision.py and recipes/llama/llama3.py."""
    path = tmp_path / "recipe.py"
    code = BRIDGE.replace('"bf16_mixed"', "mixture()") + SPELT_OUT
    path.write_text(code, encoding="utf-8")
    job, _ = FORMATS["nemo"].read([path], Given(gpus=64))
    assert job.plan.precision == "fp8"


def test_a_recipe_in_python_has_its_models_dropout_and_claims_no_other(tmp_path):
    path = tmp_path / "recipe.py"
    path.write_text(BRIDGE, encoding="utf-8")
    job, report = FORMATS["nemo"].read([path], Given(gpus=64))
    assert not job.plan.stack.dropout
    assert not [note for note in report.assumed if "dropout" in note]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("recipe = llama3_70b.pretrain_recipe(num_nodes=8)\n", "the file and function that it"),
        ("def a():\n    pass\n\n\ndef b():\n    pass\n", "with one of a, b"),
    ],
)
def test_a_script_that_does_not_say_its_recipe_is_told_what_to_give(tmp_path, code, says):
    path = tmp_path / "train.py"
    path.write_text(code, encoding="utf-8")
    with pytest.raises(InputError, match=says):
        FORMATS["nemo"].read([path], Given(gpus=8))
