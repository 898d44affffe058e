"""Are operators of a captured step the kernels that a GPU runs?"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

from simulator.capture.recording.one_rank import captured, device_answers
from tests.capture.models import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore")
ANSWERS = device_answers(DEVICE)
NOWHERE = Path("nothing")


def alone(layers, optimizer_of, before_step=lambda _: None):
    """A loop over plain layers on one GPU."""

    def run():
        net = torch.nn.Sequential(*(torch.nn.Linear(64, 64, device="cuda") for _ in range(layers)))
        optimizer = optimizer_of(net.parameters())
        for _ in range(4):
            net(torch.ones(4, 64, device="cuda")).sum().backward()
            before_step(net.parameters())
            optimizer.step()
            optimizer.zero_grad()

    return captured(run, 0, 1, ANSWERS, NOWHERE)


def test_optimizers_and_clipping_take_many_tensors_at_once_as_they_do_on_a_gpu():
    clip = functools.partial(torch.nn.utils.clip_grad_norm_, max_norm=1.0)
    found = alone(8, torch.optim.AdamW, before_step=clip).table
    updates = [found.calls[c].name for c, p in zip(found.call, found.phase, strict=True) if p == 3]
    assert "aten._foreach_norm.Scalar" in updates
    assert "aten._foreach_mul_.Tensor" in updates
    assert len(updates) < 2 * 8 * 2


def test_attention_on_hopper_is_cudnns_and_on_ampere_flash_attention():

    def run(capability):
        def train():
            layer = torch.nn.Linear(8, 3 * 64, device="cuda", dtype=torch.bfloat16)
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            for _ in range(4):
                x = torch.ones(1, 32, 8, device="cuda", dtype=torch.bfloat16)
                parts = layer(x).unflatten(-1, (3, 1, 64)).transpose(1, 3).unbind(2)
                attention = torch.nn.functional.scaled_dot_product_attention
                attention(*parts, is_causal=True).sum().backward()
                optimizer.step()

        device = device_answers({**DEVICE, "capability": capability})
        names = {call.name for call in captured(train, 0, 1, device, NOWHERE).table.calls}
        return sorted(name.split(".")[1] for name in names if "attention" in name)

    cudnn, flash = run((9, 0)), run((8, 0))
    assert cudnn == [f"_scaled_dot_product_cudnn_attention{end}" for end in ("", "_backward")]
    assert flash == [f"_scaled_dot_product_flash_attention{end}" for end in ("", "_backward")]


@pytest.mark.parametrize(("kv_heads", "is_one_kernel"), [(4, True), (2, False)])
def test_grouped_heads_of_32_bit_numbers_have_no_fused_attention(kv_heads, is_one_kernel):
    """PyTorch's memory-efficient kernel, which alone reads them, takes no grouped heads."""

    def train():
        layer = torch.nn.Linear(8, 64, device="cuda")
        query, key = (layer(torch.ones(1, n, 32, 8, device="cuda")) for n in (4, kv_heads))
        attention = torch.nn.functional.scaled_dot_product_attention
        attention(query, key, key, is_causal=True, enable_gqa=True).sum().backward()
        torch.optim.SGD(layer.parameters(), lr=0.1).step()

    def steps():
        for _ in range(4):
            train()

    names = {
        call.name for call in captured(steps, 0, 1, device_answers(DEVICE), NOWHERE).table.calls
    }
    fused = [name for name in names if "efficient_attention" in name]
    assert bool(fused) is is_one_kernel


def test_masks_of_transformers_are_those_of_whole_sequences():
    pytest.importorskip("transformers")
    from transformers import LlamaConfig, LlamaForCausalLM

    def train():
        config = LlamaConfig(
            vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
            num_attention_heads=1, max_position_embeddings=64, use_cache=False,
        )  # fmt: skip
        with torch.device("cuda"):
            net = LlamaForCausalLM(config).to(torch.bfloat16)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            ids = torch.zeros(1, 32, dtype=torch.long)
        for mask in (None, torch.ones_like(ids)) * 2:
            net(input_ids=ids, labels=ids, attention_mask=mask).loss.backward()
            optimizer.step()

    found = captured(train, 0, 1, ANSWERS, NOWHERE)
    names = {call.name for call in found.table.calls}
    assert "aten._scaled_dot_product_cudnn_attention.default" in names
    assert any("not to be padded" in note for note in found.notes)


