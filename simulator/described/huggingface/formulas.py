"""What is the value of a formula over the keys of a configuration?

Formulas are written in the arithmetic of Python: numbers, texts, names, ``+ - * // %``,
comparisons, ``in``, ``and or not``, ``a if b else c``, ``list[index]``, ``mapping.key``, lists, and
the functions of :data:`FUNCTIONS`. Nothing else is evaluated.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

Lookup = Callable[[str], Any]
"""Takes a name to its value."""


def value_of_formula(text: str, lookup: Lookup) -> Any:
    """Value of a formula, whose names ``lookup`` knows.

    Raises:
        TypeError: The formula joins what cannot be joined, such as a number and a missing key;
            ArithmeticError and LookupError likewise.
    """
    return _value(_parsed(text), lookup)


def names_in_formula(text: str) -> frozenset[str]:
    """Names that a formula may look up."""
    tree = _parsed(text)
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return frozenset(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in called
    )


def linear(inputs: int, outputs: int, bias: object = False) -> int:
    """Parameters of a linear layer."""
    return inputs * outputs + (outputs if bias else 0)


def mlp(hidden: int, width: int, gated: object = True, bias: object = False) -> int:
    """Parameters of two products with an activation between them, and of a gate beside them."""
    return (2 if gated else 1) * linear(hidden, width, bias) + linear(width, hidden, bias)


def either(word: object, yes: list[object], no: list[object]) -> bool:
    """Whether a word is of the first list.

    Raises:
        ValueError: It is of neither.
    """
    if word not in yes and word not in no:
        raise ValueError(f"{word!r} is none of {[*yes, *no]}")
    return word in yes


def item(value: Any, index: int) -> Any:
    """The item of a list that has one for each layer, or the value that holds for all layers."""
    return value[index] if isinstance(value, list) else value


def of_layer(mapping: Mapping[str, Any] | None, layer: int) -> Any:
    """What a mapping from layers, numbered in texts, says of one layer, or None."""
    return next((each for key, each in (mapping or {}).items() if int(key) == layer), None)


def rounded_up(number: int, multiple: int) -> int:
    """The next multiple of a number."""
    return -(-number // multiple) * multiple


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "linear": linear, "mlp": mlp, "either": either, "item": item, "of_layer": of_layer,
    "rounded_up": rounded_up, "int": int, "isqrt": math.isqrt, "len": len, "max": max, "min": min,
}  # fmt: skip
FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(_FUNCTIONS)
"""What a formula may call, by name."""

_Valued = Callable[[ast.expr], Any]
"""Takes a part of a formula to its value."""

_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Not: operator.not_, ast.USub: operator.neg,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}  # fmt: skip


@cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


def _value(node: ast.expr, lookup: Lookup) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return lookup(name)
    if type(node) not in _EVALUATED:
        raise SyntaxError(f"{ast.unparse(node)!r} is not in the language of formulas")
    return _EVALUATED[type(node)](node, lambda each: _value(each, lookup))


def _list(node: ast.List, value: _Valued) -> Any:
    return [value(item) for item in node.elts]


def _unary(node: ast.UnaryOp, value: _Valued) -> Any:
    return _OPERATORS[type(node.op)](value(node.operand))


def _binary(node: ast.BinOp, value: _Valued) -> Any:
    return _OPERATORS[type(node.op)](value(node.left), value(node.right))


def _comparison(node: ast.Compare, value: _Valued) -> Any:
    (kind,), (right,) = node.ops, node.comparators
    return _OPERATORS[type(kind)](value(node.left), value(right))


def _either_or(node: ast.BoolOp, value: _Valued) -> Any:
    """The first value that is true, or with ``and`` the first that is not; or the last."""
    found = None
    for each in node.values:
        found = value(each)
        if bool(found) is isinstance(node.op, ast.Or):
            break
    return found


def _choice(node: ast.IfExp, value: _Valued) -> Any:
    return value(node.body if value(node.test) else node.orelse)


def _indexed(node: ast.Subscript, value: _Valued) -> Any:
    return value(node.value)[value(node.slice)]


def _attribute(node: ast.Attribute, value: _Valued) -> Any:
    mapping = value(node.value)
    return mapping.get(node.attr) if isinstance(mapping, Mapping) else None


def _call(node: ast.Call, value: _Valued) -> Any:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    return FUNCTIONS[name](*(value(argument) for argument in node.args))


_EVALUATED: Mapping[type[ast.AST], Callable[[Any, _Valued], Any]] = {
    ast.List: _list, ast.UnaryOp: _unary, ast.BinOp: _binary, ast.Compare: _comparison,
    ast.BoolOp: _either_or, ast.IfExp: _choice, ast.Subscript: _indexed,
    ast.Attribute: _attribute, ast.Call: _call,
}  # fmt: skip
