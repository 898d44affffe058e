"""What axolotl is told is what the job says, read back from its YAML."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.errors import InputError, UnsupportedError
from simulator.exporters.axolotl import axolotl_config
from simulator.importers.finetuning.trainer import read_axolotl_files
from tests.exporters.round_trips import assert_same, imported, job_with

_FLAG = st.booleans()
HOST = {"optimizer": "cpu", "parameters": "cpu"}


def read_back(job: Job) -> Job:
    """The job of its YAML; the number of GPUs is the launcher's."""
    text, gpus = axolotl_config(job), job.cluster.gpus
    return imported(lambda path, said: read_axolotl_files([path], said), text, "a.yaml", gpus=gpus)


@st.composite
def adapters(draw: st.DrawFn) -> dict[str, Any]:
    """Adapters that PEFT trains."""
    found: dict[str, Any] = {"rank": draw(st.sampled_from([8, 64]))}
    found |= draw(st.sampled_from([{}, {"targets": ["query", "value"]}, {"dropout": 0.05}]))
    found |= draw(st.sampled_from([{}, {"kind": "dora"}, {"kind": "rslora"}]))
    bases = ["int8", "nf4"]
    return found | draw(st.sampled_from([{}, *({"base_precision": base} for base in bases)]))


@st.composite
def axolotl_jobs(draw: st.DrawFn) -> Job:
    """Jobs that axolotl runs without DeepSpeed."""
    is_sharded = draw(_FLAG)
    tp = draw(st.sampled_from([1, 2])) if is_sharded else 1
    cp = draw(st.sampled_from([1, 2])) if is_sharded else 1
    dp, micro = draw(st.sampled_from([4, 8])), draw(st.sampled_from([1, 2]))
    plan: dict[str, Any] = {
        "tp": tp, "cp": cp, "zero": 3 if is_sharded else 0,
        "precision": draw(st.sampled_from(["bf16", "fp16"])),
        "recompute": draw(st.sampled_from(["none", "full"])),
        "optimizer": draw(st.sampled_from(["adam", "sgd", "lion", "adam-paged"])),
        "clip_gradients": draw(_FLAG),
    }  # fmt: skip
    stops = plan["recompute"] == "full" and draw(_FLAG)
    plan["stack"] = {"base": "axolotl", **({"recompute_stops_early": True} if stops else {})}
    plan |= draw(st.sampled_from([{}, *({"cross_entropy": kind} for kind in LOSSES)]))
    if draw(_FLAG):
        plan["lora"] = draw(adapters())
    if plan["optimizer"] == "adam":
        kernels = draw(st.sampled_from([None, "foreach", "fused"]))
        plan |= {"optimizer_kernels": kernels} if kernels else {}
    if is_sharded:
        plan["zero_group"] = draw(st.sampled_from([0, 2 * cp]))
        plan |= draw(st.sampled_from([{}, {"reshard_after_forward": False}, {"offload": HOST}]))
    document = {
        "model": "llama3.2-1b",
        "cluster": {"profile": "a100-sxm-80gb", "gpus": tp * cp * dp},
        "batch": {"global": 2 * micro * dp, "micro": micro, "seq_len": 2048},
        "plan": plan,
    }
    try:
        return job_from_document(document)
    except InputError:
        assume(False)
        raise


LOSSES = ("cut", "linear-fused", "chunked")


@settings(max_examples=60, deadline=None)
@given(job=axolotl_jobs())
def test_a_job_told_to_axolotl_and_read_back_is_the_same_job(job):
    profile = job.cluster.profile.name
    found = read_back(job).replace({"cluster.profile": profile})
    assert_same(job, found)


@pytest.mark.parametrize(
    ("plan", "path"),
    [
        ({"zero": 1}, "plan.zero"),
        ({"zero": 3, "precision": "fp8"}, "plan.precision"),
        ({"zero": 3, "recompute": "selective"}, "plan.recompute"),
        ({"zero": 3, "cp": 2, "cp_method": "all_gather"}, "plan.cp_method"),
        ({"zero": 3, "lora": {"kind": "ia3"}}, "plan.lora.kind"),
        ({"zero": 3, "lora": {"rank": 8, "base_precision": "fp32"}}, "plan.lora.base_precision"),
        ({"zero": 2, "stack": "deepspeed"}, "plan.stack"),
        ({"zero": 3, "grad_reduce_precision": "bf16"}, "plan.grad_reduce_precision"),
    ],
)
def test_what_axolotl_cannot_be_told_is_refused_by_its_field(plan, path):
    with pytest.raises(UnsupportedError, match="axolotl") as caught:
        axolotl_config(job_with(**{"stack": "axolotl", **plan}))
    assert path in {fault.path for fault in caught.value.faults}
