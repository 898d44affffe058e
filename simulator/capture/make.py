"""How is a capture made?

Every rank that differs runs in a process of its own, one after another: the first rank says
which others its pipeline has. The processes are torch's; this module needs none.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.capture.file import read_capture
from simulator.capture.stated_values import read_stated_values
from simulator.capture.table import Capture, RankTable
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.load import load_profile
from simulator.errors import InputError
from simulator.extras import require

_CAPABILITIES: Mapping[str, tuple[int, int]] = {
    "v100": (7, 0), "a100": (8, 0), "a800": (8, 0), "l40": (8, 9), "rtx-4090": (8, 9),
    "b200": (10, 0), "b300": (10, 3), "gb200": (10, 0), "gb300": (10, 3),
}  # fmt: skip
"""Compute capability by the first word of a profile's name; 9.0 for all others (Hopper)."""
_HOPPER = (9, 0)


def capture_script(
    script: Path,
    arguments: Sequence[str],
    *,
    world: int,
    device: str = "h100-sxm-80gb",
    ranks: Sequence[int] | None = None,
    values: Sequence[str] = (),
) -> Capture:
    """The step of a training script, on so many ranks that are not there.

    Args:
        script: A script as torchrun runs it.
        arguments: Its own.
        world: Ranks of the run.
        device: Profile whose device the script is told of.
        ranks: Ranks to run; by default the first and all of its pipeline.
        values: What only a real run knows, by line: ``FILE:LINE=NUMBER``.

    Raises:
        InputError: There is no such script, it raises, or it needs what is not there.
    """
    if not script.is_file():
        raise InputError.single("TRAIN.py", "is not a file", str(script))
    if world < 1:
        raise InputError.single("--world", "must be 1 or more", world)
    read_stated_values(values)
    require("torch", "runs the script")
    answers = device_values(load_profile(device))
    with tempfile.TemporaryDirectory() as folder:
        tables = _Tables(Path(folder), script, arguments, world, answers, values)
        first = tables.rank(ranks[0] if ranks else 0)
        others = list(ranks[1:]) if ranks else pipeline_of(first)
        parts = [first, *(tables.rank(rank) for rank in others)]
    return merged(parts, script.name, device)


def capture_steps(
    step_function: Callable[[], object], *, world: int, device: str, values: Sequence[str] = ()
) -> Capture:
    """The step that a function runs, in this process, as rank 0 of so many.

    Args:
        step_function: Does one step at each call.
        world: Ranks of the run.
        device: Profile whose device the function is told of.
        values: What only a real run knows, by line: ``FILE:LINE=NUMBER``.

    Raises:
        InputError: The function raises, makes no step, or needs what is not there.
    """
    from simulator.capture.recording.one_rank import captured_steps, device_answers

    answers = device_answers(device_values(load_profile(device)))
    with tempfile.TemporaryDirectory() as folder:
        found = captured_steps(step_function, 0, world, answers, Path(folder), values)
    name = getattr(step_function, "__name__", "step")
    return merged([found.as_capture(world)], name, device)


def device_values(profile: HardwareProfile) -> dict[str, Any]:
    """What a script may ask of a profile's device, as plain data."""
    word = profile.name.split("-")[0]
    name = profile.name if profile.name.startswith("rtx") else word
    capability = next((c for key, c in _CAPABILITIES.items() if name.startswith(key)), _HOPPER)
    return {
        "name": profile.description.split(",")[0],
        "memory_bytes": profile.device.memory_bytes,
        "sm_count": profile.device.sm_count,
        "capability": capability,
        "local_ranks": profile.network.gpus_per_node,
    }


class _Tables:
    """Runs ranks of a script, each in a process."""

    def __init__(
        self,
        folder: Path,
        script: Path,
        arguments: Sequence[str],
        world: int,
        answers: Mapping[str, Any],
        values: Sequence[str],
    ) -> None:
        self._folder = folder
        mailbox = folder / "mailbox"
        mailbox.mkdir()
        self._order = {
            "script": str(script.resolve()),
            "arguments": list(arguments),
            "world": world,
            "device": dict(answers),
            "mailbox": str(mailbox),
            "values": list(values),
        }

    def rank(self, rank: int) -> Capture:
        """What one rank does.

        Raises:
            InputError: Its process says why it failed.
        """
        target = self._folder / f"rank{rank}"
        order = json.dumps({**self._order, "rank": rank, "target": str(target)})
        command = [sys.executable, "-m", "simulator.capture.recording.rank_process"]
        done = subprocess.run(command, input=order, text=True, check=False)
        refused = target.with_suffix(".json")
        if refused.is_file():
            raise _as_error(json.loads(refused.read_text(encoding="utf-8")))
        if done.returncode or not target.is_file():
            rule = f"rank {rank} ended with {done.returncode} before its step was captured"
            raise InputError.single("script", rule, hint="its last output is above")
        return read_capture(target)


def _as_error(fault: Mapping[str, str]) -> InputError:
    return InputError.single(fault["path"], fault["rule"], hint=fault["hint"])


def pipeline_of(first: Capture) -> list[int]:
    """Other ranks of the first one's pipeline."""
    table = first.tables[0]
    members = {
        rank
        for each in table.exchanges
        if each.peer >= 0
        for rank in (*first.groups[each.group], each.peer)
    }
    return sorted(members - {table.rank})


def merged(parts: Sequence[Capture], script: str, device: str) -> Capture:
    """Captures of single ranks as one, their groups numbered anew."""
    groups: dict[tuple[int, ...], int] = {}
    tables = [_renumbered(part.tables[0], part.groups, groups) for part in parts]
    notes = dict.fromkeys(note for part in parts for note in part.notes)
    return Capture(
        script=script,
        world=parts[0].world,
        device=device,
        tokens_per_rank=max(part.tokens_per_rank for part in parts),
        groups=tuple(groups),
        tables=tuple(sorted(tables, key=lambda table: table.rank)),
        versions=parts[0].versions,
        notes=tuple(notes),
    )


def _renumbered(
    table: RankTable, own: Sequence[tuple[int, ...]], groups: dict[tuple[int, ...], int]
) -> RankTable:
    exchanges = tuple(
        each._replace(group=groups.setdefault(own[each.group], len(groups)))
        for each in table.exchanges
    )
    return replace(table, exchanges=exchanges)
