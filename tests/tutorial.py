"""What would the notebooks of the guide hold if they were run now?

``python -m tests.tutorial`` runs their cells, in the folder of the notebooks, and stores what they
show; review the difference. A test compares. A cell shows its last expression, as notebooks do.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PATHS = (ROOT / "docs" / "tutorial.ipynb", ROOT / "docs" / "planning.ipynb")


def run_now(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of this moment."""
    names: dict[str, Any] = {}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            with contextlib.chdir(ROOT / "docs"):
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
        exec(compile(tree, "cell", "exec"), names)
        value = eval(compile(ast.Expression(shown.value), "cell", "eval"), names) if shown else None
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
    """A picture or HTML where a value has it, and else text."""
    picture = getattr(value, "_repr_png_", lambda: None)()
    if picture is not None:
        return {"image/png": [base64.b64encode(picture).decode()]}
    page = getattr(value, "_repr_html_", lambda: None)()
    if page is not None:
        return {"text/html": page.splitlines(keepends=True)}
    return {"text/plain": repr(value).splitlines(keepends=True)}


def written(notebook: dict[str, Any]) -> str:
    """The notebook's text, as its editors write it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def without_pictures(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with empty pictures: their bytes depend on the fonts of a machine."""
    empty = json.loads(json.dumps(notebook))
    for cell in empty["cells"]:
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                output["data"]["image/png"] = []
    return dict(empty)


if __name__ == "__main__":
    for path in PATHS:
        path.write_text(
            written(run_now(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8"
        )
