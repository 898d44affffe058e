"""Does the process of a rank say what a user has to know, and end when it is told to?"""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from simulator.capture.make import capture_script
from simulator.capture.recording import rank_process

STEPS = """
import torch
from torch.nn.functional import cross_entropy
model = torch.nn.Sequential(torch.nn.Embedding(100, 32), torch.nn.Linear(32, 100)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    tokens = torch.randint(100, (256,), device="cuda")
    loss = cross_entropy(model(tokens), tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("log", "is_said"), [("    print(loss.item())\n", True), ("", False)])
def test_a_script_that_prints_a_loss_is_told_why_it_is_no_number(tmp_path, capfd, log, is_said):
    script = tmp_path / "train.py"
    script.write_text(STEPS + log)
    capture_script(script, [], world=8)
    assert ("have no contents" in capfd.readouterr().err) is is_said


def test_an_interrupt_ends_the_process_without_a_traceback(monkeypatch):
    before = signal.getsignal(signal.SIGINT)

    def ordered() -> str:
        raise SystemExit(signal.getsignal(signal.SIGINT).name)

    monkeypatch.setattr("sys.stdin", SimpleNamespace(read=ordered))
    try:
        with pytest.raises(SystemExit, match="SIG_DFL"):
            rank_process.main()
    finally:
        signal.signal(signal.SIGINT, before)
