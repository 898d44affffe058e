"""Does training code over other libraries come through a capture, how fast, and what is found?

``python -m reports.make.captures.own_code PYTHON`` runs the rows of ``reports/data/own_code.yaml``
that ``reports/data/own_code.csv`` has not, with the Python of an environment that has their
libraries (by default its own), and writes ``reports/own_code.md``. Finished rows are kept at once.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simulator.described.documents import read_yaml
from simulator.errors import InputError
from simulator.files import whole_file

_HOME = Path(__file__).parents[3]
_SCRIPTS = _HOME / "workloads" / "capture"
ROWS_FILE = _HOME / "reports" / "data" / "own_code.yaml"
TABLE_FILE = _HOME / "reports" / "data" / "own_code.csv"
PAGE_FILE = _HOME / "reports" / "own_code.md"
PROFILE = "h100-sxm-80gb"
SIMULATED_LIMIT_S = 1.0
INSTALL = (
    "pip install '.[calibrate]' transformers accelerate peft diffusers datasets triton "
    "torchtitan==0.2.1"
)

_HEAD = f"""# Training code over other libraries, captured and simulated

Made by `make own-code CODE_PYTHON=...` from `reports/data/own_code.yaml`; the numbers are in
`reports/data/own_code.csv`. CODE_PYTHON is that of an environment with the libraries:

    {INSTALL}

- **capture**: the whole command on a shared machine of two cores, as time that passed and as time
  of a processor, with the largest process's memory. Where a limit is set, the processor's time and
  the memory are held against it.
- **simulate**: `clustersim run` of the file on that many GPUs, without the code; the time of a
  processor without what the command's start takes (`clustersim --version`, {{start_s:.1f}} s).
- **step**, **peak**: on `{PROFILE}`; peak is what is allocated.

| code | GPUs | capture | memory | step | peak | simulate |
|---|---:|---:|---:|---:|---:|---:|
"""


@dataclass(frozen=True)
class Row:
    """One script on one number of GPUs.

    Attributes:
        name: What is trained.
        gpus: On how many it is simulated.
        world: On how many it was captured.
        wall_s, processor_s, memory_gib: What capturing took.
        step_s, peak_gib: The simulated step.
        run_s, start_s: Processor time of simulating it, and of a command that does nothing [s].
    """

    name: str
    gpus: int
    world: int
    wall_s: float
    processor_s: float
    memory_gib: float
    step_s: float
    peak_gib: float
    run_s: float
    start_s: float

    @property
    def simulated_s(self) -> float:
        """Processor time of the simulation alone."""
        return max(0.0, self.run_s - self.start_s)


@dataclass(frozen=True)
class Ran:
    """A command that ended well: what it printed, and what it took."""

    output: str
    wall_s: float
    processor_s: float
    memory_gib: float


def ran(command: Sequence[str], folder: Path) -> Ran:
    """The command, with its children.

    Args:
        command: Words.
        folder: Where its output may lie.

    Raises:
        InputError: It fails; what it said last is the hint.
    """
    output, talk = folder / "output", folder / "talk"
    before_s = time.monotonic()
    paths = f"{_HOME}{os.pathsep}{_HOME / 'simulator' / 'import_name'}"
    environment = {**os.environ, "PYTHONPATH": paths}
    with output.open("w") as out, talk.open("w") as err:
        started = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode not in (0, 1):  # 1: the step does not fit, and is said all the same
        said = " ".join(talk.read_text(encoding="utf-8").split())[-800:]
        raise InputError.single(
            " ".join(command[3:6]), f"ended with {started.returncode}", hint=said
        )
    wall_s, processor_s = time.monotonic() - before_s, used.ru_utime + used.ru_stime
    return Ran(output.read_text(encoding="utf-8"), wall_s, processor_s, used.ru_maxrss / 2**20)


def rows_of(name: str, given: Mapping[str, Any], python: str) -> Iterator[Row]:
    """The script, captured once and simulated on each number of GPUs.

    Raises:
        InputError: A library is missing, or the script does not come through.
    """
    clustersim = [python, "-m", "simulator"]
    with TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        _check_libraries(given["needs"], python)
        file = str(folder / "step.capture")
        words = ["capture", str(_SCRIPTS / given["script"]), "--world", str(given["world"])]
        arguments = str(given["arguments"]).split()
        captured = ran([*clustersim, *words, "--out", file, "--", *arguments], folder)
        start = ran([*clustersim, "--version"], folder)
        for gpus in given["gpus"]:
            run = ["run", file, "--profile", PROFILE, "--gpus", str(gpus), "--json"]
            simulated = ran([*clustersim, *run], folder)
            found = json.loads(simulated.output)
            peak_bytes = max(stage["peak_allocated_bytes"] for stage in found["memory"])
            yield Row(
                name, gpus, given["world"], captured.wall_s, captured.processor_s,
                captured.memory_gib, found["step_time_s"], peak_bytes / 2**30,
                simulated.processor_s, start.processor_s,
            )  # fmt: skip


def _check_libraries(needs: Sequence[str], python: str) -> None:
    """Raises InputError where the environment lacks one."""
    code = (
        "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))"
    )
    try:
        done = subprocess.run([python, "-c", code, "torch", *needs], check=False)
    except OSError as error:
        raise InputError.single("CODE_PYTHON", "cannot be run", python, INSTALL) from error
    if done.returncode:
        rule = f"has not all of torch, {', '.join(needs)}"
        raise InputError.single("CODE_PYTHON", rule, python, f"in a clone: {INSTALL}")


def read_table(file: Path = TABLE_FILE) -> list[Row]:
    """Rows that are finished; none where there is no file."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as stored:
        return [
            Row(**{f.name: _READ[str(f.type)](line[f.name]) for f in fields(Row)})
            for line in csv.DictReader(stored)
        ]


