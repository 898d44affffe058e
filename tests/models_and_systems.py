"""How far may a shipped model or system be trusted? A page of the guide, from files alone.

``python -m tests.reference`` writes ``docs/models-and-systems.md`` from ``hardware_profiles/``,
``workloads/models/`` and the tables of published runs in ``reports/data/``. A test compares.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from simulator.described.load import load_model, load_profile, model_names, profile_names
from simulator.program.layer.model_totals import parameter_count_by_part
from simulator.units import format_bytes, format_count
from tests.csv_files import read_rows

ROOT = Path(__file__).parent.parent
MODELS_PAGE = ROOT / "docs" / "models-and-systems.md"
KINDS = ("measured", "fitted", "published", "datasheet", "assumed")
_MANY_RUNS = 20
RUN_TABLES = ("runs_open.csv", "runs_opened.csv")

_TITLE = """\
# Models and systems

Written by `make generated` from the shipped files; do not edit it here.

## Systems

Each number of a hardware profile has a source. *Measured* was read off this system. *Fitted* was
chosen so that predictions match measurements. *Published* and *datasheet* are stated by a paper or
the maker. *Assumed* means that nobody has measured it: it widens the prediction interval.

*Runs* counts published training runs on the system that predictions are compared with. *Trust* is
*good* for 20 runs or more and at most a third of the numbers assumed, *fair* for at least one run,
and *low* for none, or for more than half assumed: [calibrate](calibrating.md) such a system first.
[What is modelled](what-is-modelled.md#known-biases) has the errors by system, and
`clustersim profile show NAME` prints each number with its reference.
"""

_MODELS = """
## Models

The tests compare the number of parameters with the one that the source states. *Runs* counts
published training runs of the model that predictions are compared with.
"""


def models_and_systems_page() -> str:
    """Every profile with the sources of its numbers, every model with its source."""
    runs = [row for name in RUN_TABLES for row in read_rows(ROOT / "reports" / "data" / name)]
    by_system = Counter(row["profile"] for row in runs)
    by_model = Counter(row["model"] for row in runs)
    systems = ("system", "trust", "memory", *KINDS, "share assumed", "runs", "description")
    models = ("model", "parameters", "active", "layers", "runs", "source")
    return "\n".join(
        [
            _TITLE,
            *_table(systems, [_system(name, by_system[name]) for name in profile_names()]),
            _MODELS,
            *_table(models, [_model(name, by_model[name]) for name in model_names()]),
            "",
        ]
    )


def _system(name: str, runs: int) -> tuple[str, ...]:
    profile = load_profile(name)
    counts = Counter(source.kind for source in profile.provenance.values())
    share = counts["assumed"] / counts.total()
    return (
        f"`{name}`",
        trust(runs, share),
        format_bytes(profile.device.memory_bytes),
        *(str(counts[kind]) for kind in KINDS),
        f"{share:.0%}",
        str(runs),
        profile.description,
    )


def trust(runs: int, assumed_share: float) -> str:
    """How far predictions for a system are backed by runs: good, fair or low."""
    if not runs or assumed_share > 1 / 2:
        return "low"
    return "good" if runs >= _MANY_RUNS and assumed_share <= 1 / 3 else "fair"


def _model(name: str, runs: int) -> tuple[str, ...]:
    model = load_model(name)
    count = parameter_count_by_part(model)
    total, active = format_count(count.parameters), format_count(count.active_parameters)
    return f"`{name}`", total, active, str(model.layers), str(runs), source_of_model(name)


def source_of_model(name: str) -> str:
    """What the first lines of a model's file say of where its numbers are from."""
    text = (ROOT / "workloads" / "models" / f"{name}.yaml").read_text(encoding="utf-8")
    comment = re.match(r"# Source: (.*\n(?:#(?! (?:active )?parameters:).*\n)*)", text)
    assert comment, f"{name} states no source"
    return " ".join(re.sub(r"^#", "", comment[1], flags=re.MULTILINE).split()).rstrip(".")


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    words = {"system", "trust", "description", "model", "source"}
    rule = "|".join("---" if column in words else "---:" for column in columns)
    lines = [f"| {' | '.join(row)} |" for row in (columns, *rows)]
    return [lines[0], f"|{rule}|", *lines[1:]]
