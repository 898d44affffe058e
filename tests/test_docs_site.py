"""Is every page on the site, with all that it links to?"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml

from reports.make.docs_site import CONFIG, ROOT, copy_pages, linked_files, named_pages
from tests.pages import PAGES

COPIED_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    copy_pages(folder)
    return folder


def test_the_navigation_has_every_page_of_ours_once():
    named = named_pages()
    assert sorted(named) == sorted(set(named))
    assert {str(page.relative_to(ROOT)) for page in PAGES} <= set(named)
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_link_of_a_copied_page_stays_on_the_site(pages):
    dead = [
        (page.name, target)
        for page in pages.rglob("*.md")
        for target in COPIED_LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert dead == []


def test_a_picture_that_a_page_shows_is_copied(pages):
    pictures = [f for f in linked_files(ROOT / "README.md") if f.suffix == ".png"]
    assert pictures
    assert all((pages / picture.relative_to(ROOT)).is_file() for picture in pictures)


def test_nothing_of_the_site_is_loaded_from_elsewhere():
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    assert config["theme"]["font"] is False
    assert "offline" in config["plugins"]
    loaded = [*config["extra_css"], *config["extra"]["polyfills"]]
    assert [name for name in loaded if not (ROOT / name).is_file()] == []


def test_the_site_builds_with_a_search_in_it_and_no_address_to_load_from():
    pytest.importorskip("material", reason="comes with the extra docs")
    built = subprocess.run(
        [sys.executable, "-m", "reports.make.docs_site"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    home = (ROOT / "build" / "site" / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<(?:script|img)[^>]+src="(?:https?:)?//', home) == []
    assert "prediction interval" in (ROOT / "build/site/search/search_index.js").read_text("utf-8")
