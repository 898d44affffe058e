"""Launch scripts of Megatron-LM, read against the jobs that a person would write for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.api import simulate
from simulator.described.load import job_from_document, load_model
from simulator.errors import InputError, UnsupportedError
from simulator.importers.assembly import Given
from simulator.importers.megatron.launch_line import read_megatron_script
from tests.importers.samples import FILES, edited, plan_of, read


def test_options_in_strings_are_joined_as_the_shell_would():
    job, report = read(read_megatron_script, "launch_gpt.sh")
    assert (job.cluster.gpus, job.dp, job.microbatches) == (32, 4, 16)
    assert plan_of(job) == {
        "tp": 2, "pp": 4, "zero": 0, "precision": "fp16", "grad_reduce_precision": "fp16",
        "recompute": "full", "overlap_grad_reduce": False, "overlap_param_gather": False,
        "sequence_parallel": False,
        "stack": {"base": "megatron-core", "dropout": True, "cross_entropy": "in-place"},
    }  # fmt: skip
    assert not report.unsupported
    assert "the vocabulary has the 50257 entries of GPT-2" in report.assumed
    assert {"lr", "data_path", "save"} <= set(report.ignored)


def test_a_model_without_options_of_its_own_is_the_gpt_that_megatron_defaults_to():
    job, _ = read(read_megatron_script, "launch_gpt.sh")
    model = job.model
    assert (model.ffn_hidden, model.activation, model.gated_mlp) == (8192, "gelu", False)
    assert (model.positions, model.max_positions, model.normalisation) == (
        "learned", 2048, "layernorm",
    )  # fmt: skip
    assert model.tied_embeddings
    assert model.mlp_bias


def test_options_in_arrays_give_the_named_model():
    job, report = read(read_megatron_script, "launch_moe.sh")
    named = load_model("mixtral-8x7b")
    assert job.model == named.model_copy(update={"name": "launch_moe"})
    assert (job.cluster.gpus, job.plan.vpp, job.plan.ep, job.plan.etp) == (64, 2, 8, 1)
    assert job.plan.precision == "fp8"
    assert job.plan.stack.grouped_experts
    assert not job.plan.stack.fused_permutation
    assert not report.unsupported


@pytest.mark.parametrize(("value", "precision"), [("mxfp8", "mxfp8"), ("none", "bf16")])
def test_definitions_decide_conditions(value, precision):
    job, _ = read(read_megatron_script, "launch_moe.sh", profile="b200-sxm-180gb",
                  definitions={"PRECISION": value})  # fmt: skip
    assert job.plan.precision == precision


def test_a_script_that_writes_its_deepspeed_configuration_is_read_with_it():
    job, _ = read(read_megatron_script, "launch_deepspeed.sh")
    assert (job.plan.zero, job.cluster.gpus, job.plan.recompute) == (1, 16, "full")
    assert job.plan.stack.description.startswith("Megatron-DeepSpeed")


def test_the_inner_configuration_says_what_leaves_the_gpu(tmp_path):
    path = edited(tmp_path, "launch_deepspeed.sh", ('"device": "none"', '"device": "cpu"'))
    job, _ = read_megatron_script(path, Given())
    assert job.plan.offload.optimizer == "cpu"


def test_a_costly_setting_of_the_inner_configuration_is_refused(tmp_path):
    costly = ('"offload_optimizer": {"device": "none"}', '"zero_quantized_weights": true')
    path = edited(tmp_path, "launch_deepspeed.sh", costly)
    with pytest.raises(InputError, match=r"ZeRO\+\+"):
        read_megatron_script(path, Given())


def test_a_single_launch_line_is_enough(tmp_path):
    path = tmp_path / "line.txt"
    path.write_text(
        "torchrun --nproc-per-node=8 pretrain_gpt.py --num-layers=12 --hidden-size=768 "
        "--num-attention-heads=12 --seq-length=1024 --max-position-embeddings=1024 "
        "--micro-batch-size=8 --global-batch-size=64 --bf16"
    )
    job, _ = read_megatron_script(path, Given(gpus=8))
    assert (job.model.layers, job.batch.global_batch) == (12, 64)


def launch(folder: Path, *options: str) -> Path:
    """A launch line with further options."""
    path = folder / "line.sh"
    base = (FILES / "launch_gpt.sh").read_text(encoding="utf-8")
    path.write_text(base.replace("--fp16", " ".join(["--fp16", *options])), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--cpu-offloading-num-layers 24", "must be below the 24 layers"),
        ("--cpu-offloading-weights", "moves weights to the host"),
        ("--cpu-optimizer", "moves optimizer states to the host"),
        ("--optimizer-offload-policy auto", "moves optimizer states to the host"),
        ("--partition-activations", "has no --deepspeed"),
        ("--fp32-residual-connection", "32 bits"),
        ("--optimizer shampoo", "is not modelled; known: adam"),
        ("--cp-comm-type allgather", "is not modelled; known: p2p, a2a"),
        ("--wings 2", "is unknown"),
        ("--moe-offload-everything", "moves activations to the host"),
        ("--new-offload-of-logits", "is unknown"),
    ],
)
def test_an_option_that_costs_something_is_an_error_with_a_way_out(tmp_path, option, why):
    name = option.split()[0][2:].replace("-", "_")
    with pytest.raises(InputError, match=why) as caught:
        read_megatron_script(launch(tmp_path, option), Given())
    (fault,) = caught.value.faults
    assert fault.path == name
    assert f"--ignore {name}" in fault.hint


def test_an_option_may_be_left_out_when_the_user_says_so_and_is_reported(tmp_path):
    path = launch(tmp_path, "--fp32-residual-connection", "--wings 2")
    _, report = read_megatron_script(path, Given(ignore=("--fp32-residual-connection", "wings")))
    assert len(report.unsupported) == 2
    assert "fp32_residual_connection = True is ignored" in report.unsupported[0]


def test_a_word_without_a_meaning_may_be_left_out_too(tmp_path):
    path = launch(tmp_path, "--optimizer shampoo")
    job, report = read_megatron_script(path, Given(ignore=("optimizer",)))
    assert job.plan.optimizer == "adam"
    assert report.unsupported[0].startswith("optimizer = shampoo is ignored; it is not modelled")


def test_leaving_out_what_is_not_there_is_an_error():
    with pytest.raises(InputError, match="--ignore wings: is not a setting"):
        read(read_megatron_script, "launch_gpt.sh", ignore=("wings",))


def test_what_only_the_shell_would_know_is_asked_for(tmp_path):
    path = edited(tmp_path, "launch_gpt.sh", ("parallel-size 2 ", "parallel-size $TP "))
    with pytest.raises(InputError, match=r"does not define TP.*--define TP=") as caught:
        read_megatron_script(path, Given())
    assert caught.value.faults[0].path == "tensor_model_parallel_size"
    job, _ = read_megatron_script(path, Given(definitions={"TP": "8"}))
    assert job.plan.tp == 8


def test_gradients_are_clipped_unless_the_script_says_zero(tmp_path):
    job, _ = read_megatron_script(FILES / "launch_gpt.sh", Given())
    assert job.plan.clip_gradients
    path = edited(
        tmp_path, "launch_gpt.sh", ("--recompute-method", "--clip-grad 0 --recompute-method")
    )
    job, _ = read_megatron_script(path, Given())
    assert not job.plan.clip_gradients


def test_recomputing_only_some_layers_counts_them(tmp_path):
    path = edited(
        tmp_path, "launch_gpt.sh",
        ("--recompute-method uniform --recompute-num-layers 1",
         "--recompute-method block --recompute-num-layers 2"),
    )  # fmt: skip
    job, _ = read_megatron_script(path, Given())
    assert (job.plan.recompute, job.plan.recompute_layers) == ("full", 2)


MODULES = [
    ("--recompute-granularity selective", ("selective", ())),
    ("--recompute-activations --recompute-modules core_attn", ("selective", ("core_attn",))),
    ("--recompute-granularity selective --recompute-modules layernorm mlp",
     ("selective", ("layernorm", "mlp"))),
    ("--recompute-granularity none --recompute-modules moe_act", ("none", ())),
]  # fmt: skip


@pytest.mark.parametrize(
    ("shared", "is_beside"), [("--moe-shared-expert-intermediate-size 1024", True), ("", False)]
)
def test_a_shared_expert_hides_exchanges_where_the_model_has_one(tmp_path, shared, is_beside):
    options = (
        "--num-experts 8", "--moe-shared-expert-overlap", "--moe-token-dispatcher-type alltoall",
        "--sequence-parallel", shared,
    )  # fmt: skip
    job, _ = read_megatron_script(launch(tmp_path, *options), Given(gpus=8))
    assert job.plan.overlap_shared_expert is is_beside


def test_options_of_experts_do_nothing_in_a_model_without_and_that_is_said(tmp_path):
    given = Given(gpus=8)
    job, report = read_megatron_script(launch(tmp_path, "--moe-grouped-gemm"), given)
    assert job.model.experts is None
    assert "the model has no experts, so nothing comes of moe_grouped_gemm" in report.assumed


@pytest.mark.parametrize(("options", "recomputed"), MODULES)
def test_megatron_names_the_modules_that_are_computed_again(tmp_path, options, recomputed):
    full = "--recompute-method uniform --recompute-num-layers 1"
    path = edited(tmp_path, "launch_gpt.sh", (full, options))
    job, _ = read_megatron_script(path, Given())
    assert (job.plan.recompute, job.plan.recompute_modules) == recomputed


REPEATED_EXPERTS = [
    ("", ("core_attn", "moe")),
    ("--recompute-granularity selective", ("core_attn", "moe")),
    ("--recompute-granularity selective --recompute-modules layernorm", ("layernorm", "moe")),
    ("--recompute-granularity selective --recompute-modules moe", ("moe",)),
]


@pytest.mark.parametrize(("options", "modules"), REPEATED_EXPERTS)
def test_the_option_for_expert_layers_adds_them_to_the_modules(tmp_path, options, modules):
    """``TransformerConfig.__post_init__`` of Megatron-Core."""
    new = f"--moe-grouped-gemm --moe-layer-recompute {options}"
    path = edited(tmp_path, "launch_moe.sh", ("--moe-grouped-gemm", new))
    job, report = read_megatron_script(path, Given())
    assert (job.plan.recompute, job.plan.recompute_modules) == ("selective", modules)
    assert not report.unsupported


def test_the_option_for_sorting_tokens_by_fused_kernels_is_read(tmp_path):
    options = ("--moe-grouped-gemm", "--moe-grouped-gemm --moe-permute-fusion")
    job, report = read_megatron_script(edited(tmp_path, "launch_moe.sh", options), Given())
    assert job.plan.stack.fused_permutation
    assert not report.unsupported


def test_weights_that_are_8_bit_themselves_have_no_8_bit_copies(tmp_path):
    usual, _ = read(read_megatron_script, "launch_moe.sh")
    options = ("--sequence-parallel", "--sequence-parallel --fp8-param-gather")
    job, report = read_megatron_script(edited(tmp_path, "launch_moe.sh", options), Given())
    assert (usual.plan.keeps_cast_weights, job.plan.keeps_cast_weights) == (True, False)
    assert any("8-bit weights" in said for said in report.assumed)
    assert not report.unsupported


@pytest.mark.parametrize(("recipe", "scaling"), [("delayed", "delayed"), ("tensorwise", "tensor")])
def test_the_recipe_of_8_bits_says_what_scales_follow_from(tmp_path, recipe, scaling):
    added = ("--sequence-parallel", f"--sequence-parallel --fp8-recipe {recipe}")
    plan = read_megatron_script(edited(tmp_path, "launch_moe.sh", added), Given())[0].plan
    assert plan.stack.float8_scaling == scaling


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ("--first-last-layers-bf16", (1, 1)),
        ("--first-last-layers-bf16 --num-layers-at-start-in-bf16 0"
         " --num-layers-at-end-in-bf16 4", (0, 4)),
        ("--num-layers-at-end-in-bf16 4", (0, 0)),
    ],
)  # fmt: skip
def test_layers_at_either_end_may_stay_in_bf16(tmp_path, options, counts):
    """Megatron-Core leaves one at each end out where the switch is given without numbers."""
    added = ("--sequence-parallel", f"--sequence-parallel {options}")
    path = edited(tmp_path, "launch_moe.sh", added)
    plan = read_megatron_script(path, Given())[0].plan
    assert (plan.first_bf16_layers, plan.last_bf16_layers) == counts


def test_expert_layers_are_not_repeated_twice(tmp_path):
    new = "--moe-grouped-gemm --moe-layer-recompute --recompute-granularity full"
    path = edited(tmp_path, "launch_moe.sh", ("--moe-grouped-gemm", new))
    with pytest.raises(InputError, match=r"moe_layer_recompute.*whole layers"):
        read_megatron_script(path, Given())


def test_chunks_take_turns_after_as_many_microbatches_as_there_are_stages(tmp_path):
    """Megatron-Core's default, named; another number is another order."""
    option = "--microbatch-group-size-per-virtual-pipeline-stage"
    for number, fits in ((4, True), (8, False)):
        path = edited(tmp_path, "launch_moe.sh", ("--sequence-parallel", f"{option} {number}"))
        if fits:
            assert not read_megatron_script(path, Given())[1].unsupported
            continue
        with pytest.raises(InputError, match="as many microbatches as stages, 4"):
            read_megatron_script(path, Given())


