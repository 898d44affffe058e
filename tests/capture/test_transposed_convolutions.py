"""Transposed convolutions, as decoders of pictures and vocoders have them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from simulator.capture.recording.one_rank import captured, device_answers
from simulator.capture.result import simulate_capture
from tests.capture.models import DEVICE


@pytest.mark.parametrize(
    ("kind", "sizes", "choices"),
    [
        ("ConvTranspose2d", (4, 64, 8, 8), {"stride": 2, "padding": 1}),
        ("ConvTranspose2d", (4, 64, 8, 8), {"stride": 2, "output_padding": 1}),
        ("ConvTranspose1d", (4, 64, 32), {"stride": 4, "bias": False}),
        ("Conv2d", (4, 64, 8, 8), {"stride": 2}),
    ],
)
def test_a_convolution_either_way_does_what_torch_counts(kind, sizes, choices):
    make = getattr(torch.nn, kind)

    def step(layers, device):
        layers(torch.ones(sizes, device=device)).sum().backward()

    def train():
        layers = make(64, 32, 4, **choices).cuda()
        optimizer = torch.optim.SGD(layers.parameters())
        for _ in range(4):
            step(layers, "cuda")
            optimizer.step()

    capture = captured(train, 0, 1, device_answers(DEVICE), Path("nothing")).as_capture(1)
    result = simulate_capture(capture, "h100-sxm-80gb")
    with FlopCounterMode(display=False) as counter:
        step(make(64, 32, 4, **choices), "cpu")
    flop = result.model_tflops_per_gpu * 1e12 * result.step_time_s
    assert flop == pytest.approx(counter.get_total_flops())
