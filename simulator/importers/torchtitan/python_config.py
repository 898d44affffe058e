"""Which settings does a Python function write into a configuration, without running it?

torchtitan's configurations are functions that return one nested call of constructors, or
change what another function returns. They are parsed, and their keywords read as the nested
mapping that they stand for; nothing of them is executed. What is neither a plain value nor a
call stays as it is written.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from simulator.errors import InputError

TARGET = "_target_"
"""Key under which the name of a constructor is kept."""
_MAX_DEPTH = 20


def read_python_config(text: str, function: str, origin: str) -> dict[str, Any]:
    """The nested mapping that a function returns.

    Args:
        text: A Python module.
        function: Name of one of its functions.
        origin: Its file, for messages.

    Raises:
        InputError: The text is no Python, it has no such function, or what the function
            does is more than to write a configuration down.
    """
    try:
        module = ast.parse(text)
        functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
        return _returned(functions, function, origin, _MAX_DEPTH)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError.single("", f"is no Python ({error})", file=origin) from error


def _returned(
    functions: Mapping[str, ast.FunctionDef], name: str, origin: str, depth: int
) -> dict[str, Any]:
    if name not in functions or depth == 0:
        rule = f"has no function {name}" if depth else "has functions that call each other"
        hint = f"write FILE.py:NAME with one of {', '.join(functions) or 'its functions'}"
        raise InputError.single("", rule, file=origin, hint=hint)
    known: dict[str, dict[str, Any]] = {}
    for statement in functions[name].body:
        match statement:
            case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
                continue
            case ast.Return(value=ast.Name(id=variable)) if variable in known:
                return known[variable]
            case ast.Return(value=ast.Call() as call):
                return _called(functions, call, origin, depth)
            case ast.Assign(targets=[ast.Name(id=variable)], value=ast.Call() as call):
                known[variable] = _called(functions, call, origin, depth)
            case ast.Assign(targets=[ast.Attribute() as target], value=value):
                _set(known, target, _value(value, depth))
            case _:
                rule = f"does more in {name} than to write a configuration down"
                hint = "give the JSON that torchtitan resolves the configuration to"
                where = f"line {statement.lineno}"
                raise InputError.single(where, rule, ast.unparse(statement)[:60], hint, origin)
    raise InputError.single("", f"has a function {name} that returns nothing", file=origin)


def _called(
    functions: Mapping[str, ast.FunctionDef], call: ast.Call, origin: str, depth: int
) -> dict[str, Any]:
    if isinstance(call.func, ast.Name) and call.func.id in functions:
        return _returned(functions, call.func.id, origin, depth - 1)
    return _keywords(call, depth - 1)


def _keywords(call: ast.Call, depth: int) -> dict[str, Any]:
    found = {TARGET: ast.unparse(call.func)[:100]}
    for number, argument in enumerate(call.args):
        found[str(number)] = _value(argument, depth)
    for keyword in call.keywords:
        found[keyword.arg or "**"] = _value(keyword.value, depth)
    return found


def _value(node: ast.expr, depth: int) -> Any:
    if depth == 0:
        raise ValueError("nested too deeply")
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item, depth - 1) for item in items]
        case ast.Dict():
            return {
                str(_value(key, depth - 1)) if key else "**": _value(value, depth - 1)
                for key, value in zip(node.keys, node.values, strict=True)
            }
        case ast.Call():
            return _keywords(node, depth - 1)
    return ast.unparse(node)[:100]


def _set(known: dict[str, dict[str, Any]], target: ast.Attribute, value: Any) -> None:
    """Change a field such as ``config.training.steps`` of a configuration.

    Raises:
        ValueError: There is no such configuration.
    """
    path = ast.unparse(target).split(".")
    block: Any = known
    for name in path[:-1]:
        block = block.setdefault(name, {}) if isinstance(block, dict) else None
    if path[0] not in known or not isinstance(block, dict):
        raise ValueError(f"{'.'.join(path)} is no field of a configuration")
    block[path[-1]] = value
