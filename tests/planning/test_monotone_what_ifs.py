"""Is every what-if of a job monotone in its size, and gone without a trace when it is removed?

Slow GPUs, nodes and links are held by the tests of folding; here is what a job says about
its network and its experts.
"""

from __future__ import annotations

import itertools

import pytest

from simulator.described.load import job_from_document
from simulator.results.simulation import run_step

MODEL = {"layers": 2, "hidden": 512, "heads": 8, "ffn_hidden": 1024, "vocab": 32000}
DENSE = {
    "model": MODEL,
    "cluster": {"profile": "h100-sxm-80gb", "gpus": 32},
    "batch": {"global": 32, "seq_len": 512},
    "plan": {"tp": 2, "zero": 1},
}
EXPERTS = {
    **DENSE,
    "model": {**MODEL, "experts": {"count": 16, "top_k": 2, "ffn_hidden": 4096}},
    "batch": {"global": 32, "seq_len": 4096},
    "plan": {"ep": 16, "zero": 1},
}
SPINE = {"cluster.network.fabric.leaf.gpus": 8}
"""A leaf of one node, so that all of the fabric goes over the spine."""


def step_s(document, changes, engine="des"):
    return run_step(job_from_document(document).replace(changes), engine).step_time_s


@pytest.mark.parametrize("engine", ["des", "replay"])
@pytest.mark.parametrize(
    ("document", "base", "field", "sizes"),
    [
        (DENSE, {}, "cluster.network.fabric.background_load", [0.0, 0.1, 0.5, 0.9]),
        (DENSE, {}, "cluster.network.scale_up.background_load", [0.0, 0.1, 0.5, 0.9]),
        (DENSE, {}, "cluster.network.fabric.nics_per_node", [8, 4, 2, 1]),
        (DENSE, SPINE, "cluster.network.fabric.leaf.oversubscription", [1.0, 2.0, 4.0, 8.0]),
        (DENSE, SPINE, "cluster.network.fabric.leaf.background_load", [0.0, 0.3, 0.6, 0.9]),
        (EXPERTS, {}, "plan.expert_load", [None, {"hot": 1.5}, {"hot": 2}, {"hot": 4}]),
        (EXPERTS, {}, "plan.expert_load", [None, {"zipf": 0.2}, {"zipf": 0.5}, {"zipf": 1.0}]),
    ],
)
def test_a_larger_trouble_is_never_faster(engine, document, base, field, sizes):
    steps = [step_s(document, {**base, field: size}, engine) for size in sizes]
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(steps))
    assert steps[-1] > steps[0]


@pytest.mark.parametrize(
    ("document", "changes"),
    [
        (DENSE, {"cluster.network.fabric.background_load": 0.0}),
        (DENSE, {"cluster.network.scale_up.background_load": 0.0}),
        (DENSE, {"cluster.network.fabric.nics_per_node": 8}),
        (DENSE, {"cluster.network.fabric.leaf.oversubscription": 1.0}),
        (DENSE, {"perturbations": []}),
        (DENSE, {"campaign": {"tokens": "1B", "goodput": 0.5}}),
        (EXPERTS, {"plan.expert_load": None}),
    ],
)
def test_without_trouble_the_step_is_the_same_to_the_last_bit(document, changes):
    assert step_s(document, changes) == step_s(document, {})
