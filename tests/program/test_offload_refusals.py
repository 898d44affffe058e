"""What cannot be offloaded is refused, and what a host needs is asked for."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from tests.jobs import host_profile
from tests.program.offloading import (
    CHECKPOINTS,
    FSDP,
    IN_MEMORY,
    INFINITY,
    MEGATRON,
    ZERO_OFFLOAD,
    offload_job,
)


@pytest.mark.parametrize(
    ("plan", "path"),
    [
        ({"offload": {"share": 0.5}}, "plan.offload.share"),
        ({"offload": {"delayed_update": True}}, "plan.offload.delayed_update"),
        ({**ZERO_OFFLOAD, "stack": "jax"}, "plan.offload"),
        ({**ZERO_OFFLOAD, "zero": 0}, "plan.offload.optimizer"),
        ({**INFINITY, "zero": 2}, "plan.offload.parameters"),
        ({**MEGATRON, "offload": {"optimizer": "nvme"}}, "plan.offload.optimizer"),
        ({**MEGATRON, "offload": IN_MEMORY, "zero": 3}, "plan.offload.parameters"),
        ({**FSDP, "offload": {"optimizer": "cpu"}}, "plan.offload"),
        ({**FSDP, "offload": {**IN_MEMORY, "share": 0.5}}, "plan.offload.share"),
        ({**INFINITY, "offload": {"parameters": "cpu"}}, "plan.offload.parameters"),
        ({**ZERO_OFFLOAD, "optimizer": "muon", "zero": 1}, "plan.optimizer"),
        ({**ZERO_OFFLOAD, "optimizer": "adam-8bit"}, "plan.optimizer"),
        ({**CHECKPOINTS, "recompute": "none"}, "plan.offload.activations"),
        ({"offload": {"activations": "cpu"}, "recompute": "full"}, "plan.offload.activations"),
        ({"offload": {"activations": "cpu"}, "pp": 2}, "plan.offload.activations"),
        ({**MEGATRON, "pp": 2, "schedule": "zb-h1"}, "plan.offload.optimizer"),
        ({**INFINITY, "pp": 2}, "plan.offload.parameters"),
        (
            {**INFINITY, "offload": {**IN_MEMORY, "delayed_update": True}},
            "plan.offload.delayed_update",
        ),
        ({"offload": {"activation_layers": 2}}, "plan.offload.activation_layers"),
        (
            {"offload": {"activations": "cpu", "activation_layers": 4}},
            "plan.offload.activation_layers",
        ),
        (
            {**CHECKPOINTS, "offload": {"activations": "cpu", "activation_layers": 2}},
            "plan.offload.activation_layers",
        ),
        ({"partition_activations": True}, "plan.partition_activations"),
        ({"partition_activations": True, "tp": 2, "recompute": "full"}, "plan.partition_activ"),
    ],
    ids=str,
)
def test_what_no_framework_runs_is_refused(plan, path):
    with pytest.raises(InputError, match=path.replace(".", r"\.")):
        offload_job(gpus=2, **plan)


@pytest.mark.parametrize(
    ("plan", "missing"),
    [(ZERO_OFFLOAD, "memory_bandwidth"), (INFINITY, "nvme")],
)
def test_a_host_that_a_profile_does_not_describe_is_asked_for(plan, missing):
    profile = host_profile(**{missing: None})
    with pytest.raises(InputError, match=rf"cluster\.host\.{missing}.*is needed for"):
        offload_job(profile=profile, **plan)