def test_an_unknown_module_is_refused_with_those_that_there_are(tmp_path):
    full = "--recompute-method uniform --recompute-num-layers 1"
    options = "--recompute-granularity selective --recompute-modules mlp gdn_norm_out"
    path = edited(tmp_path, "launch_gpt.sh", (full, options))
    with pytest.raises(InputError, match="known: core_attn") as caught:
        read_megatron_script(path, Given())
    assert [(fault.path, fault.value) for fault in caught.value.faults] == [
        ("recompute_modules", "gdn_norm_out")
    ]


@pytest.mark.parametrize("script", ["pretrain_t5.py", "x/pretrain_mamba.py"])
def test_networks_of_other_sorts_are_refused(tmp_path, script):
    path = edited(tmp_path, "launch_gpt.sh", ("pretrain_gpt.py", script))
    with pytest.raises(UnsupportedError, match="not a language model"):
        read_megatron_script(path, Given())


def test_nothing_of_a_script_is_run(tmp_path):
    mark = tmp_path / "mark"
    path = tmp_path / "evil.sh"
    path.write_text(
        f"touch {mark}\nX=$(touch {mark})\nY=`touch {mark}`\neval touch {mark}\n"
        f'Z=$((__import__("pathlib").Path("{mark}").touch()))\n'
        + (FILES / "launch_gpt.sh").read_text()
    )
    read_megatron_script(path, Given())
    assert not mark.exists()


