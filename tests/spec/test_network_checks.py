"""Rules between nodes, NICs and switches, and the errors that name them."""

from __future__ import annotations

import pytest

from simulator.spec.load import load_profile
from simulator.spec.network_checks import network_faults


def fault_paths(nics: int, gpus: int) -> list[str]:
    network = load_profile("h100-sxm-80gb").network
    fabric = network.fabric.model_copy(update={"nics_per_node": nics})
    changed = network.model_copy(update={"gpus_per_node": gpus, "fabric": fabric})
    return [fault.path for fault in network_faults(changed, "network")]


@pytest.mark.parametrize(("nics", "gpus"), [(0, 8), (1, 8), (2, 8), (8, 8), (32, 8), (2, 6)])
def test_nics_and_gpus_of_a_node_that_divide_one_another_are_sound(nics: int, gpus: int) -> None:
    assert fault_paths(nics, gpus) == []


@pytest.mark.parametrize(("nics", "gpus"), [(3, 8), (9, 8), (12, 8), (4, 6)])
def test_nics_that_do_not_divide_over_the_gpus_are_refused(nics: int, gpus: int) -> None:
    assert fault_paths(nics, gpus) == ["network.fabric.nics_per_node"]
