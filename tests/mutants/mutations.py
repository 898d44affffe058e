"""Which small mistakes could stand in a line of source instead of what it says?

One mutation changes one line in one place: an operator, a comparison, a number, a flag, a negated
condition, two swapped arguments, a statement left out. Not drawn is what changes no result:
docstrings, messages, raised errors, annotations, decorators, and ``zip(strict=...)`` and the like.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}
_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_ANY_ORDER = {"max", "min", "gcd", "isclose", "lcm"}
"""Functions to which swapped arguments are the same."""

_SWITCHES = {"strict", "slots", "frozen", "eq", "order", "kw_only", "maxsize"}
"""Arguments by keyword that only guard or only cost time."""

_NO_RESULT = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


class Mutation(NamedTuple):
    """A changed line.

    Attributes:
        line: Its number, counted from 1.
        before, after: What it says and what it would say.
        what: The kind of mistake.
    """

    line: int
    before: str
    after: str
    what: str


class _Edit(NamedTuple):
    line: int
    start: int
    end: int
    text: str
    what: str


def mutations(source: str) -> list[Mutation]:
    """Every mutation of a Python source, in order of its lines."""
    lines = source.encode().splitlines()
    found = []
    for edit in dict.fromkeys(_edits(ast.parse(source), lines)):
        before = lines[edit.line - 1]
        after = before[: edit.start] + edit.text.encode() + before[edit.end :]
        found.append(Mutation(edit.line, before.decode(), after.decode(), edit.what))
    return sorted(found, key=lambda each: each.line)


def mutated(source: str, mutation: Mutation) -> str:
    """The source with one line changed."""
    lines = source.encode().splitlines(keepends=True)
    lines[mutation.line - 1] = mutation.after.encode() + b"\n"
    return b"".join(lines).decode()


def _edits(node: ast.AST, lines: list[bytes]) -> Iterator[_Edit]:
    yield from _edits_of_one(node, lines)
    for child in _counted_children(node):
        yield from _edits(child, lines)


def _counted_children(node: ast.AST) -> Iterator[ast.AST]:
    """Parts of a node that decide a result."""
    for name, value in ast.iter_fields(node):
        if name in ("decorator_list", "annotation", "returns", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_left_out(child):
                yield child


def _is_left_out(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.keyword):
        return node.arg in _SWITCHES
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).endswith(("Error", "Error.single", "Fault"))
    return isinstance(node, _NO_RESULT)


def _edits_of_one(node: ast.AST, lines: list[bytes]) -> Iterator[_Edit]:
    if isinstance(node, ast.BinOp) and not _is_type(node):
        yield from _between(node.left, node.right, _OPERATORS.get(type(node.op)), lines, "operator")
    elif isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, node.comparators, strict=False):
            yield from _between(left, right, _COMPARISONS[type(operator)], lines, "comparison")
    elif isinstance(node, ast.BoolOp):
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _between(left, right, words, lines, "operator")
    elif isinstance(node, ast.UnaryOp):
        yield from _without_sign(node)
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node)
    elif isinstance(node, ast.Call):
        yield from _swapped(node, lines)
    elif isinstance(node, ast.Expr | ast.AugAssign | ast.Assign | ast.Continue | ast.Break):
        yield from _left_out(node)
    for condition in _conditions(node):
        yield from _negated(condition, lines)


def _is_type(node: ast.BinOp) -> bool:
    """Whether it is a type with None, as an alias has it."""
    return isinstance(node.right, ast.Constant) and node.right.value is None


def _between(
    left: ast.expr, right: ast.expr, words: tuple[str, str] | None, lines: list[bytes], what: str
) -> Iterator[_Edit]:
    """The operator between two operands of one line, replaced."""
    line, start, end = left.end_lineno or 0, left.end_col_offset or 0, right.col_offset
    if words is None or line != right.lineno:
        return
    text = lines[line - 1][start:end].decode()
    if words[0] in text:
        yield _Edit(line, start, end, text.replace(*words, 1), what)


def _without_sign(node: ast.UnaryOp) -> Iterator[_Edit]:
    if isinstance(node.op, ast.Not | ast.USub) and node.lineno == node.operand.lineno:
        what = "condition" if isinstance(node.op, ast.Not) else "sign"
        yield _Edit(node.lineno, node.col_offset, node.operand.col_offset, "", what)


def _other_constants(node: ast.Constant) -> Iterator[_Edit]:
    """A number one more and one less, and the other flag; texts stay."""
    value = node.value
    if isinstance(value, bool):
        others = [str(not value)]
    elif isinstance(value, int | float):
        others = [repr(value + 1), f"({value - 1!r})" if value < 1 else repr(value - 1)]
    else:
        return
    for other in others:
        yield _Edit(node.lineno, node.col_offset, node.end_col_offset or 0, other, "constant")


def _swapped(node: ast.Call, lines: list[bytes]) -> Iterator[_Edit]:
    name = ast.unparse(node.func).rpartition(".")[2]
    if len(node.args) < 2 or name in _ANY_ORDER:
        return
    one, two = node.args[:2]
    are_plain = not any(isinstance(arg, ast.Starred) for arg in (one, two))
    if not are_plain or one.lineno != two.end_lineno or ast.dump(one) == ast.dump(two):
        return
    line = lines[one.lineno - 1]
    spans = [(each.col_offset, each.end_col_offset or 0) for each in (one, two)]
    first, second = (line[start:end].decode() for start, end in spans)
    middle = line[spans[0][1] : spans[1][0]].decode()
    text = second + middle + first
    yield _Edit(one.lineno, spans[0][0], spans[1][1], text, "swapped arguments")


def _left_out(node: ast.stmt) -> Iterator[_Edit]:
    """``pass`` instead of a statement that something later would miss quietly."""
    if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call):
        return
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Tuple):
        return  # The name would not be there, which every test sees.
    if node.lineno == node.end_lineno:
        yield _Edit(node.lineno, node.col_offset, node.end_col_offset or 0, "pass", "left out")


def _conditions(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        return [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else []


def _negated(condition: ast.expr, lines: list[bytes]) -> Iterator[_Edit]:
    if condition.lineno != condition.end_lineno or isinstance(condition, ast.UnaryOp | ast.Compare):
        return  # Those have mutations of their own that do the same.
    start, end = condition.col_offset, condition.end_col_offset or 0
    text = lines[condition.lineno - 1][start:end].decode()
    yield _Edit(condition.lineno, start, end, f"not ({text})", "condition")
