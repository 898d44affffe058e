"""What captured code may ask, decide and write, and what it may not."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path

import pytest
import torch

from simulator.capture.recording.one_rank import captured, captured_script, device_answers
from simulator.capture.recording.unknown.values import UnknownNumber
from simulator.capture.table import Phase
from simulator.errors import InputError
from tests.capture.models import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore")
ANSWERS = device_answers(DEVICE)
NOWHERE = Path("nothing")
FALSE = "taken to be false, since only a run knows the number"


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("if loss != 3: pass", "needs the value of a tensor"),
        ("if (x > 0).all(): pass", "needs the value of a tensor"),
        ("x[x > 0]", "needs the value of a tensor"),
        ("if loss.item() != 3: pass", "needs the value of a tensor"),
        ("raise KeyError('lost')", "raised KeyError"),
        ("range(loss)", "needs the value of a tensor"),
        ("torch.nn.Embedding(9, 4, sparse=True).cuda()(x.long())", "asks for sparse gradients"),
        ("torch.nn.EmbeddingBag(9, 4, sparse=True).cuda()(x.long())", "asks for sparse gradients"),
        ("float(loss); print(f'{loss.item() / 2:.3f}'); raise SystemExit(3)", "ended with 3"),
    ],
)
def test_what_cannot_be_captured_is_refused_with_the_line(tmp_path, line, rule):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "layer = torch.nn.Linear(4, 4).cuda()\n"
        "x = torch.randn(2, 4, device='cuda')\n"
        "loss = layer(x).sum()\n"
        f"{line}\n",
        encoding="utf-8",
    )
    with pytest.raises(InputError, match=rule) as refused:
        captured_script(str(script), [], 0, 1, ANSWERS, NOWHERE)
    assert "ended" in rule or f"{script}:5" in str(refused.value)
    assert list(tmp_path.iterdir()) == [script]


def numbers_of(made: str) -> list[float]:
    """What code finds in a tensor that it makes before its steps."""
    found: list[float] = []

    def run():
        found.extend(number for number in eval(made).tolist() if int(number) < 99)
        model = torch.nn.Linear(4, 4, device="cuda")
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            model(torch.ones(2, 4, device="cuda")).sum().backward()
            optimizer.step()

    captured(run, 0, 1, ANSWERS, NOWHERE)
    return found


@pytest.mark.parametrize(
    ("made", "numbers"),
    [
        ("torch.linspace(0, 0.1, 3)", [0.0, 0.05, 0.1]),
        ("torch.linspace(0, 0.3, 4).split([1, 3])[1][1:]", [0.2, 0.3]),
        ("torch.arange(6).view(2, 3).flip(0).sum(0) * 2", [6, 10, 14]),
        ("torch.ones(2).mul_(3)", [3.0, 3.0]),
        ("torch.tensor([4, 5, 6])[[2, 0]]", [6, 4]),
        ("torch.unique(torch.arange(6) % 3)", [0, 1, 2]),
        ("torch.randint(5, (2,)) * 0 + 7", [7, 7]),
        ("torch.tensor([4], pin_memory=True)", [4]),
        ("torch.zeros(2, pin_memory=True)", [0, 0]),
        ("torch.empty(2).uniform_(0, 3) * 0 + 7", [7, 7]),
        ("torch.empty(2, dtype=torch.long).fill_(5)", [5, 5]),
        ("torch.tensor(list(range(9))[torch.randint(8, (1,))[0] :][-1:])", [8]),
    ],
)
def test_small_tensors_on_the_host_have_the_numbers_that_the_code_states(made, numbers):
    assert numbers_of(made) == pytest.approx(numbers)


@pytest.mark.parametrize(
    "made",
    [
        "torch.empty(3)",
        "torch.zeros(1 << 13).uniform_()[:2]",
        "torch.ones(3, device='cuda')",
        "torch.arange(8).cuda() + 1",
        "torch.zeros(1 << 21)[:2]",
    ],
)
def test_numbers_of_the_device_and_those_that_nobody_states_stay_unknown(made):
    with pytest.raises(InputError, match="needs the value"):
        numbers_of(made)


@pytest.mark.parametrize(
    "line",
    [
        "if torch.isnan(loss) or not loss.isfinite().all(): raise ValueError",
        "if not math.isfinite(loss.item()) or torch.isinf(loss).any(): raise ValueError",
        "torch._check_tensor_all(x < 9)",
        "torch.distributions.Categorical(logits=layer(x)).log_prob(x[:, 0].long())",
        "found = loss.item()\n    if found != found: raise ValueError",
        "with torch.cuda.nvtx.range('scaled'): loss = loss * 2",
        "torch.nn.init.trunc_normal_(layer.weight)",
        "next(iter(torch.utils.data.DataLoader(range(4), num_workers=2, persistent_workers=True)))",
        "assert torch.compile(layer)(x).shape == x.shape",
        "assert torch.compile(dynamic=False)(layer)(x).shape == x.shape",
        "layer.compile()",
    ],
)
def test_what_a_healthy_run_passes_is_passed(tmp_path, line):
    script = tmp_path / "train.py"
    script.write_text(
        "import math, torch\n"
        "layer = torch.nn.Linear(4, 4).cuda()\n"
        "x = torch.randn(2, 4, device='cuda')\n"
        "optimizer = torch.optim.SGD(layer.parameters())\n"
        "for _ in range(5):\n"
        "    loss = layer(x).sum()\n"
        f"    {line}\n"
        "    loss.backward()\n"
        "    optimizer.step()\n",
        encoding="utf-8",
    )
    found = captured_script(str(script), [], 0, 1, ANSWERS, NOWHERE)
    assert len(found.table.call) > 0
    assert bool(found.notes) == ("compile" in line)


def test_a_script_that_keeps_its_best_loss_and_logs_is_captured_as_it_is(tmp_path):
    """In the manner of nanoGPT: evaluation first, the best checkpoint, clipping, a log."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, numpy as np, torch\n"
        "folder = '/nowhere/out'\n"
        "os.makedirs(folder, exist_ok=True)\n"
        "model = torch.nn.Linear(8, 8).cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters(), fused=True)\n"
        "scaler, best = torch.amp.GradScaler(), 1e9\n"
        "def evaluated():\n"
        "    losses = torch.zeros(4)\n"
        "    for k in range(4):\n"
        "        losses[k] = model(torch.ones(2, 8, device='cuda')).sum().item()\n"
        "        assert np.isnan(model.weight.detach().cpu().numpy()).all()\n"
        "    return losses.mean()\n"
        "for step in range(8):\n"
        "    if step % 100 == 0:\n"
        "        with torch.no_grad(): loss = evaluated()\n"
        "        if loss < best: torch.save(model.state_dict(), folder + '/best.pt')\n"
        "        best = min(best, loss.item())\n"
        "        with open(folder + '/log.txt', 'a') as log: print(f'{loss:.3f}', file=log)\n"
        "    loss = model(torch.ones(2, 8, device='cuda')).sum()\n"
        "    scaler.scale(loss).backward()\n"
        "    scaler.unscale_(optimizer)\n"
        "    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "    if norm.item() > 1e6: raise RuntimeError('exploded')\n"
        "    scaler.step(optimizer); scaler.update(); optimizer.zero_grad()\n",
        encoding="utf-8",
    )
    found = captured_script(str(script), [], 0, 1, ANSWERS, NOWHERE)
    assert len(found.table.call) > 0
    assert list(tmp_path.iterdir()) == [script]
    assert {note.partition("train.py")[2] for note in found.notes if "false" in note} == {
        f":16: if loss < best: torch.save(model.state_dict(), folder + '/best.pt'): {FALSE}",
        f":17: best = min(best, loss.item()): {FALSE}",
        f":23: if norm.item() > 1e6: raise RuntimeError('exploded'): {FALSE}",
    }
    assert "what is written to log.txt goes nowhere" in found.notes