MEMORY_OPTIONS = [
    ("--use-distributed-optimizer --optimizer-cpu-offload --use-precision-aware-optimizer",
     {"optimizer": "cpu", "overlap": False}),
    ("--use-distributed-optimizer --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d"
     " --optimizer-offload-fraction 0.5", {"optimizer": "cpu", "share": 0.5}),
    ("--optimizer-cpu-offload --optimizer-offload-fraction 0.0", {}),
    ("--pipeline-model-parallel-size 1 --recompute-granularity none"
     " --cpu-offloading --cpu-offloading-num-layers 23", {"activations": "cpu"}),
    ("--pipeline-model-parallel-size 1 --recompute-granularity none"
     " --cpu-offloading-num-layers 4", {"activations": "cpu", "activation_layers": 4}),
    ("--cpu-offloading-num-layers 0", {}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "offload"), MEMORY_OPTIONS)
def test_megatron_says_what_leaves_the_gpu(tmp_path, options, offload):
    path = tmp_path / "line.sh"
    # The last of several values counts.
    path.write_text(launch(tmp_path, "").read_text().replace("--save", f"{options} --save"))
    job, report = read_megatron_script(path, Given())
    assert job.plan.offload.model_dump(exclude_defaults=True) == offload
    assert not report.unsupported


