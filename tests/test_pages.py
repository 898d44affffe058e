"""Does the documentation tell the truth?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import PAGES, ROOT, written_now

TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@every_page
def test_every_block_runs_and_shows_what_it_gives_now(page):
    assert written_now(page) == TEXTS[page], "run make docs and review the difference"


@every_page
def test_every_file_that_a_page_names_exists(page):
    folders = "simulator|workloads|hardware_profiles|reports|tests|docs"
    names = re.findall(rf"`((?:{folders})/[\w./-]+)`", TEXTS[page])
    assert [name for name in names if not (ROOT / name).exists()] == []


@every_page
def test_every_link_of_a_page_leads_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", TEXTS[page])
    assert [link for link in links if not leads_somewhere(page, link)] == []


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether the file exists, and has the heading if one is meant."""
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    return target.exists() and (not anchor or anchor in anchors(target))


def anchors(page: Path) -> set[str]:
    """Headings of a page, as links spell them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_of_the_guide_is_in_its_index():
    index = TEXTS[ROOT / "docs" / "README.md"]
    guide = [page.name for page in PAGES if page.parent.name == "docs"]
    assert [name for name in guide if name != "README.md" and f"({name})" not in index] == []
