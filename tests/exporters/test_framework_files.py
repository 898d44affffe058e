"""Export and import are inverse: what a framework is told is what the job says."""

from __future__ import annotations

import json
import tomllib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulator.api import simulate
from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.errors import InputError, UnsupportedError
from simulator.exporters.deepspeed import deepspeed_config
from simulator.exporters.megatron import megatron_script
from simulator.exporters.plans import spelled_out
from simulator.exporters.torchtitan import schedule_csv, torchtitan_config
from simulator.importers.assembly import Given
from simulator.importers.deepspeed import read_deepspeed_config
from simulator.importers.megatron.launch_line import read_megatron_script
from simulator.importers.torchtitan import MODELS, read_torchtitan_config
from simulator.program.run.order import StepOrder
from tests.exporters.round_trips import assert_same, imported, job_with

_FLAG = st.booleans()
_EXCHANGE = st.sampled_from(["deepep", "hybridep"])
_DEGREE = st.sampled_from([1, 2, 4])


def sound(document: dict[str, Any]) -> Job:
    """The job of a document; what breaks a rule is not tried further."""
    try:
        return job_from_document(document)
    except InputError:
        assume(False)
        raise


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """Dimensions of every kind that Megatron-LM's options can say."""
    heads, head_dim = 8, draw(st.sampled_from([16, 32]))
    model: dict[str, Any] = {
        "name": "tiny",
        "layers": draw(st.sampled_from([8, 16])),
        "hidden": 256,
        "heads": heads,
        "head_dim": head_dim,
        "kv_heads": draw(st.sampled_from([4, 8])),
        "ffn_hidden": draw(st.sampled_from([512, 1024])),
        "vocab": draw(st.sampled_from([1000, 32000])),
        "tied_embeddings": draw(_FLAG),
        "qk_norm": draw(st.sampled_from(["none", "head"])),
        "multi_token_layers": draw(st.sampled_from([0, 1])),
        "attention_sinks": draw(_FLAG),
    }
    if draw(_FLAG):
        model |= {"gated_mlp": False, "activation": draw(st.sampled_from(["gelu", "squared-relu"]))}
    else:
        model["clamped_gate"] = draw(_FLAG)
    if draw(_FLAG):
        model |= {"normalisation": "layernorm", "norm_bias": True}
    if draw(_FLAG):
        model |= dict.fromkeys(("qkv_bias", "attention_output_bias", "mlp_bias"), True)
    model["qkv_bias"] = model.get("qkv_bias", draw(_FLAG))
    if draw(_FLAG):
        model |= {"positions": "learned", "max_positions": 4096}
    if draw(_FLAG):
        model |= {"sliding_window": 128, "sliding_window_every": draw(st.sampled_from([1, 2]))}
    if draw(_FLAG):
        model["latent_attention"] = {
            "q_lora_rank": draw(st.sampled_from([0, 64])), "kv_lora_rank": 64,
            "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
        }  # fmt: skip
        model |= {"kv_heads": 0, "head_dim": 0, "qkv_bias": False, "qk_norm": "none",
                  "attention_output_bias": False, "mlp_bias": False}  # fmt: skip
    if draw(_FLAG):
        model["experts"] = {
            "count": 8,
            "top_k": draw(st.sampled_from([1, 2])),
            "ffn_hidden": 256,
            "shared_ffn_hidden": (shared := draw(st.sampled_from([0, 256]))),
            "shared_gate": bool(shared) and draw(_FLAG),
            "router_bias": draw(_FLAG),
            **draw(st.sampled_from([{}, {"groups": 4, "top_groups": 2}])),
            "capacity_factor": draw(st.sampled_from([None, 1.25])),
            **draw(st.sampled_from([{}, {"first_dense_layers": 2}, {"every": 2}])),
        }
    return model


