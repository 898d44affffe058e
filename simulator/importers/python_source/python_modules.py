"""Which functions and names does a Python file define, itself or by what it imports beside it?

Files are parsed, never run. An import is followed where it leads to a file of the same package;
all others stay names.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.files import is_there, read_text

_MOST_MODULES = 40
"""Files of a package that one configuration leads to."""
_WANTED = "give a Python file"


@dataclass
class Module:
    """A parsed file.

    Attributes:
        file: Where it lies.
        body: Its statements.
        functions: Those it defines, by name.
        classes: Likewise.
        imports: File and name there of what it imports from its package, by the name here.
        beside: Files of the modules of its package that it imports, by the name here.
    """

    file: Path
    body: list[ast.stmt]
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imports: dict[str, tuple[Path, str]] = field(default_factory=dict)
    beside: dict[str, Path] = field(default_factory=dict)


class Modules:
    """Files that were read, each once."""

    def __init__(self) -> None:
        """Start with none."""
        self._read: dict[Path, Module] = {}

    def module(self, file: Path) -> Module:
        """The module of a file.

        Raises:
            InputError: It cannot be read, is no Python, or is one too many.
        """
        if file not in self._read:
            if len(self._read) >= _MOST_MODULES:
                raise InputError.single("", "imports too many files", file=str(file))
            self._read[file] = _parsed(read_text(file, _WANTED), file)
        return self._read[file]

    def found(self, module: Module, name: str) -> tuple[Module, ast.FunctionDef | None]:
        """The function of a name in a module, and where it is defined; None where it is none."""
        for _ in range(_MOST_MODULES):
            if name in module.functions:
                return module, module.functions[name]
            if name not in module.imports:
                break
            file, name = module.imports[name]
            module = self.module(file)
        return module, None


def parameters(
    function: ast.FunctionDef, given: Mapping[str, Any], value: Callable[[ast.expr], Any]
) -> dict[str, Any]:
    """Values of a function's parameters, by name.

    Args:
        function: The function.
        given: Arguments by name, those without a name by their number.
        value: What a default stands for.
    """
    signature = function.args
    positional = [each.arg for each in (*signature.posonlyargs, *signature.args)]
    defaults = dict(zip(reversed(positional), reversed(signature.defaults), strict=False))
    pairs = zip(signature.kwonlyargs, signature.kw_defaults, strict=True)
    defaults |= {each.arg: default for each, default in pairs if default is not None}
    named = {
        positional[int(key)] if key.isdigit() and int(key) < len(positional) else key: each
        for key, each in given.items()
    }
    known = {*positional, *(each.arg for each in signature.kwonlyargs)}
    local = {name: value(node) for name, node in defaults.items() if name not in named}
    local |= {key: each for key, each in named.items() if key in known}
    if signature.kwarg:
        local[signature.kwarg.arg] = {k: each for k, each in named.items() if k not in known}
    return local


def _parsed(text: str, file: Path) -> Module:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError.single("", f"is not Python ({error})", file=str(file)) from error
    module = Module(file, tree.body)
    for node in tree.body:
        match node:
            case ast.FunctionDef():
                module.functions[node.name] = node
            case ast.ClassDef():
                module.classes[node.name] = node
            case ast.ImportFrom():
                _add_imports(module, node)
    return module


def _add_imports(module: Module, node: ast.ImportFrom) -> None:
    folder = _package_folder(module.file, node)
    if folder is None:
        return
    for alias in node.names:
        inner = folder / f"{alias.name}.py"
        if is_there(inner):
            module.beside[alias.asname or alias.name] = inner
        for file in (folder.with_suffix(".py"), folder / "__init__.py"):
            if is_there(file) and not is_there(inner):
                module.imports[alias.asname or alias.name] = (file, alias.name)
                break


def _package_folder(file: Path, node: ast.ImportFrom) -> Path | None:
    """Where the module of an import lies, without its suffix; None outside of the package."""
    parts = (node.module or "").split(".") if node.module else []
    if node.level:
        folder = file.resolve().parents[node.level - 1]
        return folder.joinpath(*parts)
    if not parts:
        return None
    above = next((p for p in file.resolve().parents if p.name == parts[0]), None)
    return above.parent.joinpath(*parts) if above else None
