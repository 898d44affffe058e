"""Facts of a framework in the releases that a plan names."""

from __future__ import annotations

import pytest

from simulator.described.load import job_from_document
from simulator.described.plan.plan import Plan
from simulator.described.plan.releases import known_releases, nearest_release
from simulator.described.plan.shipped_stacks import STACKS
from simulator.errors import InputError
from simulator.facts import shipped_facts


def job_of(**plan: object):
    cluster, batch = {"profile": "h100-sxm-80gb", "gpus": 8}, {"global": 8, "seq_len": 1024}
    return job_from_document(
        {"model": "llama3-8b", "cluster": cluster, "batch": batch, "plan": plan}
    )


def stack(name: str = "megatron-core", **libraries: object):
    return Plan.model_validate({"stack": name, "libraries": libraries}).stack


@pytest.mark.parametrize(
    ("release", "keeps"), [("2.2", False), ("2.3", True), ("2.11", True), ("2.3.1", True)]
)
def test_transformer_engine_keeps_placeholders_of_gradients_since_2_3(release, keeps):
    assert stack(transformer_engine=release).keeps_placeholder_gradients is keeps


def test_the_newest_release_is_the_default():
    newest = {name: known_releases(name)[-1] for name in ("transformer_engine", "torch", "nccl")}
    name = f"megatron-core@{known_releases('megatron-core')[-1]}"
    assert stack(name, **newest) == stack() == STACKS["megatron-core"]


@pytest.mark.parametrize(("release", "loss"), [("0.0", "eager"), ("0.1.0", "fused")])
def test_torchtitan_compiles_its_loss_since_0_1(release, loss):
    assert stack(f"torchtitan@{release}").cross_entropy == loss


@pytest.mark.parametrize(
    ("release", "kernel"),
    [
        ("2.1", "sdpa-2.0"),
        ("2.2", "sdpa-2.2"),
        ("2.8", "sdpa-2.2"),
        ("2.9", "sdpa-2.9"),
        ("2.10", "sdpa-2.2"),
        ("2.11", "sdpa-2.11"),
    ],
)
def test_pytorch_puts_cudnns_attention_first_in_2_9_and_again_in_2_11(release, kernel):
    assert stack("torch", torch=release).flash_kernel == kernel
    assert stack("torchtune", torch=release).flash_kernel == kernel


@pytest.mark.parametrize(
    ("release", "kernel", "repeats"),
    [("0.0", "sdpa-2.2", True), ("0.1", "cudnn-on-blackwell", True), ("0.2", "cudnn", False)],
)
def test_torchtitan_names_cudnns_attention_first_and_knows_it_later(release, kernel, repeats):
    found = stack(f"torchtitan@{release}")
    assert (found.flash_kernel, found.repeats_cudnn_attention) == (kernel, repeats)


@pytest.mark.parametrize(("release", "loss"), [("4.48", "eager-shifted"), ("4.49.1", "eager")])
@pytest.mark.parametrize("name", ["trl", "deepspeed", "ms-swift"])
def test_transformers_copies_logits_to_shift_them_before_4_49(name, release, loss):
    assert stack(name, transformers=release).cross_entropy == loss
    assert stack(name).cross_entropy == "eager"


@pytest.mark.parametrize(
    ("release", "follows", "adds"),
    [("4.42", False, "rotary"), ("4.43", True, "rotary"), ("5.2", True, True)],
)
def test_transformers_rotates_in_the_format_of_the_stream_since_4_43(release, follows, adds):
    """And adds the mask of GPT-2 to scores, too, since 5.2."""
    found = stack("trl", transformers=release)
    assert (found.rotary_follows_stream, found.adds_causal_mask) == (follows, adds)


@pytest.mark.parametrize(
    ("transformers", "torch", "attention"),
    [("4.35", "2.2", "unfused"), ("4.36", "2.0", "unfused"), ("4.36", "2.1", "flash")],
)
@pytest.mark.parametrize("name", ["trl", "deepspeed"])
def test_transformers_takes_pytorchs_attention_since_4_36(name, transformers, torch, attention):
    assert stack(name, transformers=transformers, torch=torch).attention == attention


