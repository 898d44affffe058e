"""What can people do with any answer?

Show it in a terminal or a notebook, take it as a table, as JSON (the same that the command prints),
or as a page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.exporters.html.answer_tables import AnswerPage, page_text
from simulator.results.views.plain_data import json_text

if TYPE_CHECKING:
    import pandas as pd


class Answer(ABC):
    """An answer, with its table, JSON and HTML page; printed, it is sentences and tables."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data, as the command prints it with ``--json``."""

    @abstractmethod
    def to_frame(self) -> pd.DataFrame:
        """The answer as a pandas DataFrame; columns end in their unit."""

    @abstractmethod
    def page(self) -> AnswerPage:
        """Content of the HTML page."""

    def to_json(self, indent: int | None = 2) -> str:
        """The answer as one JSON object, as the command prints it."""
        return json_text(self.to_dict(), indent)

    def write_html(self, path: str | Path) -> Path:
        """Write a self-contained HTML page; returns its path."""
        from simulator.exporters.html.answer_page import write_answer_page

        write_answer_page(self.page(), path)
        return Path(path)

    def __repr__(self) -> str:
        """What a terminal shows."""
        return page_text(self.page())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from simulator.exporters.html.answer_page import answer_view

        return answer_view(self.page())


def frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a DataFrame."""
    import pandas as pd

    return pd.DataFrame(list(rows))
