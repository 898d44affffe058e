"""What is the value of a formula over the keys of a configuration?

Formulas are written in the arithmetic of Python: numbers, texts, names, ``+ - * // %``,
comparisons, ``in``, ``and or not``, ``a if b else c``, ``list[index]``, ``mapping.key``, lists, and
the functions of :data:`FUNCTIONS`. Nothing else is evaluated.
"""

from __future__ import annotations

import ast
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
    """Parameters of two products with an activation between them, and of a gate beside the first."""
    return (2 if gated else 1) * linear(hidden, width, bias) + linear(width, hidden, bias)


def either(word: object, yes: list[object], no: list[object]) -> bool:
    """Whether a word is of the first list.

    Raises:
        ValueError: It is of neither.
    """
    if word not in yes and word not in no:
        raise ValueError(f"{word!r} is none of {[*yes, *no]}")
    return word in yes


def rounded_up(number: int, multiple: int) -> int:
    """The next multiple of a number."""
    return -(-number // multiple) * multiple


FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"linear": linear, "mlp": mlp, "either": either, "rounded_up": rounded_up}
    | {"int": int, "len": len, "max": max, "min": min, "sum": sum}
)

_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
        ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
        ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
        ast.Gt: operator.gt, ast.GtE: operator.ge,
        ast.In: lambda item, items: item in items,
        ast.NotIn: lambda item, items: item not in items,
    }
)  # fmt: skip


@cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


def _value(node: ast.expr, lookup: Lookup) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return lookup(name)
        case ast.List(elts=items):
            return [_value(item, lookup) for item in items]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, lookup)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, lookup)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, lookup), _value(right, lookup))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _OPERATORS[type(op)](_value(left, lookup), _value(right, lookup))
        case ast.BoolOp(op=op, values=values):
            return _first(values, lookup, wanted=isinstance(op, ast.Or))
        case ast.IfExp(test=test, body=yes, orelse=no):
            return _value(yes if _value(test, lookup) else no, lookup)
        case ast.Subscript(value=sequence, slice=index):
            return _value(sequence, lookup)[_value(index, lookup)]
        case ast.Attribute(value=mapping, attr=key):
            found = _value(mapping, lookup)
            return found.get(key) if isinstance(found, Mapping) else None
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return FUNCTIONS[name](*(_value(argument, lookup) for argument in arguments))
    raise SyntaxError(f"{ast.unparse(node)!r} is not in the language of formulas")


def _first(values: list[ast.expr], lookup: Lookup, *, wanted: bool) -> Any:
    """The first value that is true, or with ``wanted`` false the first that is not; or the last."""
    value = None
    for each in values:
        value = _value(each, lookup)
        if bool(value) is wanted:
            break
    return value
