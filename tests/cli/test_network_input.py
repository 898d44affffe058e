"""Networks that cannot be: does every command that meets one say what is wrong, and where?"""

from __future__ import annotations

import pytest

from simulator.described.load import profile_file

BAD = [
    ("nics_per_node: 8", "nics_per_node: 3", "network.fabric.nics_per_node = 3: must divide"),
    ("bandwidth: 450 GB/s", "bandwidth: -450 GB/s", "network.scale_up.bandwidth = '-450 GB/s'"),
    ("bandwidth: 450 GB/s", "bandwidth: 450", "a quantity needs its unit"),
    ("nic: 400 Gbit/s", 'nic: "400"', "'400' has no unit"),
    ("nic: 400 Gbit/s", "nic: 0 Gbit/s", "network.fabric.nic = 0: must be above 0"),
    ("    kind: ib\n", "", "network.fabric.kind: is missing; add it"),
]


@pytest.fixture
def broken(tmp_path):
    """Write the DGX H100 with one text replaced; returns the file's path."""

    def write(old, new):
        text = profile_file("h100-sxm-80gb").read_text()
        assert text.count(old) == 1
        path = tmp_path / "broken.yaml"
        path.write_text(text.replace(old, new))
        return path

    return write


@pytest.mark.parametrize(("old", "new", "says"), BAD)
def test_profile_check_refuses_it(clustersim, broken, old, new, says):
    outcome = clustersim("profile", "check", broken(old, new))
    assert outcome.code == 2
    assert outcome.out.endswith("not valid\n")
    assert says in outcome.err


@pytest.mark.parametrize(("old", "new", "says"), BAD)
def test_run_refuses_it(clustersim, broken, job_file, old, new, says):
    outcome = clustersim("run", job_file, "--set", f"cluster.profile={broken(old, new)}")
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err


def test_a_profile_without_fabric_runs_inside_one_node_only(clustersim, broken, job_file):
    path = broken("nics_per_node: 8", "nics_per_node: 0")
    words = ("run", job_file, "--set", f"cluster.profile={path}", "--set", "plan.pp=1")
    assert clustersim(*words, "--set", "cluster.gpus=8").code == 0
    outcome = clustersim(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert "but no fabric is described" in outcome.err
