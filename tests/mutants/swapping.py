"""How does a loaded module do what a changed source says, without being loaded again?

The functions that hold the changed line get the code of the new source, wherever they are
referred to. What runs as a module is loaded (constants, defaults, decorators) cannot be changed so.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from types import CodeType, FunctionType


def swap_code(file: str, source: str, line: int) -> bool:
    """Whether loaded functions of a file now do what a source says.

    Args:
        file: The file, as the loaded module was found.
        source: The file's text with one line changed.
        line: Which one, counted from 1.
    """
    if not _is_in_a_body(ast.parse(source), line):
        return False
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(source, file)}
    for function in [each for each in gc.get_objects() if isinstance(each, FunctionType)]:
        old = function.__code__
        new = codes.get((old.co_qualname, old.co_firstlineno))
        if old.co_filename == file and new is not None:
            if old.co_freevars != new.co_freevars:
                return False
            function.__code__ = new
    return True


def _is_in_a_body(tree: ast.Module, line: int) -> bool:
    """Whether a line runs when a function is called, and not when it is defined."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return any(each.body[0].lineno <= line <= (each.end_lineno or 0) for each in functions)


def _codes(source: str, file: str) -> Iterator[CodeType]:
    left = [compile(source, file, "exec")]
    for code in left:
        left.extend(each for each in code.co_consts if isinstance(each, CodeType))
    yield from left
