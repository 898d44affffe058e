"""Fitting finds the parameters that made the rows, and writes only their lines."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest

pytest.importorskip("scipy")

from reports.make.fit.shipped_networks import (
    NetworkFits,
    fit_fabric,
    fit_scale_up,
    fitted_networks,
    network_without_others,
    with_profile_fit,
)
from simulator.calibrate.network.link_priors import FABRIC_PRIORS, priors_of
from simulator.calibrate.network.measured_network import Fit
from simulator.calibrate.network.network_fit import (
    Case,
    fit_links,
    priors_around,
)
from simulator.described.cluster.network import Network
from simulator.described.load import load_profile
from simulator.importers.nccl_tests.measured_collective import CollectiveRow
from simulator.tables.collective_rows import predicted_s

PROFILE = """\
name: x  # kept
network:
  gpus_per_node: 8
  scale_up:
    kind: nvswitch
    efficiency: {value: 0.5, source: {kind: assumed, reference: "guess"}}
    latency: 9 us  # guess
  fabric:
    efficiency: 0.9
    latency: 7 us

host:
  memory: 1 GiB
"""


def cases_on(network: Network, nodes: int) -> list[Case]:
    """Rows of all-gathers and all-reduces that take exactly what the network predicts."""
    rows = [
        CollectiveRow(
            id=f"{kind}-{power}", gpu="", kind=kind, num_bytes=2.0**power, ranks=8 * nodes,
            nodes=nodes, gpus_per_node=8, nics_per_node=8, nic_bytes_per_s=50e9, fabric="ib",
            algorithm="ring", one_process=False, calls=1, links="", seconds=1.0,
        )
        for kind in ("all_gather", "all_reduce")
        for power in range(8, 34)
    ]  # fmt: skip
    return [Case(replace(row, seconds=predicted_s(row, network)), "x", network) for row in rows]


@pytest.fixture
def network() -> Network:
    """A shipped system whose parameters made the rows."""
    return load_profile("h100-sxm-80gb").network


def test_scale_up_parameters_are_found_again(network: Network) -> None:
    fit = fit_scale_up(cases_on(network, nodes=1), network)
    assert fit.median_error < 0.02
    assert fit.values["latency_s"] == pytest.approx(network.scale_up.latency_s, rel=0.1)
    assert fit.values["efficiency"] == pytest.approx(network.scale_up.efficiency, rel=0.05)


def test_a_hop_over_pcie_is_believed_to_take_five_thirds_of_one_over_nvlink(
    network: Network,
) -> None:
    # NCCL src/graph/tuning.cc: 1.0 and 0.6 us in LL.
    cards = load_profile("l40s").network
    hops_s = [priors_of("scale_up", each)["latency_s"].value for each in (cards, network)]
    assert hops_s[0] / hops_s[1] == pytest.approx(1.0 / 0.6, rel=0.01)


def test_fabric_parameters_are_found_again(network: Network) -> None:
    fit = fit_fabric(cases_on(network, nodes=4), network)
    assert fit.median_error < 0.02
    assert fit.values["latency_s"] == pytest.approx(network.fabric.latency_s, rel=0.2)


def test_a_source_of_slow_launches_does_not_make_the_launch_of_a_system(network: Network) -> None:
    """30 us more than the links take are far outside what is believed of a launch."""
    slow = [
        replace(case, row=replace(case.row, seconds=case.row.seconds + 30e-6, source="slow"))
        for case in cases_on(network, nodes=1)
    ]
    believed = priors_of("scale_up", network)["launch_s"]
    spreads = math.log(fit_scale_up(slow, network).values["launch_s"] / believed.value)
    assert 0 < spreads / believed.spread < 4


@pytest.mark.parametrize("name", ["h100-sxm-80gb", "dgx1-v100-32gb", "mi300x", "l40s"])
@pytest.mark.parametrize("nodes", [1, 4])
def test_rows_that_are_answered_at_once_take_what_each_takes_alone(name: str, nodes: int) -> None:
    """Nothing is free, so the error of a fit is that of the formula on arrays."""
    profile = load_profile(name)
    sample = cases_on(profile.network, nodes)[3]
    kinds = ["all_reduce", "all_gather", "all_to_all", "broadcast", "send_recv"]
    for kind, power in product(kinds, (5, 15, 20, 30)):
        row = replace(sample.row, kind=kind, num_bytes=2.0**power, algorithm="")
        row = replace(row, seconds=predicted_s(row, profile.network))
        for part in ("scale_up", "fabric"):
            priors = priors_around(part, profile)
            fit = fit_links([Case(row, name, profile.network)], part, priors, list(priors))
            assert fit.median_error < 1e-9


def test_a_system_without_rows_is_what_others_of_its_family_say() -> None:
    l40s = load_profile("l40s").network
    rows = [
        replace(case.row, gpu="L40S", seconds=2 * case.row.seconds)
        for case in cases_on(l40s, nodes=1)
    ]
    fits = fitted_networks(rows)
    assert fits.scale_up["rtx-4090"][1] == "pcie"
    believed = priors_of("scale_up", l40s)["launch_s"].value
    assert fits.networks["rtx-4090"].scale_up.launch_s > believed > l40s.scale_up.launch_s


def test_rows_move_a_system_less_from_its_own_family_than_from_another(network: Network) -> None:
    """Rows of one odd source are believed less where kin of the system say otherwise."""
    odd = [
        replace(case, row=replace(case.row, seconds=1.3 * case.row.seconds, source="odd"))
        for case in cases_on(network, nodes=1)
    ]
    parent = fit_scale_up(cases_on(network, nodes=1), network)
    moved = [
        fit_scale_up(odd, network, parent, kinship).values["launch_s"] for kinship in (0.5, 1.0)
    ]
    assert parent.values["launch_s"] < moved[0] < moved[1]


def test_a_fabric_without_rows_is_its_parent(network: Network) -> None:
    roce = Fit("fabric", {"latency_s": 9e-6}, rows=10, median_error=0.05)
    fits = NetworkFits(networks={}, scale_up={}, fabric={"roce": roce})
    fabric = network.fabric.model_copy(update={"kind": "slingshot"})
    unseen = network_without_others(
        fits, "h100-sxm-80gb", network.model_copy(update={"fabric": fabric})
    )
    assert unseen.fabric.latency_s == 9e-6


def test_writing_a_fit_changes_only_the_lines_of_its_block() -> None:
    fit = Fit("scale_up", {"latency_s": 2e-6, "efficiency": 0.75}, rows=10, median_error=0.05)
    text = with_profile_fit(PROFILE, fit, "10 rows")
    before, after = PROFILE.splitlines(), text.splitlines()
    assert [line for line in before if line not in after] == before[5:7]
    assert [line for line in after if line not in before] == [
        '    latency: {value: 2 us, source: &scale_up_fit {kind: fitted, reference: "10 rows"}}',
        "    efficiency: {value: 0.75, source: *scale_up_fit}",
    ]


def test_writing_a_fit_twice_changes_nothing_more() -> None:
    fit = Fit("fabric", {"latency_s": 2e-6}, rows=10, median_error=0.05)
    once = with_profile_fit(PROFILE, fit, "table")
    assert with_profile_fit(once, fit, "table") == once


def test_parameters_of_kin_are_marked_assumed() -> None:
    fit = Fit("fabric", {"latency_s": 2e-6}, rows=10, median_error=0.05)
    assert "{kind: assumed" in with_profile_fit(PROFILE, fit, "as another (table)")


def test_links_that_no_fit_has_seen_have_nothing_of_the_shipped_ones(network: Network) -> None:
    """What is shipped of a fabric may rest on the row that is predicted."""
    nothing = NetworkFits(networks={}, scale_up={}, fabric={})
    unseen = network_without_others(nothing, "h100-sxm-80gb", network)
    assert unseen.fabric.latency_s == FABRIC_PRIORS["latency_s"].value
    assert unseen.scale_up.latency_s == priors_of("scale_up", network)["latency_s"].value
    assert unseen.fabric.kind == network.fabric.kind
    seen = NetworkFits({}, {}, {network.fabric.kind: Fit("fabric", {"latency_s": 9e-6}, 10, 0.05)})
    assert network_without_others(seen, "h100-sxm-80gb", network).fabric.latency_s == 9e-6
