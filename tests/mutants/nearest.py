"""Which test files are nearest to a module?

As many imports away as it takes: files that import the module come first, then those that import
what imports it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_ROOMS = ("simulator", "tests")
_KNOW_NO_ANSWER = {
    "golden", "mutants", "bench", "importers", "calibrate", "test_pages.py", "test_tutorial.py",
    "test_reference.py", "test_packaging.py", "test_architecture.py",
}  # fmt: skip
"""Folders and files of tests that are about something else than the core, or keep its numbers."""


def importers(root: Path) -> Mapping[str, frozenset[str]]:
    """The files that import each file of the package and its tests, by path from the root."""
    paths = {
        path.relative_to(root).as_posix(): path
        for room in _ROOMS
        for path in sorted((root / room).rglob("*.py"))
    }
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name, path in paths.items():
        for module in _imported(path):
            stem = module.replace(".", "/")
            for target in (f"{stem}.py", f"{stem}/__init__.py"):
                if target in paths:
                    found[target].add(name)
    return {name: frozenset(files) for name, files in found.items()}


def _imported(path: Path) -> Iterator[str]:
    """Modules that a file imports, anywhere in it, and what may be modules in them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def nearest_tests(path: str, imported_by: Mapping[str, frozenset[str]]) -> list[str]:
    """Test files that reach a file of the package, the nearest first.

    Of those equally near, tests of the same room come first, and then those that import least.
    """
    distances = {path: 0}
    reached: list[str] = [path]
    for name in reached:
        for importer in sorted(imported_by.get(name, ())):
            if importer not in distances:
                distances[importer] = distances[name] + 1
                reached.append(importer)
    room = path.split("/")[1]
    tests = [name for name in reached if _knows_an_answer(name)]
    return sorted(tests, key=lambda name: (distances[name], name.split("/")[1] != room))


def _knows_an_answer(name: str) -> bool:
    parts: Sequence[str] = name.split("/")
    return parts[0] == "tests" and parts[-1].startswith("test_") and parts[1] not in _KNOW_NO_ANSWER
