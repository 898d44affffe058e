"""What libraries hear where they ask a tensor for a number."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.utils.cpp_extension

from simulator.capture.recording.absent_streams import replaced
from simulator.capture.recording.one_rank import captured, device_answers
from simulator.capture.recording.unknown.library_answers import agreeing_ranks, healthy_answer
from simulator.errors import InputError
from tests.capture.models import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    ("file", "function", "answer"),
    [
        ("/env/site-packages/transformers/generation/utils.py", "generate", 0),
        ("/env/site-packages/deepspeed/runtime/zero/stage3.py", "has_overflow", 0),
        ("/home/me/generation/utils.py", "generate", None),
        ("/env/site-packages/transformers/generation/utils.py", "_sample", None),
    ],
)
def test_only_checks_of_a_library_that_a_healthy_run_passes_have_an_answer(file, function, answer):
    assert healthy_answer(file, function) == answer


class Stops(list):
    """Criteria as the library has them; tokens decide, of which a capture has none."""

    max_length = 7

    def __call__(self, input_ids, scores=None):
        return torch.full(input_ids.shape[:1], input_ids.shape[1] >= self.max_length)


class Generates:
    def _has_unfinished_sequences(self, this_peer_finished, synced_gpus, device):
        return not this_peer_finished

    def generate(self, model, tokens):
        stops, is_done = Stops(), False
        while self._has_unfinished_sequences(is_done, synced_gpus=False, device=tokens.device):
            model(tokens)
            tokens = torch.cat([tokens, tokens[:, -1:]], 1)
            is_done = stops(tokens).long().max() == 1
            is_done = is_done.item() > 0  # nobody knows
        return tokens


def test_generation_reaches_its_length_and_says_so(monkeypatch):
    library = "transformers.generation"
    stopping = SimpleNamespace(StoppingCriteriaList=Stops)
    monkeypatch.setitem(sys.modules, f"{library}.stopping_criteria", stopping)
    monkeypatch.setitem(sys.modules, f"{library}.utils", SimpleNamespace(GenerationMixin=Generates))
    lengths = []

    def run():
        model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9)).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(4):
            with torch.no_grad():
                tokens = Generates().generate(model, torch.zeros(2, 3, dtype=torch.long).cuda())
            lengths.append(tokens.shape[1])
            model(tokens).sum().backward()
            optimizer.step()

    found = captured(run, 0, 1, device_answers(DEVICE), Path("nothing"))
    assert set(lengths) == {Stops.max_length}
    assert any("max_new_tokens" in note for note in found.notes)
    decoded = [call.name for call in found.table.calls].count("aten.embedding.default")
    assert decoded == Stops.max_length - 3 + 1  # one length each, and the update's


def test_an_optimizer_that_deepspeed_builds_moves_the_bytes_of_torchs_fused_one():
    def bytes_of(update):
        def run():
            layer = torch.nn.Linear(64, 64, bias=False).cuda()
            moments = [torch.zeros_like(layer.weight) for _ in range(2)]
            optimizer = torch.optim.SGD(layer.parameters(), lr=0)
            for _ in range(4):
                layer(torch.ones(2, 64).cuda()).sum().backward()
                update(layer.weight, moments)
                optimizer.step()

        table = captured(run, 0, 1, device_answers(DEVICE), Path("nothing")).table
        return [
            call.read_bytes + call.written_bytes
            for call in table.calls
            if "_fused_adam" in call.name
        ]

    def built(weight, moments):
        from torch.utils.cpp_extension import load

        lists = [[weight.grad], [weight], *([moment] for moment in moments)]
        load("fused_adam", []).multi_tensor_adam(
            1, None, lists, 1e-3, 0.9, 0.99, 1e-8, 1, 1, True, 0.0
        )

    def torchs(weight, moments):
        torch.optim.AdamW([weight], fused=True).step()

    assert bytes_of(built) == bytes_of(torchs)


def test_any_other_kernel_that_code_builds_is_refused_with_a_way_out():
    def run():
        torch.utils.cpp_extension.load("scan", ["scan.cu"])

    with pytest.raises(InputError, match="builds scan with CUDA's compiler"):
        captured(run, 0, 1, device_answers(DEVICE), Path("nothing"))


def test_ranks_compare_nothing_with_each_other(monkeypatch):
    def compare(numbers):
        raise AssertionError(numbers)

    def wrapped(numbers):  # the library's wrapper has another name than the check
        compare(numbers)

    utilities, user = ModuleType("zero.utils"), ModuleType("zero.coordinator")
    for module in (utilities, user):
        module.assert_ints_same_as_other_ranks = wrapped
    monkeypatch.setitem(sys.modules, "deepspeed.runtime.zero.utils", utilities)
    monkeypatch.setitem(sys.modules, "deepspeed.runtime.zero.coordinator", user)
    with replaced(agreeing_ranks()):
        user.assert_ints_same_as_other_ranks([3])
    assert user.assert_ints_same_as_other_ranks is wrapped
