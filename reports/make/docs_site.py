"""How does the documentation become a site?

``python -m reports.make.docs_site`` (or ``make docs-site``) copies the pages that
``docs/mkdocs.yml`` names, and everything they link to, into ``build/pages`` with the folders they
have here, so that links stay as they are; mkdocs makes ``build/site`` of them. The site needs no
server and no network. Links to code, which are no pages, become plain text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "docs" / "mkdocs.yml"
PAGES = ROOT / "build" / "pages"
ASSETS = ROOT / "docs" / "assets"

_LINK = re.compile(
    r"\[(?P<words>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>(?!\w+:)[^)#\s]+)(?P<anchor>#[^)]*)?\)"
)
_SHOWN = {".md", ".png", ".svg", ".html", ".ipynb", ".csv", ".json", ".yaml"}
"""Endings of files that a browser shows or saves."""


def named_pages() -> list[str]:
    """Pages of the navigation in its order, as paths from the root of the repository."""

    def leaves(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values() if isinstance(entry, dict) else entry:
                yield from leaves(inner)

    return list(leaves(yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["nav"]))


def linked_files(page: Path) -> list[Path]:
    """Files that a page links to or shows, those that exist."""
    found = _LINK.finditer(page.read_text(encoding="utf-8"))
    targets = [(page.parent / link["target"]).resolve() for link in found]
    return [target for target in targets if target.is_file()]


def site_files() -> set[Path]:
    """Pages of the navigation, and all that can be reached from them by links."""
    todo, seen = [ROOT / name for name in named_pages()], set[Path]()
    while todo:
        file = todo.pop()
        if file not in seen and file.suffix in _SHOWN:
            seen.add(file)
            if file.suffix == ".md":
                todo.extend(linked_files(file))
    return seen


def page_text(page: Path, files: set[Path]) -> str:
    """The page as the site shows it: links that leave the site are plain words."""

    def linked(link: re.Match[str]) -> str:
        inside = (page.parent / link["target"]).resolve() in files
        return link.group() if inside else link["words"]

    return _LINK.sub(linked, page.read_text(encoding="utf-8"))


def copy_pages(folder: Path) -> None:
    """Put all files of the site below a folder, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    files = site_files()
    for file in files | set(ASSETS.iterdir()):
        copy = folder / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            copy.write_text(page_text(file, files), encoding="utf-8")
        else:
            shutil.copyfile(file, copy)


if __name__ == "__main__":
    copy_pages(PAGES)
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-f", str(CONFIG)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # on the successor of the theme
    sys.exit(subprocess.run(build, env=quiet, check=False).returncode)
