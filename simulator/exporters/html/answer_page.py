"""How does the answer to a question become a page?

Sentences that answer it, headline numbers, and tables whose cells may hold bars. Whoever asks the
question says what the cells are (``answer_tables``); this module knows only how they look. Names
may come from files: the template escapes all of them.
"""

from __future__ import annotations

from pathlib import Path

from simulator.exporters.html.answer_tables import AnswerPage, Meaning, Paint
from simulator.exporters.html.page import render, write_page
from simulator.exporters.html.timeline_data import Color, both
from simulator.plots import style
from simulator.program.ir import Category, Owner


def write_answer_page(page: AnswerPage, path: str | Path) -> None:
    """Write a page, whole or not at all."""
    context = {"title": page.title, "page": page, "painted": painted}
    write_page(path, "answer.html", context)


def answer_view(page: AnswerPage) -> str:
    """The sentences and the tables of a page, as a notebook shows them."""
    return render("answer_view.html", {"page": page, "painted": painted})


def painted(paint: Paint) -> Color:
    """The colour of what a bar stands for; waiting is a grey that a white page shows."""
    if paint is Category.BUBBLE:
        grey = style.wait_hatch_color(Category.BUBBLE)
        return grey, style.mix(grey, "#16181C", 0.3)
    if isinstance(paint, Category):
        return both(style.CATEGORY_COLOR[paint])
    if isinstance(paint, Owner):
        return both(style.OWNER_COLOR[paint])
    known = {Meaning.NUMBER: style.BLUE, Meaning.GAIN: style.GREEN, Meaning.LOSS: style.VERMILLION}
    return both(known[paint])