@pytest.mark.parametrize("release", ["4.57", "5.0"])
def test_layers_of_transformers_5_are_checkpointed_without_reentrant_autograd(release):
    """axolotl, LLaMA-Factory, ms-swift and Unsloth say themselves how, and none does so."""
    assert stack("trl", transformers=release).recompute_stops_early is (release == "5.0")
    for name in ("axolotl", "llama-factory", "ms-swift", "unsloth"):
        assert not stack(name, transformers=release).recompute_stops_early


@pytest.mark.parametrize(("release", "widens"), [("0.25", True), ("0.26", False)])
def test_trainers_of_trl_leave_what_is_not_quantised_in_16_bits_since_0_26(release, widens):
    """With axolotl, which calls peft's function itself, they do not."""
    assert stack(f"trl@{release}").widens_unquantised is widens
    assert stack("trl").widens_unquantised is False
    assert stack("axolotl").widens_unquantised is True


@pytest.mark.parametrize(
    ("name", "release", "early", "loss"),
    [
        ("trl", "0.26", False, "eager"),
        ("trl", "0.27", True, "eager"),
        ("trl", "1.6", True, "eager"),
        ("trl", "1.7.1", True, "tiled"),
        ("trl", "1.16", True, "tiled"),
        ("torchtitan", "0.2", True, "fused"),
        ("torchtitan", "0.3", True, "chunked-head"),
    ],
)
def test_a_trainer_that_is_named_computes_its_own_loss(name, release, early, loss):
    """A stack of that name without a release may be transformers' Trainer, or another loss."""
    found = stack(f"{name}@{release}", **({"transformers": "4.57"} if name == "trl" else {}))
    assert (found.recompute_stops_early, found.cross_entropy) == (early, loss)
    assert STACKS[name].cross_entropy == {"trl": "eager", "torchtitan": "fused"}[name]


def test_a_loss_in_chunks_is_not_compiled_with_the_layers_or_without():
    kinds = [
        Plan.model_validate({"stack": name, "compile": False}).stack.cross_entropy
        for name in ("torchtitan@0.2", "torchtitan@0.3")
    ]
    assert kinds == ["eager", "chunked-head"]


@pytest.mark.parametrize(("release", "widens"), [("2.12", True), ("2.13", False), ("2.21", False)])
def test_transformer_engine_updates_16_bit_moments_as_they_are_since_2_13(release, widens):
    found = stack(transformer_engine=release)
    assert (found.widens_moments, found.precision_aware) == (widens, True)


@pytest.mark.parametrize(
    ("transformers", "torch", "copies"),
    [("4.53", "2.8", 1), ("4.54", "2.7", 1), ("4.54", "2.8", 0), ("5.0", "2.11", 0)],
)
def test_the_trainers_adamw_is_fused_since_transformers_4_54_on_pytorch_2_8(
    transformers, torch, copies
):
    assert stack("trl", transformers=transformers, torch=torch).update_copies == copies


@pytest.mark.parametrize(("transformers", "copies"), [("4.31", 0), ("4.32", 1)])
def test_the_trainer_before_transformers_4_32_updates_one_parameter_after_another(
    transformers, copies
):
    assert stack("trl", transformers=transformers, torch="2.0").update_copies == copies


@pytest.mark.parametrize(
    ("transformers", "torch", "is_grouped"),
    [("4.57", "2.9", False), ("5.0", "2.8", False), ("5.0", "2.9", True)],
)
def test_experts_of_transformers_5_are_one_product_on_pytorch_2_9(transformers, torch, is_grouped):
    found = stack("trl", transformers=transformers, torch=torch)
    waits = "none" if is_grouped else "expert"
    assert (found.grouped_experts, found.expert_waits) == (is_grouped, waits)


@pytest.mark.parametrize("library", ["deepspeed", "torch", "transformers"])
def test_releases_are_listed_in_the_order_in_which_they_came_out(library):
    months = shipped_facts("releases")[library]["months"]
    assert list(months) == [each for each in known_releases(library) if each in months]
    assert list(months.values()) == sorted(months.values())


