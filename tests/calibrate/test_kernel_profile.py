"""A device that made the rows is found again in the profile that is written."""

from __future__ import annotations

import pytest

pytest.importorskip("scipy")

from simulator.calibrate.gpu.kernel_case import KernelCase
from simulator.calibrate.gpu.kernel_profile import (
    KernelCalibration,
    calibrate_kernels,
    measured_values,
)
from simulator.calibrate.gpu.measure_kernels import KernelJournal
from simulator.calibrate.profile_text import processor_profile_text
from simulator.cost.kernel_time import attention_s, gemm_s, memory_bound_s
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.documents import parse_yaml
from simulator.described.load import load_profile, profile_file, profile_from_document
from simulator.described.rules.profile_rules import profile_faults
from simulator.errors import InputError
from simulator.validate.kernel_errors import without_sustained_clock

BASE = "h100-sxm-80gb"
SOURCE = "calibrate gpu on a test, 2026-01-01, torch 0"


def true_device() -> HardwareProfile:
    """The base with worse products and a slower memory."""
    base = without_sustained_clock(load_profile(BASE))
    gemm = {**base.kernels.gemm}
    gemm["bf16"] = gemm["bf16"].model_copy(update={"efficiency": 0.6})
    update = {"gemm": gemm, "memory_efficiency": 0.7}
    return base.model_copy(update={"kernels": base.kernels.model_copy(update=update)})


def fill(journal: KernelJournal, case: KernelCase, seconds: float, **facts: object) -> None:
    journal.add(case, seconds=seconds, spread=0.01, repetitions=9, **facts)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> KernelJournal:
    """What the true device takes for products, copies and attention, and outright figures."""
    device = true_device()
    journal = KernelJournal.opened(
        tmp_path_factory.mktemp("k") / "k.csv", "a test", SOURCE, resume=False
    )
    for m in (256, 1024, 4096):
        for n, k in ((4096, 4096), (28672, 4096), (4096, 14336), (1792, 8192)):
            case = KernelCase("gemm", "bf16", m, n, k)
            fill(journal, case, gemm_s(device, m, n, k), flop=2.0 * m * n * k)
    for size in (2**power for power in range(18, 28)):
        case = KernelCase("stream_copy", "bf16", m=size)
        fill(journal, case, memory_bound_s(device, 4.0 * size), num_bytes=4.0 * size)
    for seq in (512, 1024, 2048, 4096, 8192, 16384):
        case = KernelCase(
            "cudnn_attention (sdpa)", "bf16", seq=seq, heads=32, kv_heads=8, head_dim=128,
            causal=True,
        )  # fmt: skip
        seconds = attention_s(
            device, batch=1, heads=32, kv_heads=8, seq_q=seq, seq_kv=seq, head_dim=128, causal=True
        )
        fill(journal, case, seconds, flop=1.0, notes="heads 32, kv heads 8")
    fill(journal, KernelCase("host_launch", "", direction=""), 1.18 * 7e-6)
    for size, rate in ((2**20, 20e9), (2**28, 55.1e9)):
        case = KernelCase("copy_to_device_pinned", "", m=size, direction="")
        fill(journal, case, size / rate, num_bytes=float(size))
    notes = "15 s under load; rate when hot over cool 0.9123; clock 1500 MHz"
    fill(journal, KernelCase("sustained_gemm", "bf16", 8, 8, 8), 1e-6, notes=notes)
    return journal


@pytest.fixture(scope="module")
def calibration(journal: KernelJournal) -> KernelCalibration:
    """The fit, with one product in the rows that is impossibly fast."""
    work = 2.0 * 4096 * 4096 * 1024
    fill(journal, KernelCase("gemm", "bf16", 4096, 4096, 1024), work / 1200e12, flop=work)
    file = profile_file(BASE)
    return calibrate_kernels(journal.measured, file.read_text(), str(file), "ours", SOURCE)


