"""A profile started from a data sheet: what is set is of the sheet, all else is assumed."""

from __future__ import annotations

import pytest

from simulator.calibrate.new_profile import new_profile_text, not_stated
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.documents import yaml_mapping
from simulator.described.load import load_profile, profile_from_document
from simulator.errors import InputError

SHEET = {
    "device.memory": "22 GiB", "device.power": "150 W", "device.peak.fp8": "none",
    "network.scale_up.bandwidth": "32 GB/s",
}  # fmt: skip


@pytest.fixture(scope="module")
def started() -> HardwareProfile:
    """A card started from an L40S."""
    text = new_profile_text("a10-24gb", "l40s", SHEET, "the sheet", "A card")
    return profile_from_document(yaml_mapping(text))


def test_what_the_sheet_says_is_of_the_sheet(started: HardwareProfile) -> None:
    assert (started.name, started.description) == ("a10-24gb", "A card")
    assert started.device.power_w == 150
    assert started.provenance["device.power"].kind == "datasheet"
    assert started.provenance["device.power"].reference == "the sheet"


def test_all_else_is_the_relatives_and_assumed(started: HardwareProfile) -> None:
    relative = load_profile("l40s")
    assert started.device.l2_cache_bytes == relative.device.l2_cache_bytes
    assert started.network.scale_up.efficiency == relative.network.scale_up.efficiency
    kinds = {
        source.kind
        for path, source in started.provenance.items()
        if path not in SHEET and not path.startswith("common.")
    }
    assert kinds == {"assumed"}
    assert started.provenance["network.scale_up.efficiency"].reference == "as l40s"


def test_a_format_without_a_peak_has_no_products(started: HardwareProfile) -> None:
    assert started.device.peak.fp8_flop_per_s is None
    assert "fp8" not in started.kernels.gemm


def test_what_a_sheet_did_not_say_is_asked_for() -> None:
    assert "device.l2_cache" in not_stated(SHEET)
    assert "device.power" not in not_stated(SHEET)


def test_a_field_that_profiles_do_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="cuda_cores"):
        new_profile_text("x", "l40s", {"device.cuda_cores": "7"}, "the sheet")
