"""A profile's text is changed where a value stands, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.calibrate.profile_text import (
    SourcedValue,
    with_sourced_values,
    without_aliases,
)
from simulator.described.load import load_profile, profile_file, profile_names
from simulator.errors import InputError
from simulator.files import write_whole

NIC = {"network.fabric.nic": SourcedValue("100 Gbit/s", "measured", 'a "quoted" file')}


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_takes_new_values(tmp_path: Path, name: str) -> None:
    text = profile_file(name).read_text()
    path = tmp_path / "mine.yaml"
    write_whole(path, with_sourced_values(text, NIC, name))
    before, after = load_profile(name), load_profile(str(path))
    assert after.network.fabric.nic_bytes_per_s == 12.5e9
    assert after.provenance["network.fabric.nic"].reference == 'a "quoted" file'
    others = {**after.provenance, "network.fabric.nic": before.provenance["network.fabric.nic"]}
    assert others == before.provenance
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


def test_aliases_are_written_out() -> None:
    text = "a: &x {b: [1, 2]}  # kept\nc: *x\nd: &y 3\ne: [*y, *y]\n"
    assert without_aliases(text) == "a: {b: [1, 2]}  # kept\nc: {b: [1, 2]}\nd: 3\ne: [3, 3]\n"


@pytest.mark.parametrize(
    "layout", ["network: {fabric: {nic: {value: 1 Gbit/s}}}\n", "network: &n\n  fabric: 1\n"]
)
def test_a_layout_that_cannot_be_changed_alone_is_refused(layout: str) -> None:
    with pytest.raises(InputError):
        with_sourced_values(layout, NIC, "mine.yaml")
