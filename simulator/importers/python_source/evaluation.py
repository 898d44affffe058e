"""Which settings does Python code write into a configuration, without running it?

Assignments, arithmetic, constructors and calls of functions that are beside it are followed; a call
of anything else is the nested mapping of its keywords. What is none of these stays as it is written
(:class:`Written`), and a condition on it is assumed to be false.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.importers.python_source.python_modules import Module, Modules, parameters

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
    if isinstance(right, dict):
        # Keys of mappings are kept as texts.
        left = str(left)
    return _outcome(_COMPARED[type(sign)], left, right, node)


def _outcome(compute: Callable[[Any, Any], Any], left: Any, right: Any, node: ast.expr) -> Any:
    try:
        return compute(left, right)
    except (TypeError, ZeroDivisionError, ValueError, OverflowError):
        return as_written(node)


TARGET = "_target_"
"""Key under which the name of what is called is kept."""
_BUILTINS = ("dict", "list", "tuple", "getattr")
_MAX_DEPTH = 20
_MOST_STEPS = 200_000


class Returned(Exception):  # noqa: N818  # an end, not an error
    """A function's end, with its value."""

    def __init__(self, value: Any) -> None:
        """Take the value."""
        super().__init__()
        self.value = value


def read_python_config(file: Path, function: str) -> tuple[dict[str, Any], list[str]]:
    """The nested mapping that a function returns, and notes on what was simplified.

    Args:
        file: A Python file.
        function: Name of one of its functions.

    Raises:
        InputError: The file is no Python, it has no such function, or what the function does is
            more than to write a configuration down.
    """
    reader = _Reader(file)
    value = reader.guarded(lambda: reader.called(reader.main, function, {}))
    if not isinstance(value, dict):
        rule = f"has a function {function} that returns nothing"
        raise InputError.single("", rule, file=str(file))
    return value, reader.notes


def read_python_settings(file: Path) -> tuple[dict[str, Any], list[str]]:
    """The names that a module assigns, with their values, and notes on what was simplified.

    Raises:
        InputError: The file is no Python, or does more than to assign.
    """
    reader = _Reader(file)
    return reader.guarded(lambda: reader.names(reader.main)), reader.notes


def function_names(file: Path) -> list[str]:
    """Functions that a Python file defines, those for its own use apart.

    Raises:
        InputError: It is no Python.
    """
    return [name for name in Modules().module(file).functions if not name.startswith("_")]


