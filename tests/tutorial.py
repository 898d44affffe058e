"""What would the tutorial's notebook hold if it were run now?

``python -m tests.tutorial`` runs its cells and stores what they show; review the difference.
A test compares. A cell shows its last expression, as notebooks do.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PATH = ROOT / "docs" / "tutorial.ipynb"


def run_now(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of this moment."""
    names: dict[str, Any] = {}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            with contextlib.chdir(ROOT):
                outputs = _outputs("".join(cell["source"]), names, count)
            cells.append({**cell, "execution_count": count, "outputs": outputs})
        else:
            cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, PATH.name, "exec"), names)
        value = (
            eval(compile(ast.Expression(shown.value), PATH.name, "eval"), names) if shown else None
        )
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": count,
                "metadata": {},
                "data": _forms(value),
            }
        )
    return outputs


def _forms(value: Any) -> dict[str, list[str]]:
    """HTML where a value has it, and else text."""
    page = getattr(value, "_repr_html_", lambda: None)()
    if page is not None:
        return {"text/html": page.splitlines(keepends=True)}
    return {"text/plain": repr(value).splitlines(keepends=True)}


def written(notebook: dict[str, Any]) -> str:
    """The notebook's text, as its editors write it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(
        written(run_now(json.loads(PATH.read_text(encoding="utf-8")))), encoding="utf-8"
    )
