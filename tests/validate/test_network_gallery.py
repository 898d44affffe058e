"""The page of networks: every picture that it names is there, and can be made again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reports.make.galleries.network_gallery import MEASURED, PLACEMENTS, SYSTEMS, gallery_page
from simulator.described.load import job_from_document, load_profile
from simulator.program.grid.placement import placement
from simulator.validate.measured_bandwidths import bus_bandwidths

REPORTS = Path(__file__).parents[2] / "reports"


def test_the_page_is_the_one_that_the_code_writes_and_its_pictures_are_there():
    page = gallery_page()
    assert (REPORTS / "network" / "README.md").read_text(encoding="utf-8") == page
    named = re.findall(r"\]\((.+?\.png)\)", page)
    assert sorted(named) == sorted(path.name for path in (REPORTS / "network").glob("*.png"))


def test_the_pictures_are_small():
    sizes = [path.stat().st_size for path in (REPORTS / "network").glob("*.png")]
    assert max(sizes) < 150_000


@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_placement_is_of_a_sound_job(name):
    placed = placement(job_from_document(PLACEMENTS[name][1]))
    assert placed.groups


def test_every_system_that_is_shown_is_shipped_or_measured():
    assert [load_profile(name).name for name in SYSTEMS] == list(SYSTEMS)
    measured = bus_bandwidths(REPORTS / "data" / "collectives_open.csv")
    assert set(MEASURED) <= set(measured)