@pytest.mark.parametrize(
    ("mask", "is_causal"),
    [
        (lambda _, b, h, query, key: query >= key, True),
        (lambda _, b, h, query, key: (query >= key) & (query - key < 64), True),
        (lambda _, b, h, query, key: (query - key).abs() < 64, False),
        (lambda of, b, h, query, key: (query >= key) & (of[query] == of[key]), True),
        (None, False),
    ],
)
def test_flexible_attention_is_one_kernel_that_keeps_what_flash_attention_keeps(mask, is_causal):
    flexible = torch.nn.attention.flex_attention

    def train():
        layer = torch.nn.Linear(8, 3 * 64, device="cuda", dtype=torch.bfloat16)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        documents = torch.arange(256, device="cuda") // 100
        of_pair = mask and functools.partial(mask, documents)
        blocks = mask and flexible.create_block_mask(of_pair, None, None, 256, 256, device="cuda")
        for _ in range(4):
            x = torch.ones(1, 256, 8, device="cuda", dtype=torch.bfloat16)
            parts = layer(x).unflatten(-1, (3, 1, 64)).transpose(1, 3).unbind(2)
            attention = torch.compile(flexible.flex_attention)
            attention(*parts, block_mask=blocks, return_lse=True)[0].sum().backward()
            optimizer.step()

    found = captured(train, 0, 1, ANSWERS, NOWHERE)
    calls = [call for call in found.table.calls if "attention" in call.name]
    assert [call.name.split(".")[1].endswith("backward") for call in calls] == [False, True]
    assert any(calls[0].settings[1:2]) == is_causal
    assert any("flex_attention" in note for note in found.notes)


@pytest.mark.parametrize(("stated", "shape"), [(64, (8, 2, 64, 16)), (100, (4, 2, 128, 16))])
def test_documents_of_a_stated_length_see_themselves_alone(stated, shape):
    flexible = torch.nn.attention.flex_attention
    results = []

    def train():
        layer = torch.nn.Linear(8, 3 * 32, device="cuda", dtype=torch.bfloat16)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        of = torch.arange(256, device="cuda") // 64
        blocks = flexible.create_block_mask(
            lambda b, h, query, key: (query >= key) & (of[query] == of[key]), None, None, 256, 256
        )
        for _ in range(4):
            x = torch.ones(2, 256, 8, device="cuda", dtype=torch.bfloat16)
            parts = layer(x).unflatten(-1, (3, 2, 16)).transpose(1, 3).unbind(2)
            results.append(flexible.flex_attention(*parts, block_mask=blocks))
            results[-1].sum().backward()
            optimizer.step()

    found = captured(train, 0, 1, ANSWERS, NOWHERE, values=[f"{Path(__file__).name}={stated}"])
    forward, backward = (call for call in found.table.calls if "attention" in call.name)
    assert forward.inputs[0].shape == backward.inputs[1].shape == shape
    assert results[-1].shape == (2, 2, 256, 16)


@pytest.mark.parametrize("joined", [False, True])
def test_the_alignment_loss_keeps_the_table_that_torch_keeps(joined):
    times, batch, longest, symbols = 50, 4, 10, 9
    lengths = torch.full((batch,), times), torch.full((batch,), longest)
    rows = torch.ones(batch, longest, dtype=torch.long)
    log_probs = torch.zeros(times, batch, symbols)
    known = torch.ops.aten._ctc_loss.Tensor(log_probs, rows, *lengths)

    def train():
        layer = torch.nn.Linear(8, symbols, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        targets = torch.ones(batch, longest, dtype=torch.long, device="cuda")
        targets = targets.flatten() if joined else targets
        for _ in range(4):
            found = layer(torch.ones(times, batch, 8, device="cuda")).log_softmax(-1)
            torch.nn.CTCLoss()(found, targets, *lengths).backward()
            optimizer.step()

    calls = {call.name: call for call in captured(train, 0, 1, ANSWERS, NOWHERE).table.calls}
    found = calls["clustersim.ctc_loss.default"].outputs
    assert [each.shape for each in found] == [tuple(each.shape) for each in known]
    (gradient,) = calls["clustersim.ctc_loss_backward.default"].outputs
    assert gradient.shape == tuple(log_probs.shape)
