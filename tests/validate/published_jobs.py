"""Rows of published runs for tests, and the jobs that they are read as."""

from __future__ import annotations

from simulator.described.load import job_from_document
from simulator.validate.published.published_rows import job_document

ROW = {
    "id": "lab-small-001", "grade": "A", "model": "small", "layers": "4", "hidden": "1024",
    "ffn_hidden": "4096", "heads": "16", "kv_heads": "16", "vocab": "32000",
    "gated_mlp": "true", "tied_embeddings": "false", "experts": "", "top_k": "",
    "profile": "h100-sxm-80gb", "gpus": "8", "gpus_per_node": "8", "nics_per_node": "8",
    "nic_gbps": "400", "fabric": "ib", "framework": "megatron", "framework_version": "NeMo",
    "tp": "2", "pp": "2", "vpp": "", "cp": "1", "ep": "1", "dp": "2", "zero": "1",
    "zero_group": "", "sequence_parallel": "true", "schedule": "1f1b", "micro_batch": "1",
    "global_batch": "8", "seq_len": "1024", "recompute": "none", "precision": "bf16",
    "attention": "flash", "overlap_grad_reduce": "", "overlap_param_gather": "",
    "measured_step_s": "0.5", "measured_mem_gib": "20", "mem_kind": "allocated", "notes": "",
}  # fmt: skip
BIG = {**ROW, "gpus": "64", "dp": "16", "global_batch": "64"}
MOE = {**BIG, "experts": "8", "top_k": "2", "ffn_hidden": "2048", "ep": "4"}
TORCH = {**ROW, "framework": "torch ddp", "framework_version": "PyTorch 2.1", "tp": "1", "pp": "1",
         "dp": "8", "zero": "0", "schedule": "", "sequence_parallel": "false"}  # fmt: skip


def job_of(row):
    return job_from_document(job_document(row))


def fields_of(row):
    return job_of(row).model_dump()
