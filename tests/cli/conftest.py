"""How do tests call the command line?"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from simulator.cli import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def clustersim(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Run a command in this process; returns its exit code and both streams."""
    # Neither the width of somebody's terminal nor their settings make a test fail.
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("CLUSTERSIM_TRACEBACK", raising=False)

    def call(*words: object) -> Outcome:
        with pytest.raises(SystemExit) as stopped:
            main([str(word) for word in words])
        return Outcome(int(stopped.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def job_file(write):
    """A small dense model on two nodes."""
    return write(
        """
        model: {base: llama3.1-8b, layers: 4}
        cluster: {profile: h100-sxm-80gb, gpus: 16}
        batch: {global: 32, seq_len: 2048}
        plan: {tp: 2, pp: 2}
        """
    )
