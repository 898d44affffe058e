"""How are the captures made that published runs are held against?

``python -m reports.make.captures.published_captures PYTHON`` makes those of
``reports/data/captures.yaml`` that ``reports/captures`` lacks, with the Python of an environment
that has their libraries: torch 2.13, torchtitan 0.2.1 and torchao 0.18.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reports.make.captures.own_code import ran
from reports.make.captures.published_rows import CAPTURES, published_file

_SCRIPTS = Path(__file__).parents[3] / "workloads" / "capture"


def capture_command(name: str, given: Mapping[str, Any], python: str, file: Path) -> list[str]:
    """The command that makes a capture.

    Args:
        name: Of the capture.
        given: The file of published runs.
        python: Of an environment with the libraries.
        file: Where the capture is written.
    """
    made = given["captured"][name]
    arguments = made["arguments"].format(**given["arguments"])
    words = ["--world", str(made["world"]), "--device", made.get("device", "h100-sxm-80gb")]
    script = str(_SCRIPTS / made["script"])
    command = [python, "-m", "simulator", "capture", script, *words, "--out", str(file)]
    return [*command, "--", *arguments.split()]


def main(arguments: Sequence[str]) -> None:
    """Make the captures that are not there."""
    python = arguments[0] if arguments else sys.executable
    given = published_file()
    for name in given["captured"]:
        file = CAPTURES / f"{name}.capture"
        if file.is_file():
            continue
        with TemporaryDirectory() as folder:
            done = ran(capture_command(name, given, python, file), Path(folder))
        sys.stderr.write(f"{name}: {done.processor_s:.0f} s of a processor\n")


if __name__ == "__main__":
    main(sys.argv[1:])
