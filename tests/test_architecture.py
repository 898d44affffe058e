"""Does the code keep the shape that the design promises?"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from simulator.described.plan.stack import Stack

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "simulator"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

FLOORS = [
    "ground",
    "facts",
    "schedule",
    "described",
    "importers",
    "cost",
    "tables",
    "program",
    "engine",
    "results",
    "serving",
    "plots",
    "exporters",
    "chakra",
    "capture",
    "ranks",
    "validate",
    "calibrate",
    "planning",
    "api",
    "studio",
    "cli",
]
"""From the ground up; a room imports only from rooms below its own, and from itself."""

GROUND = {"cells", "errors", "extras", "files", "processor", "rooms", "units", "version"}
"""Files beside the rooms that every room may use."""

PUBLIC_NAMES = {"", "api"}
"""The package itself re-exports what scripts use, so it stands beside the API."""

LIBRARY_ROOMS = {
    "simpy": {"engine"},
    "torch": {"calibrate", "capture", "ranks", "validate"},
    "matplotlib": {"plots"},
    "jinja2": {"exporters", "calibrate"},
    "scipy": {"calibrate"},
    "google": {"chakra"},
    "typer": {"cli"},
    "rich": {"cli"},
    "mcp": {"cli"},
    "starlette": {"studio"},
    "uvicorn": {"studio"},
}
"""Which rooms may use a library; numpy, pandas, pydantic and yaml are not limited."""

MAX_LINES = 500


class Import(NamedTuple):
    """One imported module, and whether that happens when the importer is loaded."""

    module: str
    is_lazy: bool


@cache
def tree_of(path: Path) -> ast.Module:
    """What a file says; many tests read all of them."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """Modules that a file imports at run time; imports for type checkers are left out."""
    return tuple(_imports_in(tree_of(path), is_lazy=False))


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
    name = room(module)
    if name in PUBLIC_NAMES:
        name = "api"
    elif name in GROUND:
        name = "ground"
    elif name == "__main__":
        name = "cli"
    return FLOORS.index(name)


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == "simulator"


def test_a_module_imports_only_from_its_own_room_and_those_below():
    elsewhere = [
        (module, used.module)
        for module, path in MODULES.items()
        for used in imports_of(path)
        # The package itself is on every path; whoever names it only asks where it lies.
        if is_ours(used.module)
        and used.module != "simulator"
        and room(used.module) != room(module)
        and floor(used.module) >= floor(module)
        and not {room(used.module), room(module)} <= GROUND
        and not {floor(used.module), floor(module)} <= {FLOORS.index("api"), FLOORS.index("cli")}
    ]
    assert elsewhere == []


LOADED_ANEW = {("simulator.described.job", "simulator.described.load")}
"""A job that is changed is validated as if it had been read from a file."""


def test_inner_rooms_do_not_import_each_other_in_a_circle():
    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        used = {
            inner_room(used.module)
            for used in imports_of(path)
            if used.module in MODULES and (module, used.module) not in LOADED_ANEW
        }
        graph.setdefault(inner_room(module), set()).update(used - {"simulator"})
    graph = {name: used - {name} for name, used in graph.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def inner_room(module: str) -> str:
    """The innermost folder of a module; a file beside folders stands for itself."""
    folder = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    has_folders = any(
        other.startswith(f"{folder}.") and MODULES[other].name == "__init__.py" for other in MODULES
    )
    return module if has_folders else folder


FULL_FOLDER = 18


def test_a_folder_can_be_taken_in_at_a_glance():
    files = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py")
    assert [folder for folder, count in files.items() if count > FULL_FOLDER] == []


FORMATS = {"accelerate", "axolotl", "deepspeed", "megatron", "torchtitan", "chakra"}
"""Named after the format that they read or write."""

VIEWS = {"cli", "plots"}
"""A command or a picture may be named after what it shows."""


def test_no_file_name_has_two_meanings():
    names: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        name = module.rpartition(".")[2]
        is_file = path.name != "__init__.py"
        if is_file and room(module) not in VIEWS and name not in FORMATS:
            names.setdefault(name, []).append(module)
    assert {name: where for name, where in names.items() if len(where) > 1} == {}


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


MOST_READERS = {"tp": 15, "zero": 12}
"""Files that may ask a plan for a field on which much depends; the others ask ``choices``."""

MOST_READERS_OF_STACKS = 20
"""Files that may ask a stack what it does; the others ask ``choices``."""


def attributes_of(module: str, owner: str) -> set[str]:
    """What a file reads of names or attributes that are called like the owner."""
    if module == "simulator.described.choices":
        return set()
    return {name for name, read_of in attributes_in(MODULES[module]) if read_of == owner}


@cache
def attributes_in(path: Path) -> frozenset[tuple[str, str]]:
    """Every attribute that a file reads, and the name or attribute of which it does."""
    return frozenset(
        (node.attr, getattr(node.value, "attr", getattr(node.value, "id", "")).removeprefix("_"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    )


@pytest.mark.parametrize(("field", "most"), MOST_READERS.items())
def test_few_files_ask_a_plan_what_follows_from_its_choices(field, most):
    readers = [module for module in MODULES if field in attributes_of(module, "plan")]
    assert len(readers) <= most, readers


def test_few_files_ask_a_stack_what_follows_from_the_choices():
    facts = set(Stack.model_fields)
    readers = [module for module in MODULES if facts & attributes_of(module, "stack")]
    assert len(readers) <= MOST_READERS_OF_STACKS, readers


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


def test_a_file_holds_one_idea_and_so_is_short():
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in MODULES.values()}
    assert [path for path, count in lines.items() if count > MAX_LINES] == []
