"""What is known of frameworks, model families and words, as YAML with its evidence beside it.

stacks/       what each training framework does when it is left to its defaults
networks/     how many parameters each network of transformers has, part by part, as formulas
importers/    what the options of each framework's files mean and cost
step_errors   how far predicted steps are off where nothing was tuned; written by make bands
host_work     what plain torch's host does for an operator
*.yaml        families of Hugging Face, names in measured tables, names that others use

Evidence is one of ``documentation`` (code or a page of that release), ``measurement of its own``,
``residuals`` (found or fitted with errors of published runs in view; ``found_with`` names their
sources, which are cross-validated without the fact) and ``assumed``.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
EVIDENCE = ("documentation", "measurement of its own", "residuals", "assumed")


@cache
def shipped_facts(name: str) -> Any:
    """The content of ``name.yaml`` in this folder, read when it is first asked for."""
    import yaml  # not for who only reads a command's help

    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    # The C library reads several times as fast; not every build of PyYAML has it.
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def fact_files(folder: str) -> tuple[str, ...]:
    """Names of the files in a folder of facts, sorted."""
    return tuple(sorted(path.stem for path in (FOLDER / folder).glob("*.yaml")))


def host_launches(name: str) -> float:
    """Host time of something that plain torch issues (``host_work.yaml``), in bare launches."""
    return float(shipped_facts("host_work")[name]["value"])
