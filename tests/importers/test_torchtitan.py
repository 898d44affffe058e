"""Configurations of torchtitan, read against the jobs that a person would write for them."""

from __future__ import annotations

import pytest

from simulator.described.load import load_model
from simulator.errors import InputError
from simulator.importers.assembly import Given
from simulator.importers.torchtitan import read_torchtitan_config
from tests.importers.samples import edited, read


def test_a_torchtitan_file_gives_model_pipeline_and_sharding():
    job, report = read(read_torchtitan_config, "llama3_70b.toml", gpus=512)
    assert job.model == load_model("llama3.1-70b")
    plan = job.plan
    # 82 units in stages of 11 make 8 stages on 4 ranks; 16 ranks of data in 2 replicas.
    assert (plan.pp, plan.vpp, plan.schedule, plan.zero, plan.zero_group) == (4, 2, None, 3, 8)
    assert (job.batch.global_batch, job.batch.micro_batch, job.microbatches) == (128, 1, 8)
    assert (plan.precision, plan.recompute) == ("fp8", "selective")
    assert plan.account_for_embedding
    assert plan.account_for_loss
    assert not report.unsupported


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"70B"', '"70B_mine"', r"--model NAME"),
        ('"op"', '"2"', "one layer in every N"),
        ("[training]", "[training]\nenable_cpu_offload = true", "not modelled in a pipeline"),
        ("[compile]", "[fault_tolerance]\nenable = true\n[compile]", "adds work"),
        ('"Interleaved1F1B"', '"Mine"', "known: 1F1B"),
        ("[parallelism]", "[parallelism]\nwings = 2", "is unknown"),
    ],
)
def test_a_costly_setting_of_torchtitan_is_refused(tmp_path, old, new, why):
    path = edited(tmp_path, "llama3_70b.toml", (old, new))
    with pytest.raises(InputError, match=why):
        read_torchtitan_config(path, Given(gpus=512))


@pytest.mark.parametrize(
    ("backend", "way", "kernels"),
    [
        ("standard", "all_to_all", "deepep"),
        ("deepep", "hierarchical", "deepep"),
        ("hybridep", "hierarchical", "hybridep"),
    ],
)
def test_the_backend_of_expert_parallelism_says_how_tokens_travel(tmp_path, backend, way, kernels):
    path = tmp_path / "experts.toml"
    path.write_text(
        '[model]\nname = "qwen3"\nflavor = "30B-A3B"\n[parallelism]\n'
        f'expert_parallel_degree = 8\nexpert_parallel_comm_backend = "{backend}"\n'
        '[activation_checkpoint]\nmode = "none"\n'
    )
    job, report = read_torchtitan_config(path, Given(gpus=16))
    assert (job.plan.ep, job.plan.ep_dispatch) == (8, way)
    assert job.plan.stack.expert_exchange == kernels
    assert not report.unsupported


@pytest.mark.parametrize("table", ["parallelism", "experimental"])
def test_a_schedule_in_a_file_is_read_under_both_its_names(tmp_path, table):
    (tmp_path / "order.csv").write_text("0F0,0B0\n1F0,1B0\n")
    path = tmp_path / "job.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n'
        '[activation_checkpoint]\nmode = "none"\n'
        f'[{table}]\npipeline_parallel_degree = 2\npipeline_parallel_schedule_csv = "order.csv"\n'
    )
    job, _ = read_torchtitan_config(path, Given(gpus=2, global_batch=1))
    assert job.plan.schedule.rows == ("0F0,0B0", "1F0,1B0")


@pytest.mark.parametrize(
    ("section", "recompute"),
    [
        ("null", "none"),
        ('{"preserve_rng_state": true}', "full"),
        ('{"preserve_rng_state": true, "force_recompute_mm_shapes_by_fqns": []}', "selective"),
    ],
)
def test_resolved_json_of_today_shows_recomputation_by_its_fields(tmp_path, section, recompute):
    path = tmp_path / "resolved.json"
    path.write_text(
        '{"model_spec": {"name": "llama3", "flavor": "8B", "model": {"dim": 4096}},'
        ' "dump_folder": "out", "training": {"local_batch_size": 1, "seq_len": 8192},'
        ' "compile": {"enable": true, "components": ["model", "loss"]},'
        f' "activation_checkpoint": {section}}}'
    )
    job, report = read_torchtitan_config(path, Given(gpus=8))
    assert job.plan.recompute == recompute
    assert job.model == load_model("llama3.1-8b")
    assert not report.unsupported


def test_without_compilation_layers_are_eager(tmp_path):
    path = edited(tmp_path, "llama3_70b.toml", ("enable = true", "enable = false"))
    job, _ = read_torchtitan_config(path, Given(gpus=512))
    assert not job.plan.stack.fused_rmsnorm
    assert job.plan.stack.cross_entropy == "eager"


@pytest.mark.parametrize("stops", [True, False])
def test_checkpoints_stop_early_where_the_file_says_so(tmp_path, stops):
    stated = f"[activation_checkpoint]\nearly_stop = {str(stops).lower()}"
    path = edited(tmp_path, "llama3_70b.toml", ("[activation_checkpoint]", stated))
    job, report = read_torchtitan_config(path, Given(gpus=512))
    assert job.plan.stack.repeats_last_product is not stops
    assert not report.unsupported


@pytest.mark.parametrize(
    ("implementation", "kernels"),
    [("fused", None), ("foreach", "foreach"), ("for-loop", "for-loop")],
)
def test_an_optimizer_updates_by_the_kernels_of_its_implementation(
    tmp_path, implementation, kernels
):
    """torchtitan, config/configs.py: Literal["for-loop", "foreach", "fused"]."""
    stated = f'[optimizer]\nimplementation = "{implementation}"'
    path = edited(tmp_path, "llama3_70b.toml", ("[optimizer]", stated))
    job, report = read_torchtitan_config(path, Given(gpus=512))
    assert job.plan.optimizer_kernels == kernels
    assert not report.unsupported


