"""Does import topo write a profile that loads, and refuse what makes none?"""

from __future__ import annotations

import pytest

from simulator.described.load import load_profile
from tests.topology_text import nvidia_text, uniform

BASE = ("--profile", "h100-sxm-80gb")
NICS = [" ".join(["PIX"] * 4)] * 2


@pytest.fixture
def matrix(tmp_path):
    path = tmp_path / "topo.txt"
    path.write_text(nvidia_text(uniform(4, "NV18"), NICS))
    return path


def test_the_profile_is_complete_and_sound(clustersim, matrix, tmp_path):
    outcome = clustersim("import", "topo", matrix, *BASE, "--nic", "200 Gbit/s")
    path = tmp_path / "node.yaml"
    path.write_text(outcome.out)
    network = load_profile(str(path)).network
    assert (network.gpus_per_node, network.scale_up.gpus) == (4, 4)
    assert (network.fabric.nics_per_node, network.fabric.nic_bytes_per_s) == (2, 25e9)
    assert clustersim("profile", "check", path).code == 0
    assert "understood" in outcome.err


def test_a_number_of_nics_that_does_not_divide_ends_with_2(clustersim, matrix):
    outcome = clustersim("import", "topo", matrix, *BASE, "--nics", 3)
    assert (outcome.code, outcome.out) == (2, "")
    assert "network.fabric.nics_per_node = 3" in outcome.err


def test_a_text_without_matrix_ends_with_2(clustersim, matrix):
    matrix.write_text("No devices were found\n")
    outcome = clustersim("import", "topo", matrix, *BASE)
    assert (outcome.code, outcome.out) == (2, "")
    assert "no line is headed GPU0" in outcome.err
