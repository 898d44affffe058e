"""Does the tutorial's notebook run, and show what it would show now?"""

from __future__ import annotations

import json

from tests.tutorial import PATH, run_now, written


def test_the_tutorial_shows_what_its_cells_give_now():
    text = PATH.read_text(encoding="utf-8")
    again = written(run_now(json.loads(text)))
    assert again == text, "run python -m tests.tutorial and review the difference"


def test_every_cell_of_the_tutorial_says_or_shows_something():
    for cell in json.loads(PATH.read_text(encoding="utf-8"))["cells"]:
        assert cell["source"]
        assert cell["cell_type"] == "markdown" or cell["outputs"] or "import" in cell["source"][0]