def test_what_an_optimizer_runs_in_its_step_has_phases_of_its_own():
    """As Lightning does it: forward and backward are a closure of the optimizer's step."""

    def train(closes: bool) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def work():
            optimizer.zero_grad()
            model(torch.ones(4, 8, device="cuda")).mean().backward()

        for _ in range(4):
            if closes:
                optimizer.step(work)
            else:
                work()
                optimizer.step()

    found = [
        captured(functools.partial(train, closes), 0, 1, ANSWERS, NOWHERE).table.phase.tolist()
        for closes in (True, False)
    ]
    assert found[0] == found[1]
    assert set(found[0]) == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}


@pytest.mark.parametrize("others", [1, 2])
def test_optimizers_that_take_turns_are_one_step(others):
    """As those of a generator and of a discriminator do."""

    def train() -> None:
        models = [torch.nn.Linear(size, 8).cuda() for size in range(4, 5 + others)]
        optimizers = [torch.optim.SGD(model.parameters()) for model in models]
        for _ in range(4):
            for model, optimizer in zip(models, optimizers, strict=True):
                model(torch.ones(4, model.in_features, device="cuda")).sum().backward()
                optimizer.step()

    table = captured(train, 0, 1, ANSWERS, NOWHERE).table
    calls = [table.calls[number] for number in table.call]
    assert [c.inputs[1].shape[1] for c in calls if "addmm" in c.name] == [*range(4, 5 + others)]


def test_models_and_tensors_are_copied():
    """As ``nn.TransformerEncoder`` makes its layers, and averages of weights their model."""
    found = []

    def run():
        model = torch.nn.Linear(8, 8).cuda()
        averaged, one = copy.deepcopy(model), copy.deepcopy(torch.tensor([1.5, 2.5]))
        found.append((one.tolist(), averaged.weight is model.weight, averaged.weight.device.type))
        found.append(type(averaged.weight) is type(model.weight) and averaged.weight.requires_grad)
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            model(torch.ones(4, 8, device="cuda")).mean().backward()
            optimizer.step()

    captured(run, 0, 1, ANSWERS, NOWHERE)
    assert found == [([1.5, 2.5], False, "cuda"), True]


@pytest.mark.parametrize("normed", ["weight_norm", "spectral_norm"])
def test_layers_with_normed_weights_move_to_the_device(normed):
    def run():
        model = getattr(torch.nn.utils, normed)(torch.nn.Linear(8, 8)).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            model(torch.ones(4, 8, device="cuda")).mean().backward()
            assert all(weight.grad.is_cuda for weight in model.parameters())
            optimizer.step()

    captured(run, 0, 1, ANSWERS, NOWHERE)


def test_an_unknown_number_is_copied_and_written_down_as_one():
    """As ``dataclasses.asdict`` and ``json`` do with the state of a trainer."""
    copied = copy.deepcopy(UnknownNumber())
    assert isinstance(copied, UnknownNumber)
    assert json.dumps({"best": copied}) == '{"best": NaN}'