_READ: Mapping[str, Any] = {"str": str, "int": int, "float": float}


def write_table(rows: Sequence[Row], file: Path = TABLE_FILE) -> None:
    """Write finished rows; the file is always whole."""
    with whole_file(file) as draft, open(draft, "w", encoding="utf-8", newline="") as out:
        table = csv.DictWriter(out, [f.name for f in fields(Row)], lineterminator="\n")
        table.writeheader()
        for row in rows:
            values = asdict(row).items()
            table.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in values})


def given_rows() -> dict[str, dict[str, Any]]:
    """Scripts by name."""
    document = read_yaml(ROWS_FILE)
    return {name: {**document["every"], **given} for name, given in document["rows"].items()}


def page(rows: Sequence[Row], given: Mapping[str, Mapping[str, Any]]) -> str:
    """The page, in Markdown."""
    start_s = max((row.start_s for row in rows), default=0.0)
    lines = (_line(row, given[row.name]) for row in rows)
    within = sum(row.simulated_s <= SIMULATED_LIMIT_S for row in rows)
    limits = [_is_within(row, given[row.name]) for row in rows if "seconds" in given[row.name]]
    ends = [
        "",
        f"- Captured and simulated: {len({row.name for row in rows})} of {len(given)} scripts.",
        f"- Captures within their limits: {sum(limits)} of {len(limits)} rows that have one.",
        f"- Simulated within {SIMULATED_LIMIT_S:g} s: {within} of {len(rows)}.",
        "",
    ]
    return _HEAD.format(start_s=start_s) + "\n".join([*lines, *ends])


def _is_within(row: Row, given: Mapping[str, Any]) -> bool:
    gib = float(given.get("gib", "inf"))
    return row.processor_s <= float(given["seconds"]) and row.memory_gib <= gib


def _line(row: Row, given: Mapping[str, Any]) -> str:
    limit_s, limit_gib = (f" of {given[k]}" if k in given else "" for k in ("seconds", "gib"))
    cells = (
        row.name,
        f"{row.gpus:,}",
        f"{row.wall_s:.0f} s, {row.processor_s:.0f} s{limit_s}",
        f"{row.memory_gib:.1f} GiB{limit_gib}",
        f"{row.step_s:.3f} s",
        f"{row.peak_gib:.1f} GiB",
        f"{row.simulated_s:.2f} s",
    )
    return f"| {' | '.join(cells)} |"


def _keep(new: Sequence[Row], given: Mapping[str, Mapping[str, Any]]) -> None:
    """Add rows to the table, in order, and write the page."""
    found = {(row.name, row.gpus): row for row in (*read_table(), *new)}
    keys = [(name, gpus) for name in given for gpus in given[name]["gpus"]]
    kept = [found[key] for key in keys if key in found]
    write_table(kept)
    PAGE_FILE.write_text(page(kept, given), encoding="utf-8")


def main(python: str, words: Sequence[str]) -> int:
    """Run what is missing, or rows that have one of the words in their names; 1 if one fails."""
    given, failed = given_rows(), 0
    for name, row in given.items():
        done = {(each.name, each.gpus) for each in read_table()}
        chosen = any(word in name for word in words)
        if not chosen and (words or all((name, gpus) in done for gpus in row["gpus"])):
            continue
        print(name, file=sys.stderr)
        try:
            _keep(list(rows_of(name, row, python)), given)
        except InputError as error:
            print(error, file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else sys.executable, sys.argv[2:]))
