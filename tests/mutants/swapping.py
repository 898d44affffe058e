"""How does a loaded module do what a changed source says, without being loaded again?

The functions that hold the changed line get the code of the new source, wherever they are
referred to. What runs as a module is loaded (constants, defaults, decorators) cannot be changed so.
"""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType


class LoadedFunctions:
    """Every function of the modules under a folder, as it is loaded now."""

    def __init__(self, folder: Path) -> None:
        self._of_file: defaultdict[str, list[FunctionType]] = defaultdict(list)
        for each in gc.get_objects():
            if type(each) is FunctionType:
                self._of_file[each.__code__.co_filename].append(each)
        inside = f"{folder}/"
        for file in [name for name in self._of_file if not name.startswith(inside)]:
            del self._of_file[file]

    def swap(self, file: Path, source: str, line: int) -> bool:
        """Whether the functions of a file now do what a source says.

        Args:
            file: The file, as its module was found.
            source: The file's text with one line changed.
            line: Which one, counted from 1.
        """
        if not _is_in_a_body(ast.parse(source), line):
            return False
        codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(source, file)}
        for function in self._of_file[str(file)]:
            old = function.__code__
            new = codes.get((old.co_qualname, old.co_firstlineno), old)
            if old.co_freevars != new.co_freevars:
                return False
            function.__code__ = new
        return True


def _is_in_a_body(tree: ast.Module, line: int) -> bool:
    """Whether a line runs when a function is called, and not when it is defined."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return any(each.body[0].lineno <= line <= (each.end_lineno or 0) for each in functions)


def _codes(source: str, file: Path) -> Iterator[CodeType]:
    left = [compile(source, str(file), "exec")]
    for code in left:
        left.extend(each for each in code.co_consts if isinstance(each, CodeType))
    yield from left
