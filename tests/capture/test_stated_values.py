"""Values that only a real run knows, where the user states them by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.capture.recording.one_rank import captured_script, device_answers
from simulator.capture.stated_values import read_stated_values
from simulator.errors import InputError
from tests.capture.models import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore")
ANSWERS = device_answers(DEVICE)

EXPERTS = """\
import torch
experts = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(2)).cuda()
optimizer = torch.optim.SGD(experts.parameters())
for _ in range(4):
    x = torch.randn(32, 64, device="cuda")
    out = torch.zeros_like(x)
    chosen = torch.randint(2, (32,), device="cuda")
    for number, expert in enumerate(experts):
        rows = {rows}
        out.index_add_(0, rows, expert(x[rows]))
    out.sum().backward()
    optimizer.step()
"""


def step_of(folder: Path, text: str, *values: str):
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    return captured_script(str(script), [], 0, 1, ANSWERS, folder, values=values)


def products(found) -> list[tuple[int, ...]]:
    calls = [found.table.calls[number] for number in found.table.call]
    return [call.inputs[1].shape for call in calls if "mm" in call.name]


@pytest.mark.parametrize("value", ["train.py:9=16", "train.py:9=50%", "train.py=50%"])
def test_experts_with_a_stated_number_of_rows_do_what_experts_with_such_rows_do(tmp_path, value):
    stated = step_of(tmp_path, EXPERTS.format(rows="torch.where(chosen == number)[0]"), value)
    known = step_of(tmp_path, EXPERTS.format(rows="torch.arange(16, device='cuda')"))
    assert products(stated) == products(known)
    assert f"train.py:9: {value} was stated" in stated.notes


MASKED = """\
import torch
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(layer.parameters())
for _ in range(4):
    x = layer(torch.randn(32, 64, device="cuda"))
    mask = torch.randint(2, (32,), device="cuda") == 1
    rows = x[mask]
    assert x[mask].shape == (8, 64)
    x.sum().add(rows.sum()).backward()
    optimizer.step()
"""


def test_a_mask_selects_as_many_wherever_it_is_used_again_as_in_backward(tmp_path):
    assert not [note for note in step_of(tmp_path, MASKED, "train.py:7=8").notes if ":9" in note]
    changed = MASKED.replace("    assert", "    mask.logical_not_()\n    assert")
    with pytest.raises(
        InputError, match=r"train\.py:9=NUMBER.*train.py=25% states it of each such"
    ):
        step_of(tmp_path, changed, "train.py:7=8")


ASKING = """\
import torch
layer = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(layer.parameters())
for _ in range(4):
    y = layer(torch.randn(8, 4, device="cuda"))
    mask, labels = y > 0, y.argmax(1)
    {line}
    y.sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("assert y[mask].shape == (3,)", "3"),
        ("assert y[labels > 2, 1:].shape == (2, 3); y = y[labels > 2]", "25%"),
        ("assert y.masked_select(mask).shape == (16,)", "50%"),
        ("assert mask.nonzero().shape == (5, 2)", "5"),
        ("assert labels.unique(return_inverse=True, return_counts=True)[1].shape == (8,)", "5"),
        ("assert labels.bincount().split([2, 3])[1].shape == (3,)", "5"),
        ("assert labels.bincount(minlength=4).tolist() == [2, 2, 2, 2]", "2"),
        ("assert labels.numpy().sum() == 16", "2"),
        ("assert labels.cpu().numpy().dtype == 'int64'", "0"),
        ("assert y[: labels.max().item()].shape == (6, 4)", "6"),
        ("assert y[: int(labels.max())].shape == (6, 4)", "6"),
        ("assert mask.all()", "1"),
        ("assert y.sum().item() > 2", "3"),
    ],
)
def test_a_line_gets_the_value_that_is_stated_of_it(tmp_path, line, value):
    found = step_of(tmp_path, ASKING.format(line=line), f"train.py:7={value}")
    assert len(found.table.call) > 0


def test_a_refusal_says_how_to_state_what_is_asked_for(tmp_path):
    with pytest.raises(InputError, match=r"elements are selected, with --value train.py:7=NUMBER"):
        step_of(tmp_path, ASKING.format(line="y[mask]"))
    with pytest.raises(InputError, match=r"state it with --value train.py:7=NUMBER"):
        step_of(tmp_path, ASKING.format(line="range(labels.max())"), "train.py:7=50%")


def test_counts_end_where_the_code_says(tmp_path):
    found = step_of(
        tmp_path, ASKING.format(line="assert labels.bincount(minlength=4).shape == (4,)")
    )
    assert not found.notes


def test_what_nobody_asked_for_is_said(tmp_path):
    found = step_of(tmp_path, ASKING.format(line="pass"), "train.py:8=1")
    assert found.notes == ("--value train.py:8=1: no such line asked for a value",)


@pytest.mark.parametrize("text", ["train.py:7", "=3", "train.py:7=many", "train.py:7=120%"])
def test_a_statement_is_a_line_and_a_number(text):
    with pytest.raises(InputError, match="must be FILE:LINE=NUMBER"):
        read_stated_values([text])


def test_a_line_goes_before_its_file_and_a_folder_tells_files_apart():
    stated = read_stated_values(["heads/loss.py=3", "loss.py:4=7"])
    assert stated.number("/code/heads/loss.py", 4) == 7
    assert stated.number("/code/heads/loss.py", 5) == 3
    assert stated.number("/code/my_loss.py", 4) is None
