"""What do operators of Python make of values, and what stays as it is written?"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

LONGEST_TEXT = 100
"""Letters of code that are kept."""
_LARGEST = 10**18
_LONGEST_LIST = 10_000

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right, ast.NotIn: lambda left, right: left not in right,
}  # fmt: skip


class Written(str):
    """Code that stays as it is written, since only running it would tell its value."""

    __slots__ = ()


def as_written(node: ast.expr) -> Written:
    """The code of an expression."""
    return Written(ast.unparse(node)[:LONGEST_TEXT])


def combined(node: ast.expr, sign: ast.operator, left: Any, right: Any) -> Any:
    """A sum, product and so on of numbers, or two lists one after the other."""
    if isinstance(left, list) and type(right) is int and isinstance(sign, ast.Mult):
        return left * right if 0 <= right * len(left) <= _LONGEST_LIST else as_written(node)
    are_numbers = all(isinstance(side, int | float) for side in (left, right))
    are_lists = isinstance(left, list) and isinstance(right, list) and isinstance(sign, ast.Add)
    if type(sign) not in _BINARY or not (are_numbers or are_lists):
        return as_written(node)
    found = _outcome(_BINARY[type(sign)], left, right, node)
    is_large = isinstance(found, int | float) and abs(found) > _LARGEST
    return as_written(node) if is_large else found


def opposite(node: ast.expr, sign: ast.unaryop, value: Any) -> Any:
    """A negative number, or the negation of what is known."""
    if isinstance(sign, ast.Not) and not isinstance(value, Written):
        return not value
    is_number = isinstance(value, int | float)
    return -value if isinstance(sign, ast.USub) and is_number else as_written(node)


def compared(node: ast.expr, sign: ast.cmpop, left: Any, right: Any) -> Any:
    """Whether a comparison holds, where both sides are known."""
    if type(sign) not in _COMPARED or any(isinstance(side, Written) for side in (left, right)):
        return as_written(node)
    return _outcome(_COMPARED[type(sign)], left, right, node)


def _outcome(compute: Callable[[Any, Any], Any], left: Any, right: Any, node: ast.expr) -> Any:
    try:
        return compute(left, right)
    except (TypeError, ZeroDivisionError, ValueError, OverflowError):
        return as_written(node)
