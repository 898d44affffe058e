"""Which jobs would many users write, one field after another at random?

Small models of every kind on shipped systems. About one in ten keeps to all rules; the others are
refused. So rules meet each other, and a job that is accepted can be held against what must be true
of every job.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from simulator.api import load_job
from simulator.described.job import Job
from simulator.described.json_schemas import job_schema
from simulator.errors import InputError
from simulator.schedule import SCHEDULES

_MODELS: tuple[Any, ...] = (
    {}, {}, {},
    {"experts": {"count": 8, "top_k": 2, "ffn_hidden": 128, "first_dense_layers": 1}},
    {"experts": {"count": 4, "top_k": 1, "ffn_hidden": 128, "shared_ffn_hidden": 128}},
    {"tied_embeddings": True}, {"multi_token_layers": 1}, {"kv_heads": 2},
    {"ssm": {"state": 16, "head_dim": 16, "attention_layers": [1]}},
    {"kv_heads": 0, "head_dim": 0, "latent_attention": {
        "q_lora_rank": 0, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 16}},
    {"causal": False}, {"sliding_window": 64, "sliding_window_every": 2},
    {"gated_mlp": False, "activation": "gelu", "positions": "learned", "max_positions": 512},
)  # fmt: skip
_PROFILES = ("h100-sxm-80gb", "a100-sxm-80gb", "dgx1-v100-32gb", "mi300x", "b200-sxm-180gb",
             "rtx-4090", "t4-16gb", "gb200-nvl72")  # fmt: skip
_DEGREES = {"tp": (1, 1, 2, 4, 3), "pp": (1, 2, 2, 4, 3), "cp": (1, 1, 1, 2), "vpp": (1, 1, 2),
            "ep": (1, 1, 2, 4)}  # fmt: skip
_NUMBERS = {
    "zero_group": (1, 2), "tp_depth": (1, 2), "cp_heads": (1, 2), "recompute_layers": (1, 2),
    "first_stage_layers": (1, 3), "last_stage_layers": (1, 3), "etp": (1, 2), "zero": (0, 1, 2, 3),
    "parameter_servers": (1, 2),
}  # fmt: skip
_BLOCKS = {
    "offload": ({"optimizer": "cpu"}, {"activations": "cpu"}, {"optimizer": "nvme", "share": 0.5},
                {"optimizer": "cpu", "parameters": "cpu", "delayed_update": True}),
    "lora": ({"rank": 8, "targets": ["all"]}, {"rank": 4, "targets": ["q", "v"], "kind": "dora"},
             {"rank": 4, "targets": ["all"], "base_precision": "nf4"}),
    "frozen": (["layers.*"], ["nothing"], ["*"]),
    "expert_load": ({"zipf": 1.0}, {"hot": 2.0}),
    "recompute_modules": (["core_attn"], ["mlp", "layernorm"], ["moe"]),
    "layout": ([1, 3], "Ett|ttL", [2, 2]),
    "rank_order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
}  # fmt: skip


def random_document(draw: random.Random, stack: str = "") -> dict[str, Any]:
    """A job; most of what it does not say follows from its schedule and stack, by default any."""
    plan: dict[str, Any] = {name: draw.choice(sizes) for name, sizes in _DEGREES.items()}
    if draw.randrange(2):
        plan["schedule"] = draw.choice(list(SCHEDULES))
    choices = _plan_choices()
    for name in draw.sample(list(choices), draw.choice((0, 1, 2, 3, 5))):
        plan[name] = draw.choice(choices[name])
    if stack or draw.randrange(2):
        plan["stack"] = stack or draw.choice(_stack_names())
    dp = draw.choice((1, 2, 4))
    micro = draw.choice((1, 1, 2))
    document: dict[str, Any] = {
        "model": {"name": "small", "layers": draw.choice((4, 6, 8)), "hidden": 64, "heads": 4,
                  "kv_heads": 4, "ffn_hidden": 128, "vocab": 1024, **draw.choice(_MODELS)},
        "cluster": {"profile": draw.choice(_PROFILES),
                    "gpus": dp * plan["tp"] * plan["pp"] * plan["cp"]},
        "batch": {"global": dp * micro * draw.choice((1, 2, 4, 8, 6)) , "micro": micro,
                  "seq_len": draw.choice((128, 192, 512))},
        "plan": plan,
    }  # fmt: skip
    if not draw.randrange(8):
        document["perturbations"] = [{"gpu": draw.randrange(4), "slowdown": 0.2}]
    return document


def accepted_jobs(seed: int, count: int, stack: str = "") -> Iterator[Job]:
    """So many of them that keep to all rules."""
    draw = random.Random(seed)
    while count:
        try:
            job = load_job(random_document(draw, stack))
        except InputError:
            continue
        count -= 1
        yield job


@cache
def _stack_names() -> tuple[str, ...]:
    from simulator.described.plan.shipped_stacks import STACKS

    return tuple(STACKS)


@cache
def _plan_choices() -> dict[str, tuple[Any, ...]]:
    """Values of the plan's fields: all words and flags that its schema knows, and some numbers."""
    choices: dict[str, tuple[Any, ...]] = {}
    for name, field in job_schema()["$defs"]["Plan"]["properties"].items():
        kinds = field.get("anyOf", [field])
        words = [word for kind in kinds for word in kind.get("enum", ()) if word is not None]
        if any(kind.get("type") == "boolean" for kind in kinds):
            words += [True, False]
        if words and name not in (*_DEGREES, "schedule"):
            choices[name] = tuple(words)
    return {**choices, **_NUMBERS, **_BLOCKS}