def test_copies_through_memory_that_is_not_pinned_are_refused(tmp_path):
    options = ["--use-distributed-optimizer", "--optimizer-cpu-offload", "--no-pin-cpu-grads"]
    with pytest.raises(InputError, match=r"no_pin_cpu_grads.*pinned"):
        read_megatron_script(launch(tmp_path, *options), Given())


def test_copies_that_do_not_overlap_the_update_lengthen_the_step():
    plan = {"zero": 1, "offload": {"optimizer": "cpu", "overlap": True}}
    job = job_from_document(
        {
            "model": "llama3.1-8b",
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
            "batch": {"global": 8, "seq_len": 4096},
            "plan": plan,
        }
    )
    apart = job.replace(**{"plan.offload.overlap": False})
    numel = 8.03e9 / 8
    profile = job.cluster.profile
    # The gradients go in fp32, the weights come back in 16 bits, and nothing else runs then.
    copies_s = numel * (4 + 2) / profile.host.pcie_bytes_per_s
    gained_s = simulate(apart).step_time_s - simulate(job).step_time_s
    assert 0.7 * copies_s < gained_s < 1.05 * copies_s


def test_gradients_without_an_fp32_copy_are_a_fact_of_the_stack(tmp_path):
    options = "--use-precision-aware-optimizer --main-grads-dtype bf16"
    path = edited(tmp_path, "launch_moe.sh", ("--use-distributed-optimizer",
                  f"--use-distributed-optimizer {options}"))  # fmt: skip
    job, report = read_megatron_script(path, Given())
    assert (job.plan.grad_reduce_precision, job.plan.stack.copies_gradients) == ("bf16", False)
    assert not report.unsupported


