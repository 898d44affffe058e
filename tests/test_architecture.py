"""Does the code keep the shape that the design promises?"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "simulator"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

FLOORS = (
    {"errors", "extras", "files", "processor", "units", "version"},
    {"spec", "importers"},
    {"cost"},
    {"schedule"},
    {"program"},
    {"engine"},
    {"results", "serving"},
    {"plots", "exporters", "validate", "calibrate", "chakra"},
    {"planning"},
    {"api"},
    {"cli", "__main__"},
)
"""From the ground up; a room imports from its own floor or below it."""

PUBLIC_NAMES = {"", "api"}
"""The package itself re-exports what scripts use, so it stands beside the API."""

LIBRARY_ROOMS = {
    "simpy": {"engine"},
    "torch": {"calibrate", "validate"},
    "matplotlib": {"plots"},
    "jinja2": {"exporters", "calibrate"},
    "scipy": {"calibrate"},
    "google": {"chakra"},
    "typer": {"cli"},
    "rich": {"cli"},
}
"""Which rooms may use a library; numpy, pandas, pydantic and yaml are not limited."""

MAX_LINES = 500


class Import(NamedTuple):
    """One imported module, and whether that happens when the importer is loaded."""

    module: str
    is_lazy: bool


def imports_of(path: Path) -> Iterator[Import]:
    """Modules that a file imports at run time; imports for type checkers are left out."""
    yield from _imports_in(ast.parse(path.read_text(encoding="utf-8")), is_lazy=False)


def _imports_in(node: ast.AST, *, is_lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, is_lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            names = (f"{child.module}.{alias.name}" for alias in child.names)
            yield from (
                Import(name if name in MODULES else str(child.module), is_lazy) for name in names
            )
        else:
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from _imports_in(child, is_lazy=is_lazy or is_function)


def room(module: str) -> str:
    """The folder or top-level file of ``simulator`` that a module belongs to."""
    return module.split(".")[1] if "." in module else ""


def floor(module: str) -> int:
    """Height of a module's room."""
    name = "api" if room(module) in PUBLIC_NAMES else room(module)
    return next(height for height, rooms in enumerate(FLOORS) if name in rooms)


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == "simulator"


def test_every_room_has_a_floor():
    rooms = {room(module) for module in MODULES}
    assert rooms - set().union(*FLOORS) <= PUBLIC_NAMES


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_its_own_floor_and_below(module):
    above = [
        used.module
        for used in imports_of(MODULES[module])
        # The package itself is on every path; whoever names it only asks where it lies.
        if is_ours(used.module)
        and used.module != "simulator"
        and floor(used.module) > floor(module)
    ]
    assert above == []


def test_importers_are_loaded_by_the_specs_only_when_a_job_names_a_foreign_file():
    eager = [
        (module, used.module)
        for module, path in MODULES.items()
        if room(module) == "spec"
        for used in imports_of(path)
        if room(used.module) == "importers"
        and not (used.is_lazy and module == "simulator.spec.load")
    ]
    assert eager == []


def test_no_module_imports_itself_in_a_circle():
    graph = {
        module: {u.module for u in imports_of(path) if u.module in MODULES and not u.is_lazy}
        - {"simulator"}
        for module, path in MODULES.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize(("library", "rooms"), LIBRARY_ROOMS.items())
def test_a_library_stays_in_its_room(library, rooms):
    elsewhere = [
        module
        for module, path in MODULES.items()
        if room(module) not in rooms
        and any(used.module.split(".")[0] == library for used in imports_of(path))
    ]
    assert elsewhere == []


def test_importing_the_package_is_quiet_light_and_leaves_nothing_behind(tmp_path):
    code = (
        "import sys, simulator\n"
        "heavy = {'torch', 'pandas', 'matplotlib', 'scipy', 'typer', 'rich', 'jinja2'}\n"
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", MODULES)
def test_every_public_thing_says_what_it_is(module):
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    silent = [name for name, node in _public_definitions(tree) if ast.get_docstring(node) is None]
    if tree.body and ast.get_docstring(tree) is None:
        silent.append("the module itself")
    assert silent == []


def _public_definitions(
    node: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)) and not child.name.startswith("_"):
            yield f"{prefix}{child.name}", child
            if isinstance(child, ast.ClassDef):
                yield from _public_definitions(child, f"{child.name}.")


@pytest.mark.parametrize("module", MODULES)
def test_a_file_holds_one_idea_and_so_is_short(module):
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= MAX_LINES
