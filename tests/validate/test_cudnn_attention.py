"""Does attention on Blackwell take what NVIDIA measured with cuDNN, one call at a time?"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from simulator.cost.kernel_time import attention_s
from simulator.described.load import load_profile
from simulator.tables.kernel_rows import profile_name_of, read_kernel_rows
from simulator.validate.kernel_answers import compared
from simulator.validate.kernel_errors import without_sustained_clock

_ROWS = Path(__file__).parents[2] / "reports" / "data" / "kernels_gathered.csv"


@pytest.mark.parametrize("name", ["b200-sxm-180gb", "gb200-nvl72", "gb300-nvl72"])
def test_attention_on_blackwell_takes_what_cudnn_takes_call_by_call(name):
    cool = without_sustained_clock(load_profile(name))
    pairs = [compared(row, cool) for row in read_kernel_rows(_ROWS) if profile_name_of(row) == name]
    errors = [pair.predicted_s / pair.measured_s - 1 for pair in pairs]
    assert statistics.fmean(map(abs, errors)) < 0.1
    assert abs(statistics.median(errors)) < 0.08


def test_blackwell_ultra_is_a_fifth_faster_in_forward_attention_and_less_in_backward():
    """Of cuDNN 9.23, two sequences of 8,192 tokens: 1.429 and 4.228 ms, 1.094 and 3.785."""

    def seconds(name: str, *, backward: bool) -> float:
        return attention_s(
            without_sustained_clock(load_profile(name)), batch=2, heads=64, kv_heads=8, seq_q=8192,
            seq_kv=8192, head_dim=128, causal=True, backward=backward,
        )  # fmt: skip

    def gain(*, backward: bool) -> float:
        slow_s, fast_s = (
            seconds(name, backward=backward) for name in ("gb200-nvl72", "gb300-nvl72")
        )
        return slow_s / fast_s

    assert gain(backward=False) == pytest.approx(1.429 / 1.094, rel=0.1)
    assert gain(backward=True) == pytest.approx(4.228 / 3.785, rel=0.05)
