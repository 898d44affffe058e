"""A network over which data cannot move is refused with field, value, rule and way out."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.described.load import job_from_document, load_profile, profile_names
from simulator.described.rules.profile_rules import link_faults
from simulator.errors import Fault, InputError

H100 = "h100-sxm-80gb"


def faults(change: dict[str, Any], gpus: int | None = None) -> dict[str, Fault]:
    """Faults of a DGX H100 with some fields changed, by path."""
    network = load_profile(H100).network
    fields = {key: value for key, value in change.items() if not isinstance(value, dict)}
    for part in ("scale_up", "fabric"):
        fields[part] = getattr(network, part).model_copy(update=change.get(part, {}))
    found = link_faults(network.model_copy(update=fields), "network", gpus)
    return {fault.path: fault for fault in found}


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_network_is_sound(name: str) -> None:
    network = load_profile(name).network
    assert list(link_faults(network, "network")) == []
    assert list(link_faults(network, "network", gpus=1024)) == []


def test_domains_that_cut_nodes_are_refused() -> None:
    assert (
        faults({"scale_up": {"gpus": 3}})["network.scale_up.gpus"].hint
        == "use 8, or correct gpus_per_node"
    )
    assert not faults({"scale_up": {"gpus": 72}})
    assert not faults({"scale_up": {"gpus": 2}})


@pytest.mark.parametrize(
    ("part", "field", "path"),
    [
        ("scale_up", "bandwidth_bytes_per_s", "scale_up.bandwidth"),
        ("scale_up", "efficiency", "scale_up.efficiency"),
        ("scale_up", "low_latency_share", "scale_up.low_latency_share"),
        ("scale_up", "in_switch_efficiency", "scale_up.in_switch_efficiency"),
        ("fabric", "nic_bytes_per_s", "fabric.nic"),
        ("fabric", "efficiency", "fabric.efficiency"),
        ("fabric", "low_latency_share", "fabric.low_latency_share"),
    ],
)
def test_links_that_carry_nothing_are_refused(part: str, field: str, path: str) -> None:
    found = faults({part: {field: 0.0}})
    assert list(found) == [f"network.{path}"]
    assert found[f"network.{path}"].hint


def test_a_group_may_not_cross_a_fabric_that_is_not_described() -> None:
    nothing = {"fabric": {"nics_per_node": 0, "nic_bytes_per_s": 0.0}}
    assert not faults(nothing)
    assert not faults(nothing, gpus=8)
    fault = faults(nothing, gpus=16)["network.fabric.nics_per_node"]
    assert "but no fabric is described" in fault.rule
    assert fault.hint.endswith("use at most 8 GPUs")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"fabric": {"nics_per_node": 3}}, "cluster.network.fabric.nics_per_node = 3: must divide"),
        ({"fabric": {"nics_per_node": 0}}, "but no fabric is described"),
        ({"scale_up": {"bandwidth": "-450 GB/s"}}, "leave out the minus sign"),
        ({"scale_up": {"bandwidth": 450}}, 'for example "450 GB/s"'),
        ({"fabric": {"nic": "400"}}, "'400' has no unit"),
        ({"fabric": {"nic": "400 Gbps"}}, "unknown unit 'Gbps'; did you mean 'Gbit/s'?"),
    ],
)
def test_a_job_on_such_a_network_is_refused(change: dict[str, Any], says: str) -> None:
    document = {
        "model": {"base": "llama3.1-8b", "layers": 4},
        "cluster": {"profile": H100, "gpus": 16, "network": change},
        "batch": {"global": 32, "seq_len": 2048},
    }
    with pytest.raises(InputError) as caught:
        job_from_document(document)
    assert says in str(caught.value)


def test_a_power_limit_above_what_the_device_draws_is_refused() -> None:
    cluster = {"profile": H100, "gpus": 8, "device": {"power_limit": "900 W"}}
    batch = {"global": 8, "seq_len": 512}
    with pytest.raises(InputError) as caught:
        job_from_document({"model": "llama3-8b", "cluster": cluster, "batch": batch})
    assert [fault.path for fault in caught.value.faults] == ["cluster.device.power_limit"]
