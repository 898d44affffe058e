"""Do fitted numbers stand where ``sources`` and ``sensitivity`` see them?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from simulator.described.cluster.common import common_document, shipped_common
from simulator.described.cluster.hardware import Provenance
from simulator.described.load import load_profile
from simulator.described.plan.shipped_stacks import STACKS
from simulator.importers.formats import FORMATS
from tests.csv_files import read_rows

PACKAGE = Path(__file__).parent.parent / "simulator"
DATA = PACKAGE.parent / "reports" / "data"
FITTED = re.compile(r"\b(fitted|chosen|inferred)\b", re.IGNORECASE)


def numeric_constants(source: str) -> Iterator[tuple[str, str]]:
    """Each constant of a module that holds only numbers, and what is said of it."""
    body, lines = ast.parse(source).body, source.splitlines()
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value and is_number(node.value):
            said = [line for line in lines[node.lineno - 3 : node.end_lineno] if "#" in line]
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                said.append(str(after.value.value))
            yield ast.unparse(node), " ".join(said)


def is_number(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
            return bool(parts) and all(map(is_number, parts))
        case ast.Call(args=parts):
            return bool(parts) and all(map(is_number, parts))
        case ast.BinOp(left=left, right=right):
            return is_number(left) and is_number(right)
        case ast.UnaryOp(operand=operand):
            return is_number(operand)
    return False


def test_a_fitted_constant_is_found():
    source = '_SHARE = 0.8\n"""Fitted to a table."""\n_TILE = 128\n"""Rows."""\n'
    fitted = [name for name, said in numeric_constants(source) if FITTED.search(said)]
    assert fitted == ["_SHARE = 0.8"]


def sources() -> Iterator[tuple[str, str]]:
    """Name and text of every module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")


def test_no_constant_in_code_is_fitted_chosen_or_inferred():
    fitted = [
        f"{module}: {name}"
        for module, source in sources()
        if FITTED.search(source)
        for name, said in numeric_constants(source)
        if FITTED.search(said)
    ]
    assert fitted == [], "numbers with evidence belong into hardware_profiles"


def texts_of(source: str) -> Iterator[str]:
    """Texts of a module that do something, which docstrings do not."""
    tree = ast.parse(source)
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value


def published_sources() -> set[str]:
    """Sources of the tables of published runs; those that are frameworks have names elsewhere."""
    names = set()
    for table in (*DATA.glob("runs_*.csv"), *DATA.glob("*memory*.csv")):
        names |= {row["id"].rpartition("-")[0] for row in read_rows(table)}
    return names - {*FORMATS, *STACKS}


def test_no_module_knows_a_published_source():
    published = published_sources()
    assert len(published) > 30
    name = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, published))})(?![\w-])")
    known = [
        f"{module}: {text}"
        for module, source in sources()
        if name.search(source)
        for text in texts_of(source)
        if name.search(text)
    ]
    assert known == [], "facts of a source lie beside its table, in reports/data"


def test_every_common_number_has_evidence_and_is_a_source_of_every_profile():
    numbers, profile = common_document(), load_profile("h100-sxm-80gb")
    of_few_systems = {"rate_beside_collectives"}
    assert set(shipped_common().model_dump(by_alias=True)) == set(numbers) | of_few_systems
    for name, number in numbers.items():
        source = Provenance(**number["source"])
        assert source.reference
        assert profile.provenance[f"common.{name}"] == source
    assert profile.common == shipped_common()


UNFILLED = re.compile(r"\{[a-z_][^{}]*:[.,<>^\d]+[a-z%]?\}")
"""A name in braces with a format, as of an f-string that has lost its f."""


def unfilled(source: str) -> list[str]:
    """Texts that would show the name of a number where the number was meant."""
    if not UNFILLED.search(source):
        return []
    nodes = list(ast.walk(ast.parse(source)))
    filled = {
        id(node.func.value)
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in filled
        and UNFILLED.search(node.value)
    ]


def test_a_text_that_was_meant_to_be_filled_is_found():
    source = 'a = f"{x:.1f}" "of {y / 2:.1f} GiB"\nb = "{x:.1f}".format(x=1)\nc = "{x}, {kind: a}"'
    assert unfilled(source) == ["of {y / 2:.1f} GiB"]


def test_no_text_shows_a_name_in_braces_where_a_number_was_meant():
    found = {module: texts for module, source in sources() if (texts := unfilled(source))}
    assert found == {}
