"""Orders against the plans of torch.distributed.pipelining 2.13, recorded in oracles/.

The file name says class, ranks (p), chunks (v) and microbatches (m). The last rank of 1F1B
is that of torch's runtime: the plan that torch prints numbers its forwards from 1.
"""

import re
from pathlib import Path

import pytest

from simulator.schedule import SCHEDULES, schedule_order
from simulator.schedule.unit_time import slot_times
from simulator.schedule.written import read_order, write_order

ORACLES = sorted((Path(__file__).parent / "oracles").glob("*.csv"))

OUR_NAME = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "LoopedBFS": "looped-bfs",
    "Interleaved1F1B": "interleaved-1f1b",
    "InterleavedZeroBubble": "zb-1p",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipev",
}


def _parts(path: Path) -> tuple[str, tuple[int, int, int]]:
    name, *sizes = re.fullmatch(r"(\w+)_p(\d+)_v(\d+)_m(\d+)", path.stem).groups()
    return OUR_NAME[name], tuple(map(int, sizes))


def test_every_torch_schedule_has_a_recorded_plan():
    assert {_parts(path)[0] for path in ORACLES} == set(OUR_NAME.values())


@pytest.mark.parametrize("path", ORACLES, ids=lambda path: path.stem)
def test_order_equals_torchs_plan(path):
    name, sizes = _parts(path)
    assert write_order(schedule_order(name, *sizes)) == path.read_text()


@pytest.mark.parametrize("path", ORACLES, ids=lambda path: path.stem)
def test_torchs_plan_read_and_written_is_unchanged(path):
    assert write_order(read_order(path.read_text())) == path.read_text()


# Class, p, v, m, makespan with F = I = W = 1 and free communication, activations held at
# once per rank: computed from torch's plans by a program independent of this one.
TORCH_TIMES = [
    ("gpipe", 4, 1, 3, 18, "3 3 3 3"),
    ("gpipe", 4, 1, 8, 33, "8 8 8 8"),
    ("gpipe", 8, 1, 32, 117, "32 32 32 32 32 32 32 32"),
    ("1f1b", 4, 1, 4, 21, "4 3 2 1"),
    ("1f1b", 8, 1, 8, 45, "8 7 6 5 4 3 2 1"),
    ("1f1b", 8, 1, 32, 117, "8 7 6 5 4 3 2 1"),
    ("looped-bfs", 2, 2, 2, 15, "4 4"),
    ("looped-bfs", 4, 4, 8, 105, "32 32 32 32"),
    ("interleaved-1f1b", 4, 2, 3, 30, "6 6 6 4"),
    ("interleaved-1f1b", 4, 2, 6, 45, "12 11 9 7"),
    ("interleaved-1f1b", 4, 2, 10, 69, "12 10 8 6"),
    ("interleaved-1f1b", 2, 4, 8, 99, "9 7"),
    ("interleaved-1f1b", 8, 4, 32, 405, "39 37 35 33 31 29 27 25"),
    ("zb-1p", 4, 1, 8, 27, "4 4 4 4"),
    ("zb-1p", 4, 2, 4, 27, "8 8 8 8"),
    ("zb-1p", 4, 2, 10, 63, "9 9 9 9"),
    ("zb-1p", 8, 2, 16, 103, "16 16 16 16 16 16 16 16"),
    ("zb-v", 2, 2, 2, 14, "3 4"),
    ("zb-v", 4, 2, 4, 30, "5 6 7 8"),
    ("zb-v", 8, 2, 16, 103, "16 16 16 16 16 16 16 16"),
    ("dualpipev", 2, 2, 4, 26, "5 5"),
    ("dualpipev", 4, 2, 16, 102, "9 9 9 9"),
    ("dualpipev", 8, 2, 32, 206, "17 17 17 17 17 17 17 17"),
]


@pytest.mark.parametrize(("name", "p", "v", "m", "makespan", "in_flight"), TORCH_TIMES)
def test_makespan_and_activations_are_those_of_torchs_plan(name, p, v, m, makespan, in_flight):
    times = slot_times(schedule_order(name, p, v, m), v, SCHEDULES[name].placement)
    assert times.makespan == makespan
    assert times.in_flight == [int(count) for count in in_flight.split()]
