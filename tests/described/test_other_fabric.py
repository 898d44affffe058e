"""A system that is rented on another fabric than its profile's."""

from __future__ import annotations

import pytest

from simulator.described.cluster.network import library_fabric
from simulator.described.load import job_from_document, load_profile

PROFILE = "h100-sxm-80gb"


def fabric_of(changes):
    document = {
        "model": "gpt2",
        "cluster": {"profile": PROFILE, "gpus": 16, "network": {"fabric": changes}},
        "batch": {"global": 16, "micro": 1, "seq_len": 128},
    }
    profile = job_from_document(document).cluster.profile
    return profile.network.fabric, profile.provenance


@pytest.mark.parametrize("kind", ["roce", "efa", "ethernet"])
def test_another_kind_of_fabric_behaves_as_the_library_says(kind):
    own = load_profile(PROFILE).network.fabric
    fabric, _ = fabric_of({"kind": kind})
    expected = library_fabric(kind, own.nics_per_node, own.nic_bytes_per_s)
    shape = {"wiring": own.wiring, "leaf": own.leaf, "pod": own.pod}
    assert fabric.model_dump() == expected.model_copy(update=shape).model_dump()


def test_the_kind_that_a_profile_has_changes_nothing():
    own = load_profile(PROFILE).network.fabric
    assert fabric_of({"kind": own.kind})[0].model_dump() == own.model_dump()


def test_what_a_job_says_of_its_other_fabric_goes_before_the_library():
    fabric, _ = fabric_of({"kind": "roce", "nic": "200 Gbit/s", "efficiency": 0.5})
    assert (fabric.nic_bytes_per_s, fabric.efficiency) == (25e9, 0.5)


def test_numbers_of_the_library_keep_their_source():
    _, sources = fabric_of({"kind": "ethernet", "efficiency": 0.5})
    assert sources["network.fabric.latency"].kind == "assumed"
    assert "sockets" in sources["network.fabric.latency"].reference
    assert sources["network.fabric.efficiency"].reference == "set in the job"
