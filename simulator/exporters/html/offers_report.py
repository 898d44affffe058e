"""What does the page of offers say? The recommendation, a table, intervals and the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.exporters.html.page import write_page


def write_offers_report(context: Mapping[str, Any], path: str | Path) -> None:
    """Write the page; the context is what its template shows."""
    write_page(path, "offers.html", {"title": "Which offer to rent", **context})