@st.composite
def megatron_jobs(draw: st.DrawFn) -> Job:
    """Jobs that Megatron-LM runs."""
    tp, pp, cp, dp = (draw(_DEGREE) for _ in range(4))
    model = draw(models())
    vpp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    micro = draw(st.sampled_from([1, 2]))
    precision = draw(st.sampled_from(["bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"]))
    narrow = {"fp16": "fp16", "fp32": "fp32"}.get(precision, "bf16")
    zero = draw(st.integers(0, 3))
    optimizers = ["adam", "sgd", "sgd-momentum", *([] if zero else ["muon"])]
    dispatchers = ["all_to_all", "all_gather", "hierarchical"]
    experts = {
        "ep": draw(_DEGREE),
        "etp": draw(st.sampled_from([1, tp])),
        "ep_dispatch": draw(st.sampled_from(dispatchers)),
    }
    sends_by_node = "experts" in model and experts["ep_dispatch"] == "hierarchical"
    cp_method = draw(st.sampled_from(["ring", "all_to_all", "all_gather", "all_to_all+ring"]))
    plan = {
        "tp": tp, "pp": pp, "cp": cp, "vpp": vpp,
        **(experts if "experts" in model else {}),
        "cp_method": cp_method,
        "cp_heads": draw(st.sampled_from([1, cp])) if cp_method == "all_to_all+ring" else 1,
        "zero": zero,
        "zero_group": draw(st.sampled_from([0, 1, 2])) if zero else 0,
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "precision": precision,
        "first_bf16_layers": draw(st.sampled_from([0, 1])) if precision.endswith(("8", "4")) else 0,
        "grad_reduce_precision": draw(st.sampled_from(["fp32", narrow])),
        "attention": draw(st.sampled_from([None, "fused-softmax", "unfused"])),
        "optimizer": draw(st.sampled_from(optimizers)),
        "clip_gradients": draw(_FLAG),
        "overlap_p2p": draw(st.sampled_from([None, False])),
        "rank_order": draw(st.sampled_from([None, "tp-cp-ep-pp-dp"])),
        "overlap_tp": draw(_FLAG),
        "overlap_ep": "experts" in model and (pp == 1 or vpp > 1) and draw(_FLAG),
        **{
            name: draw(st.sampled_from([None, True, False]))
            for name in ("sequence_parallel", "overlap_grad_reduce", "overlap_param_gather")
        },
        **draw(st.sampled_from([{}, {"account_for_embedding": True, "account_for_loss": True}])),
        "stack": {
            "base": "megatron-core",
            "dropout": draw(_FLAG),
            "cross_entropy": draw(st.sampled_from(["fused", "in-place"])),
            "grouped_experts": "experts" in model and draw(_FLAG),
            **({"expert_exchange": draw(_EXCHANGE)} if sends_by_node else {}),
            **{
                f"fused_{what}": draw(_FLAG) for what in ("accumulation", "rotary", "elementwise")
            },
        },
    }  # fmt: skip
    plan |= draw(memory_fields(plan))
    if pp > 1 and "account_for_loss" not in plan:
        plan |= draw(uneven_stages(model["layers"], pp, vpp))
    document = {
        "model": model,
        "cluster": {"profile": "h100-sxm-80gb", "gpus": tp * pp * cp * dp},
        "batch": {"global": micro * dp * pp * 2, "micro": micro, "seq_len": 2048},
        "plan": {key: value for key, value in plan.items() if value is not None},
    }
    return sound(document)


@st.composite
def memory_fields(draw: st.DrawFn, plan: dict[str, Any]) -> dict[str, Any]:
    """What a plan that fits them says of recomputation, offloading and gradients' formats."""
    found: dict[str, Any] = {}
    if plan["recompute"] == "full":
        found["recompute_layers"] = draw(st.sampled_from([None, 0, 1]))
        if plan["tp"] > 1 and draw(_FLAG):
            found |= {"sequence_parallel": False, "partition_activations": True}
    if plan["recompute"] == "selective":
        names = ["core_attn", "layernorm", "mlp", *(["moe"] if "ep" in plan else [])]
        names += ["moe_act"] if plan["stack"]["grouped_experts"] else []
        found["recompute_modules"] = draw(st.lists(st.sampled_from(names), unique=True))
    if plan["zero"] and plan["precision"] == "bf16" and plan["grad_reduce_precision"] == "bf16":
        found["stack"] = {**plan["stack"], "copies_gradients": draw(_FLAG)}
    offload: dict[str, Any] = {}
    if plan["zero"] == 1 and draw(_FLAG):
        offload = {"optimizer": "cpu", "share": draw(st.sampled_from([0.25, 1.0])),
                   "overlap": draw(_FLAG)}  # fmt: skip
        found["optimizer"] = draw(st.sampled_from(["adam", "sgd-momentum"]))
    if plan["recompute"] == "none" and plan["pp"] == 1 and draw(_FLAG):
        offload["activations"] = "cpu"
    return found | ({"offload": offload} if offload else {})


