"""Which clocks, power and temperature does the driver report meanwhile?

A second process of ``nvidia-smi`` prints them twice a second; nothing is set.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from typing import Any

FIELDS = (
    "clocks.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu", "memory.used",
    "clocks_throttle_reasons.active",
)  # fmt: skip
"""In MHz, W, degrees Celsius and MiB, as ``nvidia-smi --help-query-gpu`` names them."""

_PERIOD_MS = 500


def parsed(line: str) -> dict[str, Any]:
    """One line of ``--format=csv,noheader,nounits`` by field; what is no number stays a text."""
    return {
        name: _number(text.strip())
        for name, text in zip(FIELDS, line.split(","))  # noqa: B905
    }


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


class Sensors:
    """The driver's readings while the block runs; none where there is no ``nvidia-smi``."""

    def __init__(self, index: int = 0) -> None:
        self._index = index
        self._process: subprocess.Popen[str] | None = None
        self._readings: list[dict[str, Any]] = []

    def __enter__(self) -> Sensors:
        command = shutil.which("nvidia-smi")
        if command is not None:
            words = [command, f"--id={self._index}", f"--query-gpu={','.join(FIELDS)}",
                     "--format=csv,noheader,nounits", f"--loop-ms={_PERIOD_MS}"]  # fmt: skip
            self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._readings.append(parsed(line))

    def since_last(self) -> list[dict[str, Any]]:
        """Readings since the last call, or the latest one again if there is no new one."""
        readings, self._readings = self._readings, self._readings[-1:]
        return readings