class _Reader:
    """Follows one configuration through the modules that it leads to."""

    def __init__(self, file: Path) -> None:
        self._modules = Modules()
        self._names: dict[Path, dict[str, Any]] = {}
        self._steps = _MOST_STEPS
        self._depth = 0
        self._file = str(file)
        self.notes: list[str] = []
        self.main = self._modules.module(file)

    def guarded(self, read: Callable[[], Any]) -> Any:
        """What is read, or a clear error where it nests or grows without bound."""
        try:
            return read()
        except (RecursionError, MemoryError, OverflowError, ValueError) as error:
            raise InputError.single("", f"is not Python ({error})", file=self._file) from error

    def names(self, module: Module) -> dict[str, Any]:
        """What a module assigns."""
        if module.file not in self._names:
            known = self._names[module.file] = {}
            for statement in module.body:
                self._do(statement, known, module, module.file.name)
        return self._names[module.file]

    def called(self, module: Module, name: str, given: dict[str, Any]) -> Any:
        """What a function of a module returns.

        Raises:
            InputError: There is none, it calls itself, or it does more than to configure.
        """
        home, function = self._modules.found(module, name)
        if function is None or self._depth == _MAX_DEPTH:
            rule = (
                f"has no function {name}"
                if function is None
                else ("has functions that call each other")
            )
            known = ", ".join(n for n in module.functions if not n.startswith("_"))
            hint = f"write FILE.py:NAME with one of {known or 'its functions'}"
            raise InputError.single("", rule, file=self._file, hint=hint)
        local = parameters(function, given, lambda node: self._value(node, {}, home))
        self._depth += 1
        try:
            for statement in function.body:
                self._do(statement, local, home, name)
        except Returned as end:
            return end.value
        finally:
            self._depth -= 1
        return None

    # Statements

    def _do(self, statement: ast.stmt, local: dict[str, Any], module: Module, name: str) -> None:
        self._spend()
        match statement:
            case ast.Return(value=value):
                raise Returned(self._value(value, local, module) if value else None)
            case ast.Assign(targets=targets, value=value):
                found = self._value(value, local, module)
                for target in targets:
                    self._set(target, found, local, module)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self._set(target, self._value(value, local, module), local, module)
            case ast.AugAssign(target=target, op=op, value=value):
                changed = ast.BinOp(left=_as_read(target), op=op, right=value)
                self._set(target, self._value(changed, local, module), local, module)
            case ast.If() | ast.With() | ast.For():
                self._follow(statement, local, module, name)
            case ast.Expr(value=ast.Call() as call):
                self._effect(call, local, module)
            case ast.While() | ast.Try() | ast.Delete() | ast.Match():
                raise self._does_more(statement, name)

    def _follow(
        self, block: ast.If | ast.With | ast.For, local: dict[str, Any], module: Module, name: str
    ) -> None:
        """The statements of a block that are reached; a loop must be over what is known."""
        body = block.body
        if isinstance(block, ast.If) and not self._is_true(block.test, local, module):
            body = block.orelse
        rounds: list[Any] = [None]
        if isinstance(block, ast.For):
            rounds = self._value(block.iter, local, module)
            if not isinstance(rounds, list):
                raise self._does_more(block, name)
        for item in rounds:
            if isinstance(block, ast.For):
                self._set(block.target, item, local, module)
            for inner in body:
                self._do(inner, local, module, name)

    def _does_more(self, statement: ast.stmt, name: str) -> InputError:
        rule = f"does more in {name} than define a configuration"
        hint = "give the configuration that it resolves to"
        where, text = f"line {statement.lineno}", ast.unparse(statement)[:60]
        return InputError.single(where, rule, text, hint, self._file)

    def _spend(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise ValueError("it takes too many steps")

    def _is_true(self, test: ast.expr, local: dict[str, Any], module: Module) -> bool:
        found = self._value(test, local, module)
        if isinstance(found, Written):
            note = f"the condition ({str(found)[:60]}) is assumed to be false"
            self.notes += [note] if note not in self.notes else []
            return False
        return bool(found)

    def _set(self, target: ast.expr, value: Any, local: dict[str, Any], module: Module) -> None:
        match target:
            case ast.Name(id=name):
                local[name] = value
            case ast.Attribute(value=holder, attr=name):
                self._put(self._block(holder, local, module), name, value, target)
            case ast.Subscript(value=holder, slice=key):
                found = self._value(key, local, module)
                self._put(self._block(holder, local, module), found, value, target)
            case ast.Tuple(elts=items) if isinstance(value, list) and len(items) == len(value):
                for item, part in zip(items, value, strict=True):
                    self._set(item, part, local, module)

    def _block(self, node: ast.expr, local: dict[str, Any], module: Module) -> Any:
        """What a line changes a field of; a block that nothing has written yet is made."""
        if not isinstance(node, ast.Attribute):
            return self._value(node, local, module)
        holder = self._block(node.value, local, module)
        if not isinstance(holder, dict):
            return self._value(node, local, module)
        if not isinstance(holder.get(node.attr), dict):
            # A name that stands for a block, or nothing yet.
            said = holder.get(node.attr)
            holder[node.attr] = {} if said is None or isinstance(said, Written) else {TARGET: said}
        return holder[node.attr]

    def _put(self, holder: Any, key: Any, value: Any, target: ast.expr) -> None:
        if isinstance(holder, dict):
            holder[str(key)] = value
        elif not isinstance(holder, list | Written):
            path = ast.unparse(target)[:LONGEST_TEXT]
            raise InputError.single(path, "is not a field of a configuration", file=self._file)

    def _effect(self, call: ast.Call, local: dict[str, Any], module: Module) -> None:
        """A call for its effect: of a function beside, or a change of a list or mapping."""
        if isinstance(call.func, ast.Attribute) and call.func.attr in (
            "append",
            "extend",
            "update",
        ):
            holder = self._value(call.func.value, local, module)
            given = [self._value(argument, local, module) for argument in call.args]
            if isinstance(holder, list) and given:
                holder += given if call.func.attr == "append" else list(given[0])
            elif isinstance(holder, dict):
                holder |= given[0] if given and isinstance(given[0], dict) else {}
                holder |= self._keywords(call, local, module)
        elif isinstance(call.func, ast.Name):
            self._value(call, local, module)

    # Values

    def _value(self, node: ast.expr, local: dict[str, Any], module: Module) -> Any:
        self._spend()
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None):
                return node.value
            case ast.Name(id=name):
                return self._named(name, local, module)
            case ast.Call():
                return self._call(node, local, module)
            case ast.List() | ast.Tuple() | ast.Set() | ast.Dict() | ast.ListComp():
                return self._collection(node, local, module)
            case ast.Attribute() | ast.Subscript():
                return self._part(node, local, module)
        return self._computed(node, local, module)

    def _collection(
        self,
        node: ast.List | ast.Tuple | ast.Set | ast.Dict | ast.ListComp,
        local: dict[str, Any],
        module: Module,
    ) -> Any:
        if isinstance(node, ast.Dict):
            return self._mapping(node, local, module)
        if isinstance(node, ast.ListComp):
            return self._listed(node, local, module)
        return [self._value(item, local, module) for item in node.elts]

    def _listed(self, node: ast.ListComp, local: dict[str, Any], module: Module) -> Any:
        """A list made of all items of another, if that is known."""
        (of, *more), inner, found = node.generators, {**local}, []
        items = self._value(of.iter, local, module)
        if more or of.ifs or not isinstance(items, list):
            return as_written(node)
        for each in items:
            self._set(of.target, each, inner, module)
            found.append(self._value(node.elt, inner, module))
        return found

    def _part(
        self, node: ast.Attribute | ast.Subscript, local: dict[str, Any], module: Module
    ) -> Any:
        """A field of a block, or an item of a list or mapping."""
        holder = self._value(node.value, local, module)
        key = (
            node.attr
            if isinstance(node, ast.Attribute)
            else (self._value(node.slice, local, module))
        )
        if isinstance(holder, dict) and str(key) in holder:
            return holder[str(key)]
        if isinstance(holder, list) and isinstance(key, int) and -len(holder) <= key < len(holder):
            return holder[key]
        return as_written(node)

    def _computed(self, node: ast.expr, local: dict[str, Any], module: Module) -> Any:
        match node:
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                taken = body if self._is_true(test, local, module) else otherwise
                return self._value(taken, local, module)
            case ast.UnaryOp(op=op, operand=operand):
                return opposite(node, op, self._value(operand, local, module))
            case ast.BinOp(left=left, op=op, right=right):
                sides = [self._value(side, local, module) for side in (left, right)]
                return combined(node, op, *sides)
            case ast.BoolOp(op=op, values=values):
                return self._first(values, isinstance(op, ast.Or), local, module)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                sides = [self._value(side, local, module) for side in (left, right)]
                return compared(node, op, *sides)
        return as_written(node)

    def _first(
        self, values: list[ast.expr], wanted: bool, local: dict[str, Any], module: Module
    ) -> Any:
        """The first value that decides an ``or`` (``wanted``) or an ``and``, else the last."""
        found: Any = None
        for value in values:
            found = self._value(value, local, module)
            if isinstance(found, Written) or bool(found) == wanted:
                break
        return found

    def _named(self, name: str, local: dict[str, Any], module: Module) -> Any:
        if name in local:
            return local[name]
        if name in module.functions or name in module.classes:
            return Written(name)
        known = self.names(module) if local is not self._names.get(module.file) else {}
        if name in known:
            return known[name]
        if name in module.imports and name.isupper():
            file, theirs = module.imports[name]
            return self.names(self._modules.module(file)).get(theirs, Written(name))
        return Written(name)

    def _mapping(self, node: ast.Dict, local: dict[str, Any], module: Module) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            inner = self._value(value, local, module)
            if key is not None:
                found[str(self._value(key, local, module))] = inner
            elif isinstance(inner, dict):
                found |= inner
        return found

    def _call(self, call: ast.Call, local: dict[str, Any], module: Module) -> Any:
        if isinstance(call.func, ast.Name):
            name = call.func.id
            if name in _BUILTINS:
                return self._built_in(call, name, local, module)
            home, function = self._modules.found(module, name)
            if function is not None:
                given = self._arguments(call, local, module)
                is_beside = home is module
                return self._followed(call, name, given, module, is_beside=is_beside)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "deepcopy" and call.args:
            return self._value(call.args[0], local, module)
        holder = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(call.func, ast.Attribute) and isinstance(holder, ast.Name):
            file = module.beside.get(holder.id)
            if file is not None and call.func.attr in self._modules.module(file).functions:
                given = self._arguments(call, local, module)
                return self.called(self._modules.module(file), call.func.attr, given)
        if isinstance(holder, ast.Call):
            # A method of what a call makes: Bridge.from_name("x").to_provider(y=1).
            made = self._value(holder, local, module)
            if isinstance(made, dict):
                return made | self._arguments(call, local, module)
        return {TARGET: ast.unparse(call.func)[:LONGEST_TEXT]} | self._arguments(
            call, local, module
        )

    def _built_in(self, call: ast.Call, name: str, local: dict[str, Any], module: Module) -> Any:
        """A mapping, a list of a known one, or a field by its name.

        Of a field that nothing has written only what makes the block knows the default.
        """
        if name == "dict":
            return self._keywords(call, local, module)
        given = [self._value(argument, local, module) for argument in call.args]
        if name != "getattr":
            is_known = len(given) == 1 and isinstance(given[0], list)
            return [*given[0]] if is_known else as_written(call)
        is_written = len(given) > 1 and isinstance(given[0], dict) and str(given[1]) in given[0]
        return given[0][str(given[1])] if is_written else as_written(call)

    def _followed(
        self, call: ast.Call, name: str, given: dict[str, Any], module: Module, *, is_beside: bool
    ) -> Any:
        """What a function returns; one of another file that does more stays a mapping."""
        try:
            return self.called(module, name, given)
        except InputError:
            if is_beside:
                raise
            return {TARGET: ast.unparse(call.func)[:LONGEST_TEXT]} | given

    def _arguments(self, call: ast.Call, local: dict[str, Any], module: Module) -> dict[str, Any]:
        found = {
            str(number): self._value(argument, local, module)
            for number, argument in enumerate(call.args)
        }
        return found | self._keywords(call, local, module)

    def _keywords(self, call: ast.Call, local: dict[str, Any], module: Module) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for keyword in call.keywords:
            value = self._value(keyword.value, local, module)
            if keyword.arg is not None:
                found[keyword.arg] = value
            elif isinstance(value, dict):
                found |= value
            else:
                found["**"] = value
        return found


def _as_read(target: ast.expr) -> ast.expr:
    """The same place, to be read instead of written."""
    return ast.copy_location(ast.parse(ast.unparse(target), mode="eval").body, target)
