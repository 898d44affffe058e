"""Does a newcomer find the answers: the map of rooms, the folder's map, the file, the function?"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent


class Answer(NamedTuple):
    """One row of the page: a file and the functions, classes or constants in it."""

    question: str
    file: str
    names: tuple[str, ...]


ANSWERS = [
    Answer(question, file, tuple(names.split("`, `")))
    for question, file, names in re.findall(
        r"^\| (.+\?) \| `(.+)` \| `(.+)` \|$",
        (ROOT / "tests" / "newcomer.md").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
]


def test_there_are_sixteen_questions():
    assert len({answer.question for answer in ANSWERS}) == len(ANSWERS) == 16


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.names[0])
def test_the_file_defines_what_answers_the_question(answer):
    module = ast.parse((ROOT / answer.file).read_text(encoding="utf-8")).body
    for path in answer.names:
        body = module
        for name in path.split("."):
            found = next(node for node in body if name in defined_by(node))
            body = getattr(found, "body", [])


def defined_by(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return [target.id for target in targets if isinstance(target, ast.Name)]


def test_the_readme_leads_to_the_map_of_rooms():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(CONTRIBUTING.md#which-room-answers-which-question)" in readme


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.names[0])
def test_the_map_of_rooms_names_the_folder(answer):
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = contributing.partition("\n## Which room answers which question\n")[2].partition(
        "\n## "
    )[0]
    assert f"`{Path(answer.file).parent}/`" in rooms


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.names[0])
def test_the_map_of_the_folder_names_the_file(answer):
    path = ROOT / answer.file
    doc = ast.get_docstring(ast.parse((path.parent / "__init__.py").read_text(encoding="utf-8")))
    assert re.search(rf"\b{path.stem}\b", doc or "")