@st.composite
def uneven_stages(draw: st.DrawFn, layers: int, pp: int, vpp: int) -> dict[str, Any]:
    """Layers of stages in one of the ways to say them; nothing where they are dealt evenly."""
    stages = pp * vpp
    way = draw(st.sampled_from(["even", "layout", "text", "ends"]))
    if way == "even" or (way == "ends" and (vpp > 1 or pp < 4)):
        return {}
    if way == "ends":
        # What is left of 8 or 16 layers is dealt evenly to the stages between.
        return {"first_stage_layers": layers // 4, "last_stage_layers": layers // 4}
    cuts = draw(st.lists(st.integers(0, layers), min_size=stages - 1, max_size=stages - 1))
    counts = [high - low for low, high in pairwise([0, *sorted(cuts), layers])]
    if way == "layout":
        return {"layout": counts}
    bars = ["t" * number for number in counts]
    return {"layout": "|".join(["E" + bars[0], *bars[1:-1], bars[-1] + "L"])}


@settings(max_examples=50, deadline=None)
@given(megatron_jobs())
def test_a_job_told_to_megatron_and_read_back_is_the_same_job(job):
    script = megatron_script(job)
    assert_same(job, imported(read_megatron_script, script, f"{job.model.name}.sh"))


@st.composite
def torchtitan_jobs(draw: st.DrawFn) -> Job:
    """Jobs that torchtitan runs."""
    model = draw(st.sampled_from(sorted(set(MODELS.values()) - {"gpt-oss-20b"})))
    tp, pp, cp, dp = (draw(_DEGREE) for _ in range(4))
    schedule, vpp = draw(
        st.sampled_from([("1f1b", 1), ("gpipe", 1), ("interleaved-1f1b", 2), ("looped-bfs", 2),
                         ("interleaved-1f1b", 4), ("zb-1p", 1), ("zb-v", 2), ("dualpipev", 2)])
    )  # fmt: skip
    micro = draw(st.sampled_from([1, 2]))
    zero = draw(st.sampled_from([0, 3])) if cp == 1 and dp > 1 else 3
    counts = draw(st.sampled_from([True, False]))
    plan: dict[str, Any] = {
        "tp": tp, "pp": pp, "cp": cp, "zero": zero, "stack": {"base": "torchtitan"},
        "cp_method": draw(st.sampled_from(["ring", "all_gather"])) if cp > 1 else "ring",
        "zero_group": draw(st.sampled_from([0, 2 * cp])) if zero else 0,
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "precision": draw(st.sampled_from(["bf16", "fp32", "fp8", "mxfp8"])),
        "overlap_tp": draw(_FLAG),
        **({"reshard_after_forward": draw(_FLAG)} if zero else {}),
        "grad_reduce_precision": draw(st.sampled_from(["fp32", "bf16"])),
    }  # fmt: skip
    if pp > 1:
        plan |= {"schedule": schedule, "vpp": vpp,
                 "account_for_embedding": counts, "account_for_loss": counts}  # fmt: skip
    if zero and pp == 1 and draw(_FLAG):
        plan["offload"] = {"optimizer": "cpu", "parameters": "cpu"}
    if draw(_FLAG):
        plan["compile"] = False
    if model.startswith("deepseek"):
        plan["ep"] = draw(_DEGREE)
    document = {
        "model": model,
        "cluster": {"profile": "h100-sxm-80gb", "gpus": tp * pp * cp * dp},
        "batch": {"global": micro * dp * pp * 2, "micro": micro, "seq_len": 4096},
        "plan": plan,
    }
    job = sound(document)
    units, stages = job.model.layers + 2 * (pp > 1 and counts), pp * job.plan.vpp
    # torchtitan is told layers per stage, and not every number of stages comes out.
    assume(-(-units // -(-units // stages)) == stages)
    return job


@settings(max_examples=20, deadline=None)
@given(torchtitan_jobs())
def test_a_job_told_to_torchtitan_and_read_back_is_the_same_job(job):
    text = torchtitan_config(job)
    gpus = job.cluster.gpus
    assert_same(job, imported(read_torchtitan_config, text, "job.toml", gpus=gpus))
    as_json = json.dumps(tomllib.loads(text))
    assert_same(job, imported(read_torchtitan_config, as_json, "job.json", gpus=gpus))


@st.composite
def deepspeed_jobs(draw: st.DrawFn) -> Job:
    """Jobs that DeepSpeed's configuration says."""
    tp, cp, dp = draw(_DEGREE), draw(_DEGREE), draw(_DEGREE)
    micro = draw(st.sampled_from([1, 2]))
    zero = draw(st.integers(0, 3))
    precision = draw(st.sampled_from(["bf16", "fp16", "fp32"]))
    plan: dict[str, Any] = {
        "tp": tp, "cp": cp, "cp_method": "all_to_all", "zero": zero, "precision": precision,
        "zero_group": draw(st.sampled_from([0, 2])) if zero == 3 else 0,
        "optimizer": draw(st.sampled_from(["adam", "sgd", "sgd-momentum", "lamb"])),
        "clip_gradients": draw(_FLAG),
        "overlap_grad_reduce": draw(_FLAG), "overlap_param_gather": zero == 3,
        "grad_reduce_precision": draw(st.sampled_from(["fp32", "fp16", "bf16"])),
        "stack": {"base": "deepspeed",
                  "main_grad_precision": draw(st.sampled_from(["fp16", "fp32", "bf16"])),
                  "bucket": draw(st.sampled_from(["160 MB", "1 GB", "400 MB"]))},
    }  # fmt: skip
    if zero:
        plan["offload"] = draw(st.sampled_from(OFFLOADS if zero == 3 else OFFLOADS[:2]))
    plan |= draw(st.sampled_from(CHECKPOINTS))
    if plan.pop("on_host", False):
        plan["offload"] = {**plan.get("offload", {}), "activations": "cpu"}
    if tp > 1 and "recompute" in plan:
        plan["partition_activations"] = True
    document = {
        "model": "llama3.1-8b",
        "cluster": {"profile": "h100-sxm-80gb", "gpus": tp * cp * dp},
        "batch": {"global": micro * dp * 2, "micro": micro, "seq_len": 2048},
        "plan": plan,
    }
    return sound(document)


CHECKPOINTS: list[dict[str, Any]] = [
    {},
    {"recompute": "full", "on_host": True},
    {"recompute": "full", "contiguous_checkpoints": True},
]
"""Where DeepSpeed keeps the inputs of layers that are computed again."""

OFFLOADS = [
    {},
    {"optimizer": "cpu"},
    {"optimizer": "cpu", "share": 0.5},
    {"optimizer": "cpu", "parameters": "cpu"},
]
"""What DeepSpeed moves to the host; only the first two with every ZeRO stage."""


@settings(max_examples=30, deadline=None)
@given(deepspeed_jobs())
def test_a_job_told_to_deepspeed_and_read_back_is_the_same_job(job):
    text = deepspeed_config(job)
    given = {"model": "llama3.1-8b", "gpus": job.cluster.gpus, "seq_len": 2048}
    assert_same(job, imported(read_deepspeed_config, text, "ds_config.json", **given))


@pytest.mark.parametrize("stack", ["deepspeed@0.11", "deepspeed"])
def test_deepspeed_is_told_to_reduce_parts_of_gradients_where_a_release_does(stack):
    plan = {"stack": stack, "zero": 2, "overlap_param_gather": False}
    batch = {"global": 8, "micro": 1, "seq_len": 2048}
    cluster = {"profile": "h100-sxm-80gb", "gpus": 8}
    job = sound({"model": "llama3.1-8b", "cluster": cluster, "batch": batch, "plan": plan})
    zero = json.loads(deepspeed_config(job))["zero_optimization"]
    assert zero.get("use_multi_rank_bucket_allreduce", True) == (stack == "deepspeed")


_OPTIONAL = st.sampled_from([None, 0, 123_456, 5e8])
"""Elements, where a file says them."""


@st.composite
def deepspeed_files(draw: st.DrawFn) -> dict[str, Any]:
    """Files with every setting of DeepSpeed's that decides how states are sharded and reduced."""
    precision = draw(st.sampled_from(["bf16", "fp16", None]))
    zero = {
        "stage": draw(st.integers(0, 3)),
        "overlap_comm": draw(st.sampled_from([None, True, False])),
        "reduce_bucket_size": draw(st.sampled_from([None, 1, 40_000_001, 5e8])),
        "stage3_param_persistence_threshold": draw(_OPTIONAL),
        "stage3_max_live_parameters": draw(_OPTIONAL),
        "stage3_max_reuse_distance": draw(_OPTIONAL),
    }
    formats = st.sampled_from([None, "fp32", "fp16", "bf16"])
    config = {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": draw(st.sampled_from([1, 2])),
        "communication_data_type": draw(formats),
        "gradient_clipping": draw(st.sampled_from([None, 0.0, 1.0])),
        "zero_optimization": {key: value for key, value in zero.items() if value is not None},
        "data_types": {"grad_accum_dtype": draw(formats)},
    }
    if precision:
        config[precision] = {"enabled": True}
    if config["data_types"]["grad_accum_dtype"] is None:
        del config["data_types"]
    return {key: value for key, value in config.items() if value is not None}


@settings(max_examples=40, deadline=None)
@given(deepspeed_files(), st.sampled_from(["deepspeed", "deepspeed-2021"]))
def test_a_file_of_deepspeed_is_the_same_job_when_it_is_exported_and_read_again(config, stack):
    given = {"model": "llama3.1-8b", "gpus": 8, "seq_len": 2048, "changes": {"plan.stack": stack}}
    job = imported(read_deepspeed_config, json.dumps(config), "ds_config.json", **given)
    again = imported(read_deepspeed_config, deepspeed_config(job), "ds_config.json", **given)
    assert_same(job, again)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_a_file_for_deepspeed_names_a_format_of_gradients_only_where_it_differs(precision, zero):
    """DeepSpeed reduces in the format that it trains in (engine.py, communication_data_type)."""
    job = job_with(stack="deepspeed", zero=zero, precision=precision)
    assert "communication_data_type" not in deepspeed_config(job)
    other = "bf16" if precision == "fp32" else "fp32"
    job = job.replace(**{"plan.grad_reduce_precision": other})
    assert json.loads(deepspeed_config(job))["communication_data_type"] == other


@pytest.mark.parametrize(
    ("schedule", "pp", "vpp"),
    [("zb-h1", 4, 1), ("zb-h2", 4, 1), ("zb-2p", 2, 1), ("v-half", 4, 2), ("v-min", 4, 2),
     ("varuna", 4, 1), ("looped-bfs", 4, 1)],
)  # fmt: skip
def test_an_order_that_torchtitan_cannot_name_goes_into_a_file(tmp_path, schedule, pp, vpp):
    job = job_from_document(
        {
            "model": "llama3.1-8b",
            "cluster": {"profile": "h100-sxm-80gb", "gpus": pp},
            "batch": {"global": 8, "seq_len": 4096},
            "plan": {"stack": "torchtitan", "zero": 3, "pp": pp, "vpp": vpp, "schedule": schedule,
                     "reshard_after_forward": False},
        }
    )  # fmt: skip
    text = torchtitan_config(job, "order.csv")
    if schedule == "looped-bfs":
        assert schedule_csv(job) is None
    else:
        (tmp_path / "order.csv").write_text(schedule_csv(job), encoding="utf-8")
        assert tomllib.loads(text)["parallelism"]["pipeline_parallel_schedule_csv"] == "order.csv"
    path = tmp_path / "job.toml"
    path.write_text(text, encoding="utf-8")
    again, report = read_torchtitan_config(path, Given(gpus=pp))
    assert not report.unsupported
    assert StepOrder(again).slots(8) == StepOrder(job).slots(8)
    assert spelled_out(again).model_copy(update={"schedule": schedule}) == spelled_out(job)
    assert simulate(again).step_time_s == simulate(job).step_time_s


@pytest.mark.parametrize("schedule", ["naive", "pipedream", "dualpipe", "chimera"])
def test_orders_that_torch_does_not_run_are_refused(schedule):
    job = job_with(stack="torchtitan", zero=0, pp=2, schedule=schedule)
    with pytest.raises(UnsupportedError, match=r"plan\.schedule"):
        torchtitan_config(job)


def test_a_schedule_file_that_is_not_there_is_an_error(tmp_path):
    job = job_with(stack="torchtitan", zero=3, pp=2, schedule="zb-h1")
    path = tmp_path / "job.toml"
    path.write_text(torchtitan_config(job), encoding="utf-8")
    with pytest.raises(InputError, match=r"schedule_csv.*cannot be read: No such file"):
        read_torchtitan_config(path, Given(gpus=8))
