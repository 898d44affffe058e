"""A network that made the rows is found again from the files people keep."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("scipy")

from simulator.calibrate.network.measured_network import (
    Calibration,
    calibrate_collectives,
    parameters,
    read_measured,
    residuals,
    to_dict,
)
from simulator.calibrate.profile_text import with_sourced_values
from simulator.cost.collectives import CollectiveKind, Group, collective_cost
from simulator.described.cluster.network import Network
from simulator.described.documents import parse_yaml
from simulator.described.load import load_profile, profile_file, profile_from_document
from simulator.errors import InputError
from simulator.importers.nccl_tests.measured_collective import KIND_OF_NAME
from tests.nccl_output import Bench, json_output, text_output

BASE = "h100-sxm-80gb"
SCALE_UP = {"launch_s": 6e-6, "latency_s": 1.1e-6, "efficiency": 0.65}
FABRIC = {"efficiency": 0.8, "latency_s": 8e-6, "bulk_latency_s": 25e-6}
SIZES = tuple(2**power for power in range(10, 34, 2))


def true_network() -> Network:
    """A cluster of the same machines that is wired and set up worse."""
    network = load_profile(BASE).network
    return network.model_copy(
        update={
            "scale_up": network.scale_up.model_copy(update=SCALE_UP),
            "fabric": network.fabric.model_copy(update=FABRIC),
        }
    )


def bench(program: str, nodes: int, noise: float = 0.03) -> Bench:
    """Measured on the true network, off by up to ``noise``."""
    kind = CollectiveKind(KIND_OF_NAME.get(program, program))
    network, chance = true_network(), random.Random(f"{program} {nodes}")

    def time_us(size: int) -> float:
        cost = collective_cost(kind, size, Group(8 * nodes, 8), network)
        return cost.seconds * 1e6 * chance.uniform(1 - noise, 1 + noise)

    times = {size: time_us(size) for size in SIZES}
    return Bench(program, nodes, time_us=times.__getitem__)


def calibrated(folder: Path, programs: Sequence[str], nodes: Sequence[int]) -> Calibration:
    """The fit to one file per program, with one run per number of nodes."""
    files = []
    for program in programs:
        path = folder / f"{program}.txt"
        path.write_text("".join(text_output(bench(program, n), SIZES) for n in nodes))
        files.append(read_measured(path))
    return calibrate_collectives(files, load_profile(BASE))


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    """All-reduces and all-gathers inside a node and over two and four."""
    folder = tmp_path_factory.mktemp("files")
    return calibrated(folder, ["all_reduce", "all_gather"], [1, 2, 4])


def test_parameters_are_found_again_within_a_tenth(calibration: Calibration) -> None:
    values = {fit.part: fit.values for fit in calibration.fits}
    for name, value in SCALE_UP.items():
        assert values["scale_up"][name] == pytest.approx(value, rel=0.1)
    for name, value in FABRIC.items():
        assert values["fabric"][name] == pytest.approx(value, rel=0.1)


def test_a_fit_is_as_near_to_the_rows_as_they_are_noisy(calibration: Calibration) -> None:
    summary = to_dict(calibration)["summary"]
    assert summary["n"] == 2 * 3 * len(SIZES)
    assert summary["base_median_ape"] > 15
    assert summary["median_ape"] < 3
    assert all(abs(residual.median) < 0.06 for residual in residuals(calibration.points))


def test_residuals_count_every_row_once(calibration: Calibration) -> None:
    scopes = residuals(calibration.points)
    assert sum(residual.rows for residual in scopes) == len(calibration.points)
    for residual in scopes:
        assert residual.least <= residual.median <= residual.most


def test_what_the_rows_do_not_tell_stays_and_is_said(calibration: Calibration) -> None:
    held = [row for row in parameters(calibration) if row["spread"] is None]
    assert "network.scale_up.bulk_latency" in [row["field"] for row in held]
    assert all(row["fitted"] == row["base"] for row in held)
    (said,) = (text for text in calibration.notes if "bulk_latency" in text)
    assert "as in h100-sxm-80gb: the rows do not determine them" in said
    assert any("measured on 2 to 4 nodes" in text for text in calibration.notes)
    assert any("8 x 50 GB/s ib per node" in text for text in calibration.notes)


def test_a_written_profile_differs_in_told_network_numbers_only(calibration: Calibration) -> None:
    text = profile_file(BASE).read_text()
    values = calibration.sourced_values()
    written = with_sourced_values(text, values, BASE)
    before = load_profile(BASE)
    after = profile_from_document(parse_yaml(written))
    assert after.network.scale_up.launch_s == calibration.fits[0].values["launch_s"]
    kept = {"network": before.network, "provenance": before.provenance}
    assert after.model_copy(update=kept) == before
    changed = {
        path for path, source in after.provenance.items() if before.provenance[path] != source
    }
    assert changed == set(values)
    source = after.provenance["network.fabric.latency"]
    assert source.kind == "fitted"
    for part in ("all_reduce.txt, all_gather.txt", "NCCL 2.28.3", "48 rows", "median error"):
        assert part in source.reference


def test_without_rows_that_cross_the_fabric_stays(tmp_path: Path) -> None:
    fitted = calibrated(tmp_path, ["all_gather"], [1])
    assert [fit.part for fit in fitted.fits] == ["scale_up"]
    said = "fabric stays as in h100-sxm-80gb: no row crosses nodes"
    assert said in fitted.notes
    assert not any(path.startswith("network.fabric") for path in fitted.sourced_values())


def test_one_number_of_nodes_is_said_to_be_one(tmp_path: Path) -> None:
    fitted = calibrated(tmp_path, ["all_gather"], [2])
    assert any("all rows have 2 nodes" in text for text in fitted.notes)
    assert "scale_up stays as in h100-sxm-80gb: no row stays inside a node" in fitted.notes


def test_rings_alone_do_not_tell_what_a_switch_that_reduces_takes(tmp_path: Path) -> None:
    fitted = calibrated(tmp_path, ["all_gather"], [1])
    assert {"in_switch_efficiency", "in_switch_latency_s"} <= set(fitted.fits[0].held)


def test_rows_of_another_gpu_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json_output(bench("all_gather", 1), SIZES))
    other = Bench("all_gather", gpu="NVIDIA A100-SXM4-80GB")
    (tmp_path / "b.json").write_text(json_output(other, SIZES))
    files = [read_measured(tmp_path / name) for name in ("a.json", "b.json")]
    fitted = calibrate_collectives(files, load_profile(BASE))
    assert len(fitted.points) == len(SIZES)
    assert {lost.reason for lost in fitted.excluded} == {
        "measured on A100-SXM4-80GB, and h100-sxm-80gb is another GPU"
    }
    with pytest.raises(InputError, match="hold no row that h100-sxm-80gb can be fitted to"):
        calibrate_collectives(files[1:], load_profile(BASE))


def test_part_of_a_nodes_gpus_does_not_tell_of_its_nics(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json_output(bench("all_gather", 1), SIZES))
    (tmp_path / "b.json").write_text(json_output(Bench("all_gather", 2, 1), SIZES))
    files = [read_measured(tmp_path / name) for name in ("a.json", "b.json")]
    fitted = calibrate_collectives(files, load_profile(BASE))
    reason = "1 of 8 GPUs per node: which NICs they used is not stated"
    assert [lost.reason for lost in fitted.excluded] == [reason] * len(SIZES)


def test_a_collected_table_is_accepted(tmp_path: Path) -> None:
    rows = [
        f"r{size},all_gather,H100-SXM5-80GB,8,1,8,{size},{bench('all_gather', 1).time_us(size)}"
        for size in SIZES
    ]
    table = tmp_path / "table.csv"
    heading = "id,collective,gpu,gpus,nodes,gpus_per_node,bytes,time_us"
    table.write_text("\n".join([heading, *rows, "x,all_gather,TPU,8,1,8,1024,9"]) + "\n")
    fitted = calibrate_collectives([read_measured(table)], load_profile(BASE))
    assert len(fitted.points) == len(SIZES)
    assert [lost.place for lost in fitted.excluded] == ["x"]


def test_without_scipy_the_extra_that_holds_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(InputError, match=r"pip install .*(scipy|calibrate)"):
        calibrated(tmp_path, ["all_gather"], [1])