@pytest.mark.parametrize("option", ["--exp-avg-dtype bf16", "--main-params-dtype fp16"])
def test_states_of_16_bits_are_refused_but_for_both_moments(tmp_path, option):
    path = launch(tmp_path, "--use-precision-aware-optimizer", option)
    with pytest.raises(InputError, match=r"both moments in fp32 or bf16|known: fp32"):
        read_megatron_script(path, Given())
    both = "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
    job, _ = read_megatron_script(launch(tmp_path, both), Given())
    assert job.plan.moment_precision == "bf16"
    # Without the optimizer that heeds them, Megatron's formats have no effect.
    read_megatron_script(launch(tmp_path, "--exp-avg-dtype fp32"), Given())


def test_muon_is_read_and_its_costly_settings_are_refused(tmp_path):
    options = ["--optimizer muon", "--muon-momentum 0.95", "--muon-tp-mode blockwise"]
    job, report = read_megatron_script(launch(tmp_path, *options), Given())
    assert job.plan.optimizer == "muon"
    assert not report.unsupported
    path = launch(tmp_path, "--optimizer muon", "--muon-tp-mode duplicated")
    with pytest.raises(InputError, match="gathers the parts"):
        read_megatron_script(path, Given())


def test_saved_activations_are_distributed(tmp_path):
    job, report = read_megatron_script(launch(tmp_path, "--distribute-saved-activations"), Given())
    assert job.plan.partition_activations
    assert not report.unsupported


def test_options_of_megatron_deepspeed_say_where_checkpoints_are(tmp_path):
    options = "--partition-activations --contigious-checkpointing"
    old = "--deepspeed-activation-checkpointing"
    path = edited(tmp_path, "launch_deepspeed.sh", (old, f"{old} {options}"))
    job, _ = read_megatron_script(path, Given())
    assert job.plan.partition_activations
    assert job.plan.contiguous_checkpoints
    # Without recomputation there are none.
    job, _ = read_megatron_script(edited(tmp_path, "launch_deepspeed.sh", (old, options)), Given())
    assert not job.plan.partition_activations


