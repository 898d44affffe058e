"""Words of other tables for what a plan or a network calls by one name."""

from __future__ import annotations

import pytest

from simulator.tables import spellings


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("1F1B", "1f1b"), ("Interleaved 1F1B", "interleaved-1f1b"),
        ("interleaved", "interleaved-1f1b"),
        ("Interleaved1F1B", "interleaved-1f1b"), ("GPipe", "gpipe"), ("AFAB", "gpipe"),
        ("ZB-H1", "zb-h1"), ("zbv", "zb-v"), ("ZBVZeroBubble", "zb-v"), ("V-Half", "v-half"),
        ("DualPipeV", "dualpipev"), ("none", None), ("magic", "magic"),
    ],
)  # fmt: skip
def test_schedules_are_known_by_their_other_names(said, name):
    assert spellings.schedule_name(said, 1) == name


def test_1f1b_over_several_chunks_is_the_interleaved_one():
    assert spellings.schedule_name("1f1b", 4) == "interleaved-1f1b"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("amp-bf16", "bf16"), ("torch.bfloat16", "bf16"), ("bf16-mixed", "bf16"), ("half", "fp16"),
        ("16-mixed", "fp16"), ("fp8-(te-hybrid)", "fp8"), ("fp8-cs", "fp8"),
        ("float8-e4m3fn", "fp8"),
        ("fp8-mx", "mxfp8"), ("mxfp8", "mxfp8"), ("nvfp4", "nvfp4"), ("fp4", "nvfp4"),
        ("float32", "fp32"), ("tf32", "tf32"), ("bf16-+-float8-linear", "fp8"), ("bf17", "bf17"),
        ("int8", "int8"), ("mxfp4", "mxfp4"),
    ],
)  # fmt: skip
def test_number_formats_are_known_by_their_other_names(said, name):
    assert spellings.precision_name(said) == name


@pytest.mark.parametrize(
    ("said", "extent"),
    [("no", "none"), ("false", "none"), ("full-ac", "full"), ("uniform", "full"), ("true", "full"),
     ("per-op-sac", "selective"), ("core-attn", "selective"), ("maybe", "maybe")],
)  # fmt: skip
def test_recomputation_is_known_by_its_other_names(said, extent):
    assert spellings.recompute_extent(said) == extent


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        ("sdpa", {"attention": "flash"}),
        ("fa3", {"attention": "flash", "stack": {"flash_kernel": "best"}}),
        ("none-(fused-softmax)", {"attention": "fused-softmax"}),
        ("eager", {"attention": "unfused"}),
        ("no-flash", {"attention": "unfused"}),
        ("flash-2", {"attention": "flash", "stack": {"flash_kernel": "flash-2"}}),
        ("flashattention-v1", {"attention": "flash", "stack": {"flash_kernel": "flash-1"}}),
        ("flash-attn-4", {"attention": "flash", "stack": {"flash_kernel": "best"}}),
    ],
)
def test_attention_is_known_by_its_other_names(said, facts):
    assert spellings.attention_facts(said) == facts


@pytest.mark.parametrize(
    ("said", "kind"),
    [("infiniband-hdr", "ib"), ("IB NDR 400Gb/s", "ib"), ("RoCEv2 (CX-7)", "roce"),
     ("EFA v2", "efa"), ("EFA a100-sxm-80gb", "efa-1"), ("Slingshot-11", "slingshot"),
     ("Omni-Path", "opa"),
     ("GPUDirect-TCPX Ethernet", "tcpx"),
     ("GPUDirect-TCPXO Ethernet", "tcpxo"), ("100GbE", "ethernet"), ("NVLink", None), ("", None)],
)  # fmt: skip
def test_fabrics_are_known_by_the_words_of_their_vendors(said, kind):
    assert spellings.fabric_kind(said) == kind


@pytest.mark.parametrize(
    ("said", "stage"),
    [("zero-3", "3"), ("zero-stage-2", "2"), ("fsdp", "3"), ("shard-grad-op", "2"), ("none", "0"),
     ("distributed-optimizer", "1"), ("2", "2"), ("4", "4")],
)  # fmt: skip
def test_stages_of_zero_are_known_by_their_other_names(said, stage):
    assert spellings.zero_stage(said) == stage
