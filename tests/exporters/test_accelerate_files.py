"""What accelerate and the Trainer are told is what the job says, read back from both files."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.errors import InputError, UnsupportedError
from simulator.exporters.accelerate import accelerate_config, arguments_text, training_arguments
from simulator.importers.assembly import Given
from simulator.importers.finetuning.accelerate import read_accelerate_files
from tests.exporters.round_trips import assert_same, job_with

_FLAG = st.booleans()
FSDP1 = {"base": "trl", "grad_reduce_precision": "bf16", "sums_unsharded": True}
FSDP2 = {
    "base": "trl", "grad_reduce_precision": "bf16", "frozen_units_keep_inputs": False,
    "host_work_per_gather": 0.0, "host_work_per_unit": 126, "limits_gathers": False,
}  # fmt: skip
REDUCED = "plan.grad_reduce_precision"
HALF = {"optimizer": "cpu", "share": 0.5}
HOST = {"optimizer": "cpu", "parameters": "cpu"}


def read_back(job: Job, folder: Any) -> Job:
    """The job of both files; they say neither the model nor the length of its sequences."""
    config, arguments = folder / "accelerate.yaml", folder / "arguments.json"
    config.write_text(accelerate_config(job), encoding="utf-8")
    arguments.write_text(json.dumps(training_arguments(job)), encoding="utf-8")
    said = Given(model="llama3.1-8b", seq_len=job.batch.seq_len)
    found, report = read_accelerate_files([config, arguments], said)
    assert not report.unsupported
    return found


@st.composite
def accelerate_jobs(draw: st.DrawFn) -> Job:
    """Jobs that accelerate and the Trainer run."""
    kind = draw(st.sampled_from(["ddp", "fsdp1", "fsdp2", "deepspeed"]))
    tp = draw(st.sampled_from([1, 2])) if kind == "fsdp2" else 1
    cp = draw(st.sampled_from([1, 2])) if kind in {"fsdp2", "deepspeed"} else 1
    dp, micro = draw(st.sampled_from([4, 8])), draw(st.sampled_from([1, 2]))
    ways = ["all_to_all"] if kind == "deepspeed" else ["all_gather", "ring"]
    plan: dict[str, Any] = {
        "tp": tp, "cp": cp, **({"cp_method": draw(st.sampled_from(ways))} if cp > 1 else {}),
        "precision": draw(st.sampled_from(["bf16", "fp16", "fp32", "tf32"])),
        "recompute": draw(st.sampled_from(["none", "full"])),
        "optimizer": draw(st.sampled_from(["adam", "sgd", "adafactor", "adam-8bit"])),
        "clip_gradients": draw(_FLAG),
    }  # fmt: skip
    if draw(_FLAG):
        plan["compile"] = True
    is_reentrant = plan["recompute"] == "full" and draw(_FLAG)
    stops = {"recompute_stops_early": False} if is_reentrant else {}
    if kind == "ddp":
        plan |= {"zero": 0, "stack": {"base": "trl", **stops}}
    if kind == "deepspeed":
        zero = draw(st.integers(0, 3))
        places = [{}, *([{"optimizer": "cpu"}] if zero else []), *([HOST] if zero == 3 else [])]
        plan |= {"zero": zero, "stack": {"base": "deepspeed", **stops}}
        plan["offload"] = draw(st.sampled_from(places))
    if kind.startswith("fsdp"):
        each = {"sums_unsharded": draw(_FLAG)} if kind == "fsdp1" else {}
        facts = {**(FSDP1 if kind == "fsdp1" else FSDP2), **each, **stops}
        groups = [0, 2 * cp] if kind == "fsdp2" else [0, 8]
        plan |= {
            "zero": 3, "stack": facts, "zero_group": draw(st.sampled_from(groups)),
            "offload": draw(st.sampled_from([{}, HOST])),
        }  # fmt: skip
        if draw(_FLAG):
            plan["reshard_after_forward"] = False
    gpus = 16 if plan.get("zero_group") == 8 else tp * cp * dp
    document = {
        "model": "llama3.1-8b",
        "cluster": {"profile": "h100-sxm-80gb", "gpus": gpus},
        "batch": {"global": 2 * micro * gpus // (tp * cp), "micro": micro, "seq_len": 4096},
        "plan": plan,
    }
    try:
        return job_from_document(document)
    except InputError:
        assume(False)
        raise


@settings(max_examples=60, deadline=None)
@given(job=accelerate_jobs())
def test_a_job_told_to_accelerate_and_read_back_is_the_same_job(tmp_path_factory, job):
    assert_same(job, read_back(job, tmp_path_factory.mktemp("files")))


@pytest.mark.parametrize(
    ("plan", "path"),
    [
        ({"pp": 2, "stack": "megatron-core"}, "plan.pp"),
        ({"zero": 2, "stack": FSDP2}, "plan.zero"),
        ({"zero": 3, "stack": "trl"}, "plan.stack"),
        ({"zero": 3, "stack": FSDP2, "recompute": "selective"}, "plan.recompute"),
        ({"zero": 3, "stack": "deepspeed", "offload": HALF}, "plan.offload"),
        (
            {"zero": 3, "stack": FSDP2, "grad_reduce_precision": "fp32"},
            "plan.grad_reduce_precision",
        ),
        ({"zero": 3, "stack": FSDP1, "zero_group": 2}, "plan.zero_group"),
        ({"zero": 3, "stack": FSDP2, "lora": {"rank": 8}}, "plan.lora"),
        ({"zero": 3, "stack": "deepspeed", "zero_group": 2}, "plan.zero_group"),
        ({"zero": 0, "stack": "deepspeed", "optimizer": "lamb"}, "plan.optimizer"),
    ],
)
def test_what_accelerate_cannot_be_told_is_refused_by_its_field(plan, path):
    with pytest.raises(UnsupportedError, match="accelerate") as caught:
        accelerate_config(job_with(**plan))
    assert path in {fault.path for fault in caught.value.faults}


def test_a_stack_that_is_not_accelerates_is_one_fault_whose_hint_is_the_stack_that_is(tmp_path):
    with pytest.raises(UnsupportedError) as caught:
        accelerate_config(job_with(zero=3, stack="trl"))
    [fault] = caught.value.faults
    assert "sums_unsharded: true" in fault.hint
    assert_same(job := job_with(zero=3, stack=FSDP1), read_back(job, tmp_path))


def test_arguments_of_the_trainer_are_options_of_a_script():
    job = job_with(zero=1, stack="deepspeed", recompute="full")
    text = arguments_text(training_arguments(job))
    assert text.startswith("--per_device_train_batch_size 1 --gradient_accumulation_steps 4 ")
    assert "--gradient_checkpointing true" in text
    assert """--gradient_checkpointing_kwargs '{"use_reentrant": false}'""" in text


def test_one_gpu_is_no_distributed_training(tmp_path):
    job = job_with(zero=0, stack="trl").replace({"cluster.gpus": 1})
    assert "distributed_type: 'NO'" in accelerate_config(job)
    assert_same(job, read_back(job, tmp_path))
