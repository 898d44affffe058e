"""The links that a driver prints make the right node, or an error with the line."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.load import load_profile
from simulator.errors import InputError
from simulator.importers.node_topology import (
    NodeTopology,
    node_topology,
    parse_topology_matrix,
    read_topology_matrix,
)
from simulator.units import parse_quantity
from tests.topology_text import CUBE_MESH, amd_text, nvidia_text, uniform

BESIDE = [" ".join("PIX" if i == j else "SYS" for j in range(8)) for i in range(8)]


def node(text: str, base: str, **told: object) -> NodeTopology:
    return node_topology(parse_topology_matrix(text), load_profile(base), "topo.txt", **told)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "base", "gpus", "kind", "gb_per_s"),
    [
        (nvidia_text(uniform(8, "NV18")), "h100-sxm-80gb", 8, "nvswitch", 450),
        (nvidia_text(uniform(8, "NV12"), coloured=True), "a100-sxm-80gb", 8, "nvswitch", 300),
        (nvidia_text(uniform(8, "NV8")), "h800", 8, "nvswitch", 200),
        (nvidia_text(uniform(2, "NV18")), "b200-sxm-180gb", 2, "nvswitch", 900),
        (nvidia_text(uniform(4, "NV4")), "a100-sxm-80gb", 4, "full-mesh", 300),
        (nvidia_text(uniform(4, "NV2")), "v100-sxm2-32gb", 4, "full-mesh", 150),
        (nvidia_text(uniform(4, "NV6")), "gh200-96gb", 4, "full-mesh", 450),
        (nvidia_text(CUBE_MESH), "v100-sxm2-32gb", 8, "hybrid-cube-mesh", 150),
        (nvidia_text(uniform(4, "PHB")), "l40s", 4, "pcie", 32),
        (amd_text(8, "XGMI"), "mi300x", 8, "full-mesh", 448),
        (amd_text(4, "XGMI"), "mi300x", 4, "full-mesh", 192),
    ],
)
def test_links_between_gpus_make_the_scale_up_domain(
    text: str, base: str, gpus: int, kind: str, gb_per_s: float
) -> None:
    values = {path: told.value for path, told in node(text, base).values.items()}
    assert values["network.gpus_per_node"] == values["network.scale_up.gpus"] == gpus
    assert values["network.scale_up.kind"] == kind
    rate = parse_quantity(str(values["network.scale_up.bandwidth"]), "bytes_per_s")
    assert rate == pytest.approx(gb_per_s * 1e9)


@pytest.mark.parametrize("base", ["h100-sxm-80gb", "a100-sxm-80gb", "b200-sxm-180gb", "h800"])
def test_the_rate_of_links_is_that_of_the_shipped_profiles(base: str) -> None:
    up = load_profile(base).network.scale_up
    links = {"h100-sxm-80gb": 18, "a100-sxm-80gb": 12, "b200-sxm-180gb": 18, "h800": 8}[base]
    told = node(nvidia_text(uniform(8, f"NV{links}")), base).values["network.scale_up.bandwidth"]
    assert parse_quantity(str(told.value), "bytes_per_s") == up.bandwidth_bytes_per_s


def test_nics_that_are_beside_a_gpu_carry_collectives() -> None:
    text = nvidia_text(uniform(8, "NV18"), [*BESIDE, " ".join(["NODE"] * 8)])
    found = node(text, "h100-sxm-80gb", nic_rate="200 Gbit/s")
    assert found.values["network.fabric.nics_per_node"].value == 8
    assert found.values["network.fabric.nic"].value == "200 Gbit/s"
    assert any(text.startswith("mlx5_8 carry no collectives") for text in found.report.assumed)


def test_where_no_nic_is_beside_a_gpu_all_count() -> None:
    text = nvidia_text(uniform(8, "NV18"), [" ".join(["PHB"] * 8)] * 4)
    assert node(text, "h100-sxm-80gb").values["network.fabric.nics_per_node"].value == 4


def test_what_the_matrix_does_not_tell_is_the_bases_and_said() -> None:
    found = node(nvidia_text(uniform(8, "NV18")), "h100-sxm-80gb")
    assert not any(path.startswith("network.fabric") for path in found.values)
    assert "8 NICs per node, as in h100-sxm-80gb: the matrix lists none" in found.report.assumed
    told = node(nvidia_text(uniform(8, "NV18")), "h100-sxm-80gb", nics=4).values
    assert told["network.fabric.nics_per_node"].value == 4


def test_a_cube_mesh_in_another_order_is_said_to_be_one() -> None:
    swap = [1, 0, 2, 3, 4, 5, 6, 7]
    rows = [" ".join(CUBE_MESH[i].split()[j] for j in swap) for i in swap]
    found = node(nvidia_text(rows), "v100-sxm2-32gb")
    assert found.values["network.scale_up.kind"].value == "hybrid-cube-mesh"
    assert any("whose order differs" in text for text in found.report.assumed)


def test_nodes_of_a_rack_keep_their_domain() -> None:
    found = node(nvidia_text(uniform(4, "NV18")), "gb200-nvl72")
    assert found.values["network.gpus_per_node"].value == 4
    assert "network.scale_up.gpus" not in found.values
    assert any("a domain of 72 GPUs" in text for text in found.report.assumed)


def test_bridges_between_pairs_are_reported_as_not_modelled() -> None:
    rows = ["X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X"]
    found = node(nvidia_text(rows), "a100-pcie-80gb")
    assert found.values["network.scale_up.kind"].value == "pcie"
    assert found.report.unsupported


MATRIX = nvidia_text(uniform(4, "NV18"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no line is headed GPU0"),
        ("nvidia-smi: command not found\n", "no line is headed GPU0"),
        (MATRIX.replace("NV18", "OK", 1), "line 2: 'OK' in the row of GPU0 is not a known link"),
        (MATRIX.replace("NV18\tNV18\t X", "NV18NV18\t X", 1), "line 4: 'NV18NV18' in the row"),
        (MATRIX.split("NV18")[0], "has 1 of 4 columns"),
        (MATRIX.split("GPU3\tNV18")[0], "line 1: has no row of GPU3"),
        (MATRIX.replace("NV18", "SYS", 1), "line 2: says SYS from GPU0 to GPU1 and NV18 back"),
    ],
)
def test_text_that_is_no_whole_matrix_is_refused_with_the_line(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_topology_matrix(text, "topo.txt")
    assert says in str(caught.value)
    assert all(fault.hint and fault.file == "topo.txt" for fault in caught.value.faults)


@pytest.mark.parametrize(
    ("text", "base", "says"),
    [
        (nvidia_text(uniform(8, "SYS")), "h100-sxm-80gb", "shows no NVLink, but the GPUs of"),
        (nvidia_text(uniform(8, "NV18")), "mi300x", "whose bandwidth on mi300x is unknown"),
        (nvidia_text(CUBE_MESH), "a100-sxm-80gb", "links of a DGX-1 with V100"),
        (amd_text(8, "XGMI"), "h100-sxm-80gb", "shows xGMI links"),
        (amd_text(8, "PCIE"), "mi300x", "shows no xGMI"),
    ],
)
def test_a_matrix_that_does_not_suit_the_base_is_refused(text: str, base: str, says: str) -> None:
    with pytest.raises(InputError, match="use --profile") as caught:
        node(text, base)
    assert says in str(caught.value)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([(MATRIX, "h100-sxm-80gb"), (amd_text(4, "XGMI"), "mi300x")]),
    st.integers(0, 500),
    st.integers(0, 100),
    st.text(max_size=3),
)
def test_a_damaged_matrix_is_read_or_refused_and_never_crashes(
    given_text: tuple[str, str], start: int, length: int, other: str
) -> None:
    text, base = given_text
    with contextlib.suppress(InputError):
        node(text[:start] + other + text[start + length :], base)


def test_a_rate_without_unit_is_refused() -> None:
    with pytest.raises(InputError, match="has no unit"):
        node(MATRIX, "h100-sxm-80gb", nic_rate="400")


def test_a_missing_file_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_topology_matrix(tmp_path / "none.txt")
