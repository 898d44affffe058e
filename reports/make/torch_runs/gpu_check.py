"""How far are predictions from real training steps on the GPU of this machine?

Run as ``python -m reports.make.torch_runs.gpu_check FOLDER [--profile FILE] [--steps N]``. The
folder
holds the grid (``grid.yaml``) and the profile that ``calibrate gpu`` measured
(``profile.yaml``). Every run is a process of its own, so that none inherits memory or falls with
another, and its report is kept in ``runs/`` as it was measured; a second call goes on with what
is missing. Then the page (``README.md``) and its picture are written anew.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from reports.make.torch_runs.gpu_grid import GridRun, read_grid
from reports.make.torch_runs.gpu_page import KeptRun, draw_page, page, read_kept
from simulator.errors import InputError
from simulator.files import write_whole

STEPS = 20
"""Steps that are timed: repeated jobs differ by 0.05 to 2 %, and the median of these by less."""

_LONGEST_S = 600.0
_REFUSED = 2

Runner = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def check(
    folder: Path,
    profile: Path,
    *,
    steps: int = STEPS,
    run: Runner | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[KeptRun]:
    """Runs what is missing and returns everything that is kept, in the order of the grid.

    Args:
        folder: Holds the grid; runs, page and picture are put there.
        profile: What predictions rest on.
        steps: Steps to time in each run.
        run: Starts a process and waits for it.
        say: Told what happens, one line per run.

    Raises:
        InputError: There is no grid or no profile.
    """
    if not profile.is_file():
        hint = "measure it: clustersim calibrate gpu --out FOLDER/profile.yaml"
        raise InputError.single("--profile", "there is no such file", str(profile), hint)
    grid = read_grid(folder / "grid.yaml")
    for index, each in enumerate(grid, start=1):
        said = _measure(each, folder, profile, steps, run or _process)
        say(f"{index}/{len(grid)} {each.name}: {said}")
    kept = [read_kept(folder, each) for each in grid]
    write_whole(folder / "README.md", page(kept))
    draw_page(kept, folder / "steps.png")
    return kept


def _measure(each: GridRun, folder: Path, profile: Path, steps: int, run: Runner) -> str:
    """One run, unless its report is there; what came of it, in words."""
    report = folder / "runs" / f"{each.name}.json"
    reason = report.with_suffix(".txt")
    if report.exists():
        return "kept"
    job = folder / "jobs" / f"{each.name}.yaml"
    write_whole(job, yaml.safe_dump(dict(each.document), sort_keys=False))
    report.parent.mkdir(parents=True, exist_ok=True)
    words = ["validate", "torch", job, "--profile", profile, "--steps", steps, "--out", report]
    words += ["--backend", "fake"] if each.is_alone else []
    done = run([sys.executable, "-m", "simulator", *map(str, words)])
    if done.returncode == 0 and report.exists():
        reason.unlink(missing_ok=True)
        return "measured"
    last = _last_words(done)
    verb = "refused" if done.returncode == _REFUSED else "failed"
    write_whole(reason, f"{verb}: {last}\n")
    return f"{verb}: {last}"


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    """What a process said last: the reason why it stopped, not what to do about a bug."""
    lines = [line.strip(" -") for line in (done.stderr or "").splitlines() if line.strip()]
    broken = [line for line in lines if line.startswith("internal error: ")]
    if broken:
        return broken[-1]
    return lines[-1] if lines else f"exit code {done.returncode} without a word"


def _process(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            check=False, timeout=_LONGEST_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        said = f"took longer than {_LONGEST_S:g} s"
        return subprocess.CompletedProcess(list(words), 1, "", said)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid of a folder and write its page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="holds grid.yaml; results are put here")
    parser.add_argument("--profile", type=Path, help="by default FOLDER/profile.yaml")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps to time in each run")
    options = parser.parse_args(arguments)
    profile = options.profile or options.folder / "profile.yaml"

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    try:
        kept = check(options.folder, profile, steps=options.steps, say=say)
    except InputError as error:
        say(str(error))
        return _REFUSED
    return 0 if any(run.is_measured for run in kept) else 1


if __name__ == "__main__":
    raise SystemExit(main())
