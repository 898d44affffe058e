"""Bubble rates as the zero-bubble paper prints them, at the pass times that it prints.

``reports/data/zero_bubble_rates.csv`` holds tables 5 and 9 of arXiv 2401.10241: for every run
times [ms] of the passes and of a transfer, and the share of the longest rank's time, from its own
start to its own end, in which it idles. Digits are compared as printed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.schedule import Order, Phase, schedule_order
from simulator.schedule.info import PassCosts
from simulator.schedule.orders.zero_bubble_search import searched_order
from tests.csv_files import read_rows

F, B, I, W = (  # noqa: E741
    Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT,
)  # fmt: skip
SEQ_LEN = 1024
MANY_MICROBATCHES = 100
TABLE = Path(__file__).parents[2] / "reports" / "data" / "zero_bubble_rates.csv"
ROWS = read_rows(TABLE)
CASES = [
    pytest.param(
        row,
        id=f"{row['model']}-{row['microbatches']}",
        marks=[pytest.mark.slow] if int(row["microbatches"]) >= MANY_MICROBATCHES else [],
    )
    for row in ROWS
]


def idle_share(order: Order, costs: PassCosts) -> float:
    """Share of the longest time between a rank's own first start and last end."""
    ended: dict[tuple[Phase, int, int], float] = {}
    clock, started = [0.0] * len(order), [-1.0] * len(order)
    todo = [list(reversed(slots)) for slots in order]
    while any(todo):
        before = sum(map(len, todo))
        for rank, slots in enumerate(todo):
            while slots:
                phase, _, microbatch, _ = slots[-1]
                wave = F if phase is F else I
                other = rank + {F: -1, I: 1, B: 1}.get(phase, 0)
                travels = other != rank and 0 <= other < len(order)
                if travels and (wave, other, microbatch) not in ended:
                    break
                sent_at = ended[wave, other, microbatch] if travels else 0.0
                arrives = sent_at + costs.transfer_s(other, rank) if travels else 0.0
                start = max(clock[rank], arrives)
                started[rank] = start if started[rank] < 0 else started[rank]
                clock[rank] = start + costs.slot_s(slots.pop())
                if phase is not W:
                    ended[wave, rank, microbatch] = clock[rank]
        assert sum(map(len, todo)) < before
    longest = max(end - start for start, end in zip(started, clock, strict=True))
    busy = max(sum(map(costs.slot_s, slots)) for slots in order)
    return 1 - busy / longest


def costs_of(row: dict[str, str]) -> PassCosts:
    """Every stage alike; 32 of 34 h + 5 a s bytes per token wait for the weight gradient."""
    stages, hidden = int(row["stages"]), int(row["hidden"])
    forward, inputs, weights = (
        float(row[name]) for name in ("forward", "input_gradient", "weight_gradient")
    )
    times = {F: forward, I: inputs, W: weights, B: inputs + weights}
    seconds = {(phase, s): time for phase, time in times.items() for s in range(stages)}
    saved = 34 * hidden + 5 * int(row["heads"]) * SEQ_LEN
    return PassCosts(
        seconds, lambda *_: float(row["transfer"]), [saved] * stages, [32 * hidden] * stages
    )


@pytest.mark.parametrize("row", CASES)
@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-h2"])
def test_orders_made_by_hand_idle_as_much_as_printed(row, name):
    order = schedule_order(name, int(row["stages"]), 1, int(row["microbatches"]))
    assert f"{idle_share(order, costs_of(row)):.4f}" == row[name]


@pytest.mark.parametrize("row", CASES)
@pytest.mark.parametrize(("name", "multiple"), [("zb-1p", 1), ("zb-2p", 2)])
def test_searched_orders_idle_as_much_as_printed(row, name, multiple):
    """Within the activations of p and 2p microbatches."""
    costs, stages = costs_of(row), int(row["stages"])
    limits = [multiple * stages * saved for saved in costs.saved_bytes]
    order = searched_order(stages, int(row["microbatches"]), costs, limits)
    assert f"{idle_share(order, costs):.4f}" == row[name]


def test_every_printed_run_is_compared():
    assert len(ROWS) == 12
    assert {row["model"] for row in ROWS} == {"gpt-1.5b", "gpt-6.2b", "gpt-14.6b", "gpt-28.3b"}
