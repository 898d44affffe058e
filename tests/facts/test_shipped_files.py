"""The YAML files that the project ships and reads itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from simulator.described.documents import SafeLoader

ROOT = Path(__file__).parents[2]
FOLDERS = ("simulator/facts", "hardware_profiles", "workloads", "reports/data", "tests/golden")
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.yaml")
)


def doubled_keys(node: yaml.Node | None) -> Iterator[str]:
    """Keys that a mapping has twice, with their line; a reader keeps the last in silence."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                yield f"{key.value}, line {key.start_mark.line + 1}"
            seen.add(key.value)
            yield from doubled_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from doubled_keys(each)


@pytest.mark.parametrize("file", FILES)
def test_no_file_says_the_same_key_twice(file):
    root = yaml.compose((ROOT / file).read_text(encoding="utf-8"), Loader=SafeLoader)
    assert not [*doubled_keys(root)]


def test_a_key_that_is_said_twice_is_found_with_its_line():
    text = "a: 1\nb:\n  - {c: 1}\n  - c: 1\n    d: 2\n    c: 3\n"
    assert [*doubled_keys(yaml.compose(text, Loader=SafeLoader))] == ["c, line 6"]
