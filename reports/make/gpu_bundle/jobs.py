"""Which job is each training run of the bundle?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.make.gpu_bundle.device.training_runs import TrainingRun


def job_document(run: TrainingRun, profile: str) -> dict[str, Any]:
    """The run as a job file holds it."""
    plan: dict[str, Any] = {
        "stack": _stack(run),
        "precision": run.precision,
        "recompute": run.recompute,
        "optimizer_kernels": run.optimizer,
    }
    if not run.has_master_weights and not run.lora_rank:
        plan["master_weights"] = False
    if run.is_compiled:
        plan["compile"] = True
    if run.is_unfused:
        plan["attention"] = "unfused"
    if run.is_offloaded:
        plan["offload"] = {"activations": "cpu"}
    if run.lora_rank:
        plan["lora"] = {"rank": run.lora_rank}
    return {
        "model": _model(run),
        "cluster": {"profile": profile, "gpus": 1},
        "batch": {
            "global": run.micro * run.microbatches,
            "micro": run.micro,
            "seq_len": run.seq_len,
        },
        "plan": plan,
    }


def _stack(run: TrainingRun) -> str | dict[str, Any]:
    if run.is_transformers:
        return "trl"
    # The runner's experts pass one after the other, and each asks the device for its tokens.
    asks = {"expert_waits": "expert", "grouped_experts": False}
    own = {"expert_waits": "none", "grouped_experts": True} if run.is_grouped else asks
    return {"base": "torch", **own} if run.network.experts else "torch"


def _model(run: TrainingRun) -> Mapping[str, Any]:
    network = run.network
    model: dict[str, Any] = {
        "name": network.name,
        "layers": network.layers,
        "hidden": network.hidden,
        "heads": network.heads,
        "kv_heads": network.kv_heads,
        "ffn_hidden": network.ffn_hidden,
        "vocab": network.vocab,
        "tied_embeddings": False,
    }
    if not network.is_llama:
        model |= {
            "normalisation": "layernorm",
            # GPT-2 of transformers: activation_function is gelu_new.
            "activation": "gelu-new" if run.is_transformers else "gelu",
            "gated_mlp": False,
            "positions": "learned",
            "max_positions": run.seq_len,
            "qkv_bias": True,
            "attention_output_bias": True,
            "norm_bias": True,
            "mlp_bias": True,
        }
    if network.experts:
        model["experts"] = {
            "count": network.experts,
            "top_k": network.top_k,
            "ffn_hidden": network.ffn_hidden,
        }
    return model
