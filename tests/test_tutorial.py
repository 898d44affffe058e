"""Do the notebooks of the guide run, and show what they would show now?"""

from __future__ import annotations

import json

import pytest

from tests.tutorial import PATHS, run_now, without_pictures


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_its_cells_give_now(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    again = without_pictures(run_now(notebook))
    assert again == without_pictures(notebook), "run python -m tests.tutorial, see what changed"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_cell_of_a_notebook_says_or_shows_something(path):
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        assert cell["source"]
        assert cell["cell_type"] == "markdown" or cell["outputs"] or "import" in cell["source"][0]
