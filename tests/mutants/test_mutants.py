"""Does the search for unnoticed mistakes draw what it says, and does it tell right from wrong?"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.mutants.__main__ import drawn
from tests.mutants.judging import Judge, Outcome
from tests.mutants.mutations import Mutation, mutated, mutations
from tests.mutants.nearest import importers, nearest_tests
from tests.mutants.report import report

HERE = Path(__file__).parent
SHEET = """\
def area(a, b):
    return a * b

def margin():
    return 2

MARGIN = margin()
"""
TESTS = """\
from simulator.cost.sheet import MARGIN, area, margin

def test_area():
    assert area(2, 3) == 6

def test_margin():
    assert margin() > 0

def test_margin_of_module():
    assert MARGIN > 0
"""
RESULTS = """\
def job_names():
    return []

def kept_results():
    return {}
"""


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("x = a + b", {"x = a - b"}),
        ("x = (a) * (b)", {"x = (a) / (b)"}),
        ("x = a < b", {"x = a <= b"}),
        ("x = a is not b", {"x = a is b"}),
        ("x = a and b", {"x = a or b"}),
        ("x = not a", {"x = a"}),
        ("x = 3", {"x = 4", "x = 2"}),
        ("x = 0.5", {"x = 1.5", "x = (-0.5)"}),
        ("x = True", {"x = False"}),
        ("x = f(a, b)", {"x = f(b, a)"}),
        ("x = a if b else c", {"x = a if not (b) else c"}),
        ("f(a)", {"pass"}),
        ("x.y = a", {"pass"}),
        ("x += a", {"pass"}),
    ],
)
def test_one_place_of_a_line_is_changed(line, changed):
    assert {each.after for each in mutations(line)} == changed


@pytest.mark.parametrize(
    "line",
    [
        '"""Two texts: 1 + 2."""',
        'x = f"{a + 1} of {b}"',
        "raise ValueError(a + 1)",
        'x = [InputError("a", 1 + 2)]',
        "x: Annotated[int, 3] = a",
        "x = zip(a, strict=True)",
        "x = max(a, b)",
        "X = Y | None",
        "import a",
        "@f(1)\ndef g(): ...",
        "def f(a: T[1]) -> T[2]: ...",
    ],
)
def test_what_changes_no_result_is_left_alone(line):
    assert mutations(line) == []


def test_a_mutation_changes_its_line_and_no_other():
    source = "a = b\nc = d + e  # sum\nf = g\n"
    (mutation,) = mutations(source)
    assert mutated(source, mutation) == "a = b\nc = d - e  # sum\nf = g\n"


def test_a_seed_draws_the_same_lines_again_and_each_once():
    root = HERE.parents[1]
    first, again = (drawn(root, ["schedule"], 20, seed=7) for _ in range(2))
    assert first == again
    assert first != drawn(root, ["schedule"], 20, seed=8)
    assert len({(path, mutation.line) for path, mutation in first}) == len(first) > 15
    for path, mutation in first:
        source = (root / path).read_text(encoding="utf-8")
        assert source.splitlines()[mutation.line - 1] == mutation.before != mutation.after
        ast.parse(mutated(source, mutation))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose tests know an area and guess a margin."""
    files = {
        "simulator/__init__.py": "",
        "simulator/cost/sheet.py": SHEET,
        "tests/cost/test_sheet.py": TESTS,
        "tests/golden/results.py": RESULTS,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def outcomes(
    root: Path, path: str, given: Sequence[Mutation], tests: Sequence[str]
) -> list[Outcome]:
    """In a process of its own, which loads the package of the root."""
    judge = Judge(root)
    return [judge.outcome(path, each, tests) for each in given]


def test_a_mistake_that_tests_know_is_noticed_and_another_one_survives(project):
    sheet = "simulator/cost/sheet.py"
    tests = nearest_tests(sheet, importers(project))
    assert tests == ["tests/cost/test_sheet.py"]
    product = Mutation(2, "    return a * b", "    return a / b", "operator")
    number = Mutation(5, "    return 2", "    return 3", "constant")
    margin = Mutation(7, "MARGIN = margin()", "MARGIN = -margin()", "sign")
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        found = process.submit(outcomes, project, sheet, (product, number, margin), tests).result()
    cases = [each.noticed_by.rpartition("::")[2] for each in found]
    assert cases == ["test_area", "", "test_margin_of_module"]
    assert (project / sheet).read_text(encoding="utf-8") == SHEET
    page = report(found, seed=1)
    assert "1 of 3 survived: 33.3%" in page
    assert "- `simulator/cost/sheet.py:5` (constant)\n  - `return 2`\n  - `return 3`" in page


def test_tests_that_import_a_module_are_nearer_than_those_that_import_what_imports_it(project):
    users = {
        "simulator/cost/book.py": "from simulator.cost import sheet\n",
        "tests/cost/test_book.py": "import simulator.cost.book\n",
        "tests/other/test_sheet.py": "from simulator.cost.sheet import area\n",
    }
    for name, text in users.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text, encoding="utf-8")
    assert nearest_tests("simulator/cost/sheet.py", importers(project)) == [
        "tests/cost/test_sheet.py",
        "tests/other/test_sheet.py",
        "tests/cost/test_book.py",
    ]


def test_each_function_has_a_turn_before_its_further_cases_and_before_properties(tmp_path):
    """Two files; the slow property of the first would else take the time of all that follow."""
    (tmp_path / "test_one.py").write_text(
        "import pytest\n"
        "from hypothesis import given, strategies as st\n"
        "@given(st.integers())\ndef test_all(n): ...\n"
        "@pytest.mark.parametrize('n', [1, 2])\ndef test_some(n): ...\n"
        "def test_last(): ...\n",
        encoding="utf-8",
    )
    (tmp_path / "test_two.py").write_text("def test_other(): ...\n", encoding="utf-8")
    order = """
import pytest, sys
from tests.mutants.plugin import Turns

class Said:
    def pytest_runtest_logstart(self, nodeid):
        print(chr(10) + "ran", nodeid.split("::")[1])

options = ["-q", "-p", "no:cacheprovider", "-n", "0", *sys.argv[1:]]
pytest.main(options, plugins=[Turns(60.0), Said()])
"""
    files = [str(tmp_path / name) for name in ("test_one.py", "test_two.py")]
    done = subprocess.run(
        [sys.executable, "-c", order, *files], cwd=HERE.parents[1],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    ran = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ran ")]
    assert ran == ["test_some[1]", "test_other", "test_last", "test_all", "test_some[2]"]