def test_a_release_that_is_not_told_apart_is_the_one_before_it():
    newest = known_releases("torch")[-1]
    assert nearest_release("torch", newest) == nearest_release("torch", "2.99") == newest
    assert (nearest_release("torch", "1.6"), nearest_release("torch", "2.8")) == ("1.8", "2.8")


def test_a_framework_of_its_time_stays_on_the_torch_of_its_time():
    """Megatron-LM of 2021 adds biases by kernels of their own, as F.linear of torch 1.11 did."""
    assert not stack("megatron-lm-2021").fused_biases
    assert stack("megatron-lm-2021", torch="1.13").fused_biases


def test_a_framework_follows_libraries_of_what_it_is_built_on():
    assert stack("torchtune", torch="1.13").frees_gradients is False
    assert stack("torchtune", torch="2.0").frees_gradients is True


def test_a_block_changes_facts_of_a_release():
    plan = {"stack": {"base": "megatron-core@0.4", "dropout": True}, "libraries": {"torch": 2.8}}
    found = Plan.model_validate(plan).stack
    assert (found.fused_rotary, found.dropout) == (False, True)
    assert stack().fused_rotary


def test_a_job_keeps_the_releases_when_something_else_changes():
    job = job_of(stack="megatron-core@0.4", libraries={"transformer_engine": "2.2"})
    changed = job.replace(**{"plan.zero": 1})
    assert changed.plan.stack == job.plan.stack != STACKS["megatron-core"]
    assert changed.stack_name == "megatron-core"


@pytest.mark.parametrize(
    ("plan", "path", "said"),
    [
        ({"stack": "megatron-core@0.1"}, "plan.stack", "known: 0.4, 0.5"),
        ({"stack": "megatron-core@0.99"}, "plan.stack", "leave 0.99 out"),
        ({"stack": "nanotron@1"}, "plan.stack", "not told apart"),
        ({"libraries": {"torch": "1.7"}}, "plan.libraries", "known: 1.8"),
        ({"libraries": {"torch": "3.7"}}, "plan.libraries", "no release of torch after 2.15"),
        ({"libraries": {"apex": "1"}}, "plan.libraries", "known: transformer_engine"),
        ({"libraries": {"torch": 2.1}}, "plan.libraries", "quote it"),
        ({"libraries": "2.1"}, "plan.libraries", "releases by library"),
    ],
)
def test_a_release_nobody_knows_is_refused_with_those_that_are(plan, path, said):
    with pytest.raises(InputError) as error:
        job_of(**plan)
    (fault,) = error.value.faults
    assert fault.path == path
    assert said in f"{fault.rule} {fault.hint}"


@pytest.mark.parametrize("name", STACKS)
def test_facts_follow_releases_that_are_known(name):
    content = shipped_facts(f"stacks/{name}")
    bounds = [
        (group.get("library", name), group[key])
        for group in content["facts"]
        for key in ("since", "before")
        if key in group
    ]
    bounds += content.get("libraries", {}).items()
    assert [bound for bound in bounds if bound[1] not in known_releases(bound[0])] == []


def test_torchtitan_before_2025_holds_embedding_and_head_in_the_models_own_unit():
    of_2024, newest = Plan(stack="torchtitan@0.0.2"), Plan(stack="torchtitan")
    assert (of_2024.stack.sharding_units, newest.stack.sharding_units) == ("root", "ends")


def test_norms_of_plain_torch_are_one_kernel_since_it_has_one():
    assert [stack("torch", torch=release).fused_rmsnorm for release in ("2.8", "2.9")] == [
        False,
        True,
    ]
    assert not stack("trl", torch="2.9").fused_rmsnorm


def test_pytorchs_attention_reads_fp32_and_megatrons_does_not():
    kernels = {
        name: job_of(stack=name, precision="fp32").plan.attention_kernel
        for name in ("torch", "megatron-core")
    }
    assert kernels == {"torch": "flash", "megatron-core": "unfused"}
