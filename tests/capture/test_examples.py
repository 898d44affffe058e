"""Examples of training scripts that can be captured, and the guide's table of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
SCRIPTS = sorted(
    path for path in (HOME / "workloads/capture").glob("*.py") if path.name != "llama.py"
)
"""All but the model that they share."""


def options_by_script() -> dict[str, list[str]]:
    """Options that the guide's table names, by script; rows without one go on with the last.

    Those with a dot are torchtitan's own.
    """
    found: dict[str, list[str]] = {}
    script = ""
    for row in (HOME / "docs/capture.md").read_text(encoding="utf-8").splitlines():
        if named := re.match(r"\| `(\w+\.py)` \|", row):
            script = named[1]
        if named or row.startswith("| | "):
            found.setdefault(script, []).extend(re.findall(r"`--(\w+)[ `]", row))
    return found


def test_the_guide_lists_every_example():
    assert set(options_by_script()) == {p.name for p in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_example_states_its_command_and_has_the_options_that_the_guide_names(script):
    text = script.read_text(encoding="utf-8")
    _, said, code = text.split('"""', 2)
    assert f"clustersim capture workloads/capture/{script.name} --world " in said
    for option in options_by_script()[script.name]:
        assert re.search(rf"settings\(.*\b{option}=", code)
