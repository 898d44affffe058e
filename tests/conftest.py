"""What do many tests share?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import settings

# How long an example takes says something about the machine, nothing about the rule.
settings.register_profile("explore", deadline=None, print_blob=True)
# The same examples everywhere: a change is told what it broke, not what luck found today.
settings.register_profile("clustersim", deadline=None, derandomize=True)
settings.load_profile("clustersim")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a text to a file of the test's own folder; returns its path."""

    def write_file(text: str, name: str = "job.yaml") -> Path:
        path = tmp_path / name
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch computes in one thread: several wait for each other where others use the cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def absent_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``torch.cuda`` answers as if one GPU were there; tensors lie in host memory."""
    from tests.absent_cuda import absent_device  # loads torch

    with absent_device(monkeypatch):
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """An open Chromium; its driver's loop must end before other modules run theirs."""
    from tests.exporters.chromium import chromium  # skips where there is none

    with chromium() as opened:
        yield opened
