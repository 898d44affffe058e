"""Loads of links: bytes are conserved, rates are those of what runs."""

from __future__ import annotations

import numpy as np
import pytest

import simulator as sim
from simulator.described.load import job_from_document
from simulator.engine.timeline import Timeline
from simulator.program.ir import (
    Category,
    Collective,
    Kind,
    Operation,
    Program,
    RankClass,
    Stream,
    Traffic,
    Work,
)
from simulator.results.traffic import LinkLoad, class_traffic, link_loads

PORTS = {"scale_up": 100.0, "fabric": 10.0}


def area_bytes(load: LinkLoad, step_s: float) -> float:
    return float(np.sum(load.bytes_per_s * np.diff([*load.time_s, step_s])))


def timeline_of(*operations: tuple[Operation, float, float]) -> Timeline:
    classes = tuple(RankClass(f"stage {i}", i, 1, i) for i in range(2))
    program = Program(classes, ports=dict(PORTS))
    for operation, _, _ in operations:
        program.add(operation)
    starts, ends = zip(*((start, end) for _, start, end in operations), strict=True)
    return Timeline(program, np.asarray(starts), np.asarray(ends))


def reduction(num_bytes: float, stream: Stream = Stream.DATA_PARALLEL) -> Operation:
    traffic = Traffic({"fabric": num_bytes})
    work = Work(1.0, traffic=traffic)
    return Operation(Kind.ALL_REDUCE, ((0, stream),), work, Category.DATA_PARALLEL)


def test_rates_of_what_overlaps_add_up():
    timeline = timeline_of((reduction(8.0), 0.0, 4.0), (reduction(6.0, Stream.COMPUTE), 2.0, 4.0))
    [load] = link_loads(timeline)
    assert (load.rank_class, load.port, load.capacity_bytes_per_s) == (0, "fabric", 10.0)
    assert load.time_s.tolist() == [0.0, 2.0, 4.0]
    assert load.bytes_per_s.tolist() == [2.0, 5.0, 0.0]


def test_a_transfer_loads_the_port_of_its_sender_only():
    collective = Collective("boundary", Kind.SEND_RECV, "pp", 2, 5.0, {"fabric": 5.0})
    work = Work(1.0, traffic=Traffic({"fabric": 5.0}), collectives=(collective,))
    lanes = ((1, Stream.SEND_NEXT), (0, Stream.RECV_PREVIOUS))
    timeline = timeline_of((Operation(Kind.SEND_RECV, lanes, work, Category.PIPELINE), 0.0, 1.0))
    assert [(load.rank_class, load.bytes_per_s.max()) for load in link_loads(timeline)] == [
        (1, 5.0)
    ]


@pytest.mark.parametrize(
    "plan",
    [
        {"tp": 2, "pp": 4},
        {"tp": 4, "cp": 2, "pp": 2},
        {"pp": 4, "schedule": "zb-h1", "zero": 2, "stack": "torchtitan"},
    ],
)
def test_what_passes_a_port_is_what_the_traffic_lists(plan):
    document = {
        "model": {"base": "llama3.1-8b", "layers": 8},
        "cluster": {"profile": "h100-sxm-80gb", "gpus": 32},
        "batch": {"global": 32, "seq_len": 2048},
        "plan": plan,
    }
    result = sim.simulate(job_from_document(document))
    loads = {(load.rank_class, load.port): load for load in link_loads(result.timeline)}
    for index, listed in enumerate(class_traffic(result.timeline.program)):
        for port, num_bytes in listed.port_bytes.items():
            found = loads.get((index, port))
            carried = area_bytes(found, result.step_time_s) if found else 0.0
            assert carried == pytest.approx(num_bytes, rel=1e-6)


def test_no_rate_is_negative():
    timeline = timeline_of(*((reduction(0.1 * i), float(i), i + 1.0) for i in range(1, 50)))
    [load] = link_loads(timeline)
    assert load.bytes_per_s.min() == 0.0
    assert load.bytes_per_s[-1] == 0.0
