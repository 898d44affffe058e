"""Which jobs are captured, and why do some differ from the simulator's own program?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from reports.make.captures.causes import NOTHING, Without
from simulator.described.documents import read_yaml
from simulator.described.job import Job
from simulator.described.load import job_from_document

CASES_FILE = Path(__file__).parents[2] / "data" / "captures.yaml"


@dataclass(frozen=True)
class Case:
    """One job.

    Attributes:
        name: In the page.
        document: The job, as a file would say it.
        why: What differs, found by looking at both timelines; empty where nothing does.
        without: What takes these causes away.
    """

    name: str
    document: Mapping[str, Any] = field(hash=False)
    why: str = ""
    without: Without = NOTHING

    def job(self, profile: str | None = None) -> Job:
        """The job on its profile, or on another one."""
        cluster = self.document["cluster"]
        changed = {**cluster, "profile": profile or cluster["profile"]}
        return job_from_document({**self.document, "cluster": changed})


def all_cases() -> list[Case]:
    """All cases: models by name, and plans for them."""
    document = read_yaml(CASES_FILE)
    models, every, reasons = document["models"], document["every"], document["reasons"]
    switches = {name: Without.of(reason["without"]) for name, reason in reasons.items()}
    return [
        Case(
            name,
            {
                "model": models[given["model"]],
                "cluster": {**every["cluster"], "gpus": given["gpus"]},
                "batch": {**every["batch"], **given.get("batch", {})},
                "plan": {**every["plan"], **given["plan"]},
            },
            "; ".join(reasons[reason]["text"] for reason in given.get("why", ())),
            reduce(or_, (switches[reason] for reason in given.get("why", ())), NOTHING),
        )
        for name, given in document["cases"].items()
    ]
