"""What do a killed scheduler, worker or client of a Dask cluster leave behind?"""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from random import Random

from reports.make.kills.killed_commands import SWEEP_ALONE, KilledCommand
from reports.make.kills.trials import Outcome, Undisturbed, disturbed, environment

PARTS = ("client", "scheduler", "one of two workers")


class Cluster:
    """A scheduler and two workers, all of them processes of their own."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        host = ("--host", "127.0.0.1", "--port", "0")
        self.address = self._started(r"tcp://\S+", "scheduler", *host)
        for _ in range(2):
            self._started("Registered to", "worker", self.address, "--nthreads", "1", "--no-nanny")

    def _started(self, ready: str, *words: str) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *words, "--no-dashboard"],
            env={**environment(uuid.uuid4().hex), "PYTHONWARNINGS": "ignore"},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        return next(found.group() for line in lines if (found := re.search(ready, line)))

    def end(self) -> None:
        """Kill whoever is left."""
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


def kill_part(
    part: str, wanted: Undisturbed, number: int, random: Random, folder: Path
) -> tuple[Outcome, bool]:
    """Send a signal to one part of a cluster during a sweep, and go on without a cluster.

    Returns:
        What was wrong, and whether the sweep ended as if undisturbed.
    """
    cluster = Cluster()
    try:
        words = [word for word in SWEEP_ALONE.words if word not in {"--workers", "1"}]
        command: KilledCommand = replace(SWEEP_ALONE, name=f"sweep --dask: {part}")
        ended_well = False

        def disturb(process: subprocess.Popen[bytes]) -> bool:
            nonlocal ended_well
            try:
                process.wait(random.uniform(1.0, 1.2 * wanted.duration_s))
            except subprocess.TimeoutExpired:
                scheduler, worker, _ = (each.send_signal for each in cluster.processes)
                send = dict(zip(PARTS, (process.send_signal, scheduler, worker), strict=True))
                send[part](number)
                if part != PARTS[0]:
                    ended_well = process.wait(120.0) == 0
                return True
            return False

        line = [sys.executable, "-m", "simulator", *words, "--dask", cluster.address]
        return disturbed(command, wanted, line, disturb, folder), ended_well
    finally:
        cluster.end()