@pytest.mark.parametrize("part", ["model", "loss"])
def test_the_model_or_the_loss_may_be_compiled_alone(tmp_path, part):
    only = f'enable = true\ncomponents = ["{part}"]'
    path = edited(tmp_path, "llama3_70b.toml", ("enable = true", only))
    plan = read_torchtitan_config(path, Given(gpus=512))[0].plan
    assert plan.stack.fused_rmsnorm == (part == "model")
    assert plan.loss_kernel == ("fused" if part == "loss" else "eager")


@pytest.mark.parametrize(
    "degree", ["tensor", "pipeline", "context", "expert", "data_parallel_replicate"]
)
def test_no_degree_is_zero(tmp_path, degree):
    config = tmp_path / "titan.toml"
    kind = degree if "data" in degree else f"{degree}_parallel"
    config.write_text(
        f'[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\n{kind}_degree = 0\n'
    )
    with pytest.raises(InputError, match="_degree = 0: must be at least 1"):
        read_torchtitan_config(config, Given(gpus=64))


def test_training_in_16_bits_keeps_no_fp32_weights_and_reduces_as_the_file_says(tmp_path):
    """Source: torchtitan's job_config.py, ``training.dtype`` and ``mixed_precision_reduce``."""
    path = edited(tmp_path, "llama3_70b.toml", ("[training]", '[training]\ndtype = "bfloat16"'))
    plan = read_torchtitan_config(path, Given(gpus=512))[0].plan
    assert (plan.master_weights, plan.grad_reduce_precision) == (False, "fp32")


@pytest.mark.parametrize("stated", ["", 'selective_ac_option = "2"'])
def test_layers_recomputed_in_turns_are_refused_with_a_way_out_that_works(tmp_path, stated):
    """Whether the file states them or leaves them to the framework's default."""
    file = tmp_path / "train.toml"
    file.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n'
        "[training]\nlocal_batch_size = 1\nseq_len = 8192\n"
        f'[activation_checkpoint]\nmode = "selective"\n{stated}\n',
        "utf-8",
    )
    key = "activation_checkpoint.selective_ac_option"
    with pytest.raises(InputError, match=f"--set plan.recompute=... with --ignore {key}") as said:
        read_torchtitan_config(file, Given(gpus=8))
    assert ("is 2 unless the file states it" in str(said.value)) == (not stated)
    changed = Given(gpus=8, ignore=(key,), changes={"plan.recompute": "full"})
    assert read_torchtitan_config(file, changed)[0].plan.recompute == "full"


@pytest.mark.parametrize(
    ("recipe", "scaling", "wide"),
    [
        ("tensorwise", "tensor", False),
        ("rowwise", "rows", False),
        ("rowwise_with_gw_hp", "rows", True),
    ],
)
def test_the_recipe_of_float8_says_what_shares_a_scale(tmp_path, recipe, scaling, wide):
    section = "[quantize.linear.float8]"
    new = f'{section}\nrecipe_name = "{recipe}"'
    path = edited(tmp_path, "llama3_70b.toml", (section, new))
    job, report = read_torchtitan_config(path, Given(gpus=512))
    stack = job.plan.stack
    assert (stack.float8_scaling, stack.wide_weight_gradients) == (scaling, wide)
    assert not report.unsupported


@pytest.mark.parametrize(
    ("converters", "precision", "products"),
    [
        ('"quantize.linear.float8"', "fp8", "dense"),
        ('"quantize.linear.float8", "quantize.grouped_mm.float8"', "fp8", "all"),
        ('"quantize.grouped_mm.mx"', "mxfp8", "experts"),
    ],
)
def test_linear_layers_and_experts_have_converters_of_their_own(
    tmp_path, converters, precision, products
):
    path = edited(tmp_path, "llama3_70b.toml", ('"quantize.linear.float8"', converters))
    given = Given(gpus=512, profile="b200-sxm-180gb")
    plan = read_torchtitan_config(path, given)[0].plan
    assert (plan.precision, plan.narrow_products) == (precision, products)


@pytest.mark.parametrize(
    ("loss", "training", "parallelism", "graphs"),
    [
        ("ChunkedLossWrapper", "", "", "full"),
        ("ChunkedLossWrapper", "disable_cuda_graphs=True", "", "none"),
        ("ChunkedLossWrapper", "", "pipeline_parallel_degree=2", "none"),
        ("CrossEntropyLoss", "", "", "none"),
        ("CrossEntropyLoss", "disable_cuda_graphs=False", "", "full"),
    ],
)
def test_passes_are_replayed_as_graphs_unless_a_configuration_of_0_3_says_not_to(
    tmp_path, loss, training, parallelism, graphs
):
    """Torchtitan 0.3, ``_validate_cuda_graphs`` of trainer.py; disable_cuda_graphs is False."""
    (tmp_path / "llama3").mkdir()
    path = tmp_path / "llama3" / "config_registry.py"
    path.write_text(
        "def llama3_8b():\n    return Trainer.Config(\n"
        f"        loss={loss}.Config(), model_spec=model_registry('8B'),\n"
        f"        training=TrainingConfig(seq_len=8192, {training}),\n"
        f"        parallelism=ParallelismConfig({parallelism}),\n    )\n"
    )
    job, report = read_torchtitan_config(f"{path}:llama3_8b", Given(gpus=8))
    assert job.plan.cuda_graphs == graphs
    assert any("CUDA graphs" in each for each in report.assumed) == (
        graphs == "full" or bool(parallelism)
    )