@pytest.mark.parametrize(
    ("options", "graphs"),
    [
        ("--external-cuda-graph", "layer"),
        ("--cuda-graph-impl local", "layer"),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", "full"),
        ("--cuda-graph-impl local --cuda-graph-scope moe_router moe_preprocess", "router"),
        ("--cuda-graph-impl local --cuda-graph-scope attn moe_router", "layer"),
        ("--cuda-graph-impl none", "none"),
        ("", "none"),
    ],
)
def test_graphs_and_determinism_are_fields_of_the_plan(tmp_path, options, graphs):
    path = edited(tmp_path, "launch_gpt.sh", ("--fp16", f"--fp16 --deterministic-mode {options}"))
    plan = read_megatron_script(path, Given())[0].plan
    assert (plan.cuda_graphs, plan.deterministic) == (graphs, True)


@pytest.mark.parametrize(
    ("dispatcher", "way", "says"), [("flex", "hierarchical", 0), ("alltoall", "all_to_all", 1)]
)
def test_what_costs_time_in_the_way_of_tokens_is_not_called_free(tmp_path, dispatcher, way, says):
    options = (
        "--num-layers 4 --hidden-size 1024 --num-attention-heads 8 --vocab-size 32000 --bf16 "
        "--num-experts 8 --moe-ffn-hidden-size 512 --expert-model-parallel-size 4 "
        "--seq-length 1024 --micro-batch-size 1 --global-batch-size 16 --moe-permute-fusion "
        f"--moe-router-fusion --moe-enable-deepep --moe-token-dispatcher-type {dispatcher}"
    )
    path = tmp_path / "launch.sh"
    path.write_text(f"torchrun --nproc-per-node 8 pretrain_gpt.py {options}\n", encoding="utf-8")
    job, report = read_megatron_script(path, Given())
    assert job.plan.ep_dispatch == way
    assert not {key for key in report.ignored if key.startswith("moe_")}
    named = [note.partition(":")[0] for note in report.assumed]
    assert job.plan.stack.fused_permutation
    assert "moe_router_fusion" in named
    assert sum("moe_enable_deepep" in note for note in report.assumed) == says


@pytest.mark.parametrize("backend", ["deepep", "hybridep"])
def test_the_backend_of_flex_says_whose_kernels_pass_tokens(tmp_path, backend):
    options = (
        "--num-layers 4 --hidden-size 1024 --num-attention-heads 8 --vocab-size 32000 --bf16 "
        "--num-experts 8 --moe-ffn-hidden-size 512 --expert-model-parallel-size 4 "
        "--seq-length 1024 --micro-batch-size 1 --global-batch-size 16 "
        f"--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend {backend}"
    )
    path = tmp_path / "launch.sh"
    path.write_text(f"torchrun --nproc-per-node 8 pretrain_gpt.py {options}\n", encoding="utf-8")
    plan = read_megatron_script(path, Given())[0].plan
    assert (plan.ep_dispatch, plan.stack.expert_exchange) == ("hierarchical", backend)


def test_dropout_that_nobody_switched_off_is_said_to_be_assumed(tmp_path):
    line = (
        "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
        "--seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 8 "
        "--bf16 --vocab-size 1000"
    )
    for extra, words in (("", "--hidden-dropout and --attention-dropout 0.1"),
                         (" --attention-dropout 0", "--hidden-dropout 0.1")):  # fmt: skip
        path = tmp_path / "train.sh"
        path.write_text(line + extra, encoding="utf-8")
        _, report = read_megatron_script(path, Given(gpus=8))
        assert any(words in each for each in report.assumed)


def test_the_model_that_the_user_names_counts_in_place_of_the_scripts_own(tmp_path):
    words = ("--num-experts", "--vocab-size 1000 --num-experts")
    named = Given(model="mixtral-8x7b")
    job, _ = read_megatron_script(edited(tmp_path, "launch_moe.sh", words), named)
    assert job.model.vocab == load_model("mixtral-8x7b").vocab


def test_distributed_muon_gives_ranks_whole_parameters_and_gathers_them_at_once(tmp_path):
    """Megatron-Core 0.16, optimizer/layer_wise_optimizer.py; gradients are reduced for all."""
    job, report = read_megatron_script(launch(tmp_path, "--optimizer dist_muon"), Given())
    stack = job.plan.stack
    assert (job.plan.optimizer, job.plan.zero) == ("muon", 1)
    assert (stack.shards_whole_parameters, stack.flat_broadcasts) == (True, True)
    assert not report.unsupported
