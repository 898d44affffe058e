"""How does a step show itself in a notebook?"""

from __future__ import annotations

from simulator.exporters.html.page import render
from simulator.exporters.html.run_report import headline, waterfall
from simulator.results.step import StepResult
from simulator.results.verdict import verdict


def notebook_view(result: StepResult) -> str:
    """The headline and where the time goes, as HTML without scripts."""
    return render(
        "notebook.html",
        {
            "title": result.title,
            "verdict": verdict(result),
            "headline": list(headline(result)),
            "waterfall": list(waterfall(result)),
        },
    )