def test_parameters_are_found_again_and_written_with_their_source(calibration):
    profile = calibration.profile
    assert profile.name == "ours"
    assert profile.kernels.gemm["bf16"].efficiency == pytest.approx(0.6, rel=0.03)
    assert profile.kernels.memory_efficiency == pytest.approx(0.7, rel=0.03)
    assert profile.kernels.launch_s == 7e-6
    assert profile.host.pcie_bytes_per_s == 55.1e9
    assert profile.kernels.sustained_clock == 0.912
    source = profile.provenance["kernels.gemm.bf16.efficiency"]
    assert source.kind == "fitted"
    assert "calibrate gpu on a test, 2026-01-01, torch 0" in source.reference
    assert "13 rows, mean error" in source.reference
    assert "median spread 1.0%" in source.reference
    assert profile_faults(profile) == []


def test_the_launch_is_that_of_an_operator_where_one_was_timed(tmp_path):
    journal = KernelJournal.opened(tmp_path / "k.csv", "a test", SOURCE, resume=False)
    fill(journal, KernelCase("host_launch", "", direction=""), 1e-6)
    fill(journal, KernelCase("host_operator", "", direction=""), 4.9 * 6e-6)
    (launch,) = measured_values(journal.measured, SOURCE).values()
    assert launch.value == "6 us"


def test_predictions_after_the_fit_are_those_of_the_device(calibration):
    products = ("a test", "products of at least 256 rows")
    assert (calibration.before.families[products].mape or 0) > 15
    assert (calibration.after.families[products].median_ape or 100) < 3
    document = calibration.to_dict()
    assert document["measured"]["kernels.launch"] == "7 us"
    assert {row["block"] for row in document["parameters"]} >= {"gemm.bf16", "memory"}


def test_what_the_rows_do_not_tell_stays_and_is_said(calibration):
    base = load_profile(BASE)
    assert calibration.profile.kernels.gemm["fp8"] == base.kernels.gemm["fp8"]
    assert calibration.profile.network == base.network
    (sentence,) = [text for text in calibration.notes if "as in h100-sxm-80gb" in text]
    assert "gemm.fp8" in sentence


def test_rates_above_the_peak_are_said_to_be_impossible(calibration):
    assert any("1 bf16 rows are faster than the peak" in text for text in calibration.notes)


def test_nothing_measured_is_an_error_with_a_way_out():
    file = profile_file(BASE)
    with pytest.raises(InputError, match="nothing was measured"):
        calibrate_kernels([], file.read_text(), str(file), "ours", SOURCE)


def test_a_rate_under_load_above_the_cool_one_counts_as_equal(tmp_path):
    journal = KernelJournal.opened(tmp_path / "k.csv", "g", SOURCE, resume=False)
    notes = "15 s under load; rate when hot over cool 1.0400"
    fill(journal, KernelCase("sustained_gemm", "bf16", 8, 8, 8), 1e-6, notes=notes)
    values = measured_values(journal.rows, SOURCE)
    assert values["kernels.sustained_clock"].value == 1.0


def test_a_processor_gets_a_sound_profile_of_its_own(tmp_path):
    journal = KernelJournal.opened(tmp_path / "k.csv", "a CPU", SOURCE, resume=False)
    fill(journal, KernelCase("gemm", "fp32", 64, 64, 64), 1e-5, flop=1e6)
    fill(journal, KernelCase("stream_copy", "fp32", m=10**6), 1e-3, num_bytes=8e6)
    text = processor_profile_text("mine", "a CPU", 2**34, journal.measured, SOURCE)
    profile = profile_from_document(parse_yaml(text))
    assert profile.device.peak.fp32_flop_per_s == 1e11
    assert profile.device.memory_bandwidth_bytes_per_s == 8e9
    assert profile_faults(profile) == []


def test_a_processor_without_a_product_gets_none():
    with pytest.raises(InputError, match="no fp32 product or no copy"):
        processor_profile_text("mine", "a CPU", 2**34, [], SOURCE)
