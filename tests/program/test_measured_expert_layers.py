"""Layers of experts against Megatron-LM's own measurements of them.

Source: tests/functional_tests/test_cases/common/moe_perf/baseline.json of NVIDIA/Megatron-LM, by
which its CI notices a layer that got slower: eight H100, 4,096 tokens on each, forced balance,
fused permutation and router, on GPUs that rest between iterations.
"""

from __future__ import annotations

import pytest

from simulator.described.load import job_from_document
from simulator.program.price.layer_cost import UnitCosts
from simulator.program.price.layer_time import PassTime

MIXTRAL = {"hidden": 4096, "ffn_hidden": 14336, "experts": {"count": 8, "top_k": 2}}
DEEPSEEK = {
    "hidden": 7168, "ffn_hidden": 2048,
    "experts": {"count": 32, "top_k": 8, "groups": 8, "top_groups": 4, "router_bias": True},
}  # fmt: skip
_OF_EXPERTS = (
    "router", "routing", "count", "expert", "dispatch", "permute", "unpermute", "combine",
)  # fmt: skip


def _seconds(passes: list[PassTime]) -> float:
    parts = [part for each in passes for part in each.parts]
    return sum(part.seconds for part in parts if part.name.startswith(_OF_EXPERTS))


@pytest.mark.parametrize(
    ("model", "dispatch", "forward_ms", "backward_ms"),
    [
        (MIXTRAL, "all_to_all", 4.26, 7.83),
        (MIXTRAL, "hierarchical", 4.61, 8.03),
        (DEEPSEEK, "all_to_all", 6.94, 10.45),
        (DEEPSEEK, "hierarchical", 5.42, 9.06),
    ],
)
def test_an_expert_layer_takes_as_long_as_megatrons_ci_measures(
    model, dispatch, forward_ms, backward_ms
):
    experts = {**model["experts"], "ffn_hidden": model["ffn_hidden"]}
    shape = {"layers": 1, "heads": 32, "vocab": 1024, "gated_mlp": True, **model}
    stack = {"base": "megatron-core", "fused_permutation": True, "grouped_experts": True}
    cool = {"sustained_clock": 1.0}
    job = job_from_document(
        {
            "model": {**shape, "experts": experts},
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 8, "kernels": cool},
            "batch": {"global": 8, "micro": 1, "seq_len": 4096},
            "plan": {"ep": 8, "ep_dispatch": dispatch, "stack": stack, "recompute": "none"},
        }
    )
    costs = UnitCosts(job)
    time = costs.of(costs.layers[0]).times.time
    backward_s = _seconds([time.backward_input, time.backward_weight])
    assert 1e3 * _seconds([time.forward]) == pytest.approx(forward_ms, rel=0.125)
    assert 1e3 * backward_s == pytest.approx(backward_ms, rel=0.125)
