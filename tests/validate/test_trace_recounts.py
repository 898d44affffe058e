"""Steps of ten kinds of traces, counted again: every microsecond by itself, by no code of ours.

A case says of each kernel whether it computes. The recount asks for each microsecond whether a
kernel computes in it, else whether one communicates, else whether the host launched the next
computing kernel later, and whether it was with its data loader then.
"""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.program.ir import Kind
from simulator.validate.measured_trace.account import IDLE, account
from simulator.validate.measured_trace.kernel_names import Wait
from simulator.validate.measured_trace.measured_step import read_step
from tests.validate.kineto import AUTOGRAD, Gpu, annotation, operator, write_trace

REAL = Path(__file__).parent / "ddp_2.trace.json.gz"
EVALUATE = "autograd::engine::evaluate_function: MmBackward0"
GEMM, NORM = "nvjet_hsh_256x128", "layer_norm_kernel"
NAMES = {
    "nccl": ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", {}),
    "rccl": ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
             {"Collective name": "allreduce"}),
    "deepep": ("void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*)", {}),
}  # fmt: skip

Kernel = tuple[str, float, float, float]
"""Name, or the key of an exchange; when it is launched, begins and ends [us]."""


def trace(steps: list[tuple[int, float, float, list[Kernel]]], loads=()) -> list[dict]:
    """Events of steps: number, begin and end of the host's range, and kernels."""
    gpu, events = Gpu(), []
    for number, begin, end, kernels in steps:
        events.append(annotation(f"ProfilerStep#{number}", begin, end - begin))
        events.append(operator("aten::mm", begin, 1.0))
        for name, launched, start, stop in kernels:
            full, args = NAMES.get(name, (name, {}))
            gpu.run(full, launched, start, stop - start, computes=name not in NAMES, **args)
    loaders = [annotation("enumerate(DataLoader)#_Iter.__next__", a, b - a) for a, b in loads]
    return [*events, *loaders, *gpu.events]


def recount(events: list[dict], number: int) -> Counter:
    """Microseconds of a step by what the GPU does in them."""
    launched = {e["args"]["correlation"]: e["ts"] for e in events if e["cat"].endswith("_runtime")}
    hosts = sorted(
        (e for e in events if e["name"].startswith("ProfilerStep")), key=lambda e: e["ts"]
    )
    kernels = [e for e in events if e["cat"] == "kernel"]
    loads = [(e["ts"], e["ts"] + e["dur"]) for e in events if "DataLoader" in e["name"]]

    def first(host: dict) -> float | None:
        own = [
            k["ts"]
            for k in kernels
            if host["ts"] <= launched[k["args"]["correlation"]] < host["ts"] + host["dur"]
        ]
        return min(own, default=None)

    starts = {h["name"]: first(h) for h in hosts if first(h) is not None}
    names = list(starts)
    place = names.index(f"ProfilerStep#{number}")
    begin = starts[names[place]]
    last = max(k["ts"] + k["dur"] for k in kernels)
    end = starts[names[place + 1]] if place + 1 < len(names) else last
    found = Counter()
    computing = sorted((k for k in kernels if k["args"]["computes"]), key=lambda k: k["ts"])
    for moment in range(int(begin), int(end)):
        running = [k for k in kernels if k["ts"] <= moment < k["ts"] + k["dur"]]
        following = next((k for k in computing if k["ts"] > moment), None)
        if any(k["args"]["computes"] for k in running):
            found["computes"] += 1
        elif running:
            found["exposed"] += 1
        elif following and launched[following["args"]["correlation"]] > moment:
            loading = any(a <= moment < b for a, b in loads)
            found["data_loader" if loading else "host"] += 1
        else:
            found["idle"] += 1
    return found


def booked(path: Path, number: int) -> Counter:
    """The same in the account of a step [us]."""
    step, found = read_step(path, number), Counter()
    for (_, kind), seconds in account(step.spans, step.step_s).by_phase_s.items():
        if kind in {*Wait, IDLE}:
            found[str(kind)] += seconds * 1e6
        else:
            found["exposed" if kind in set(Kind) else "computes"] += seconds * 1e6
    return found


def streams(seed: int, steps: int, exchange: str, host_pace: float) -> list[dict]:
    """Random steps of a computing and a communicating stream; the host runs ahead or behind."""
    draw, described = random.Random(seed), []
    clock, host, message_free = 100.0, 0.0, 0.0
    for number in range(steps):
        begin, kernels = host, []
        for _ in range(60):
            host += draw.randint(1, 2 * round(host_pace))
            clock = max(clock, host + 3) + draw.choice([0, 0, 1, 7])
            length = draw.randint(2, 40)
            kernels.append((draw.choice([GEMM, NORM]), host, clock, clock + length))
            clock += length
            if draw.random() < 0.3:
                host += 1
                start = max(host + 3, message_free)
                message_free = start + draw.randint(5, 120)
                kernels.append((exchange, host, start, message_free))
                clock = max(clock, message_free) if draw.random() < 0.5 else clock
        host += 1
        described.append((number, begin, host, kernels))
    return trace(described)


CASES = {
    "two streams that overlap": (
        trace([(0, 0, 100, [(GEMM, 10, 100, 300), (NORM, 20, 200, 350), ("nccl", 30, 320, 500)]),
               (1, 100, 200, [(GEMM, 110, 620, 700)])]), 0),
    "a reduction that runs into the next step": (
        trace([(0, 0, 100, [(GEMM, 10, 100, 200), ("nccl", 20, 150, 420)]),
               (1, 100, 200, [(GEMM, 110, 300, 350), (GEMM, 120, 450, 500)]),
               (2, 200, 300, [(GEMM, 210, 600, 650)])]), 1),
    "a step without kernels": (
        trace([(0, 0, 100, [(GEMM, 10, 100, 200)]), (1, 100, 150, []),
               (2, 150, 300, [(GEMM, 160, 400, 450)])]), 0),
    "a slow data loader": (
        trace([(0, 0, 400, [(GEMM, 10, 20, 60), (GEMM, 300, 310, 380)]),
               (1, 400, 900, [(GEMM, 800, 810, 880)])], loads=[(50, 250), (410, 790)]), 0),
    "a host that is slower than its GPU": (streams(1, 3, "nccl", 30), 1),
    "a host that runs ahead": (streams(2, 3, "nccl", 2), 1),
    "tokens of experts on their way": (streams(3, 3, "deepep", 10), 1),
    "RCCL, which names no collective": (streams(4, 3, "rccl", 10), 1),
    "a thousand kernels, packed": (streams(5, 12, "nccl", 15), 7),
    "the last step of a trace": (streams(6, 2, "nccl", 12), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_account_of_a_step_is_what_a_recount_of_every_microsecond_finds(name, tmp_path):
    events, number = CASES[name]
    expected = recount(events, number)
    found = booked(write_trace(tmp_path / "t.json.gz", events), number)
    assert dict(found) == pytest.approx(dict(expected), abs=0.005 * sum(expected.values()))


def nsight(path: Path, events: list[dict]) -> Path:
    """The same trace as Nsight Systems exports it."""
    with sqlite3.connect(path) as database:
        database.executescript("""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
                correlationId INTEGER, demangledName INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER,
                globalTid INTEGER, correlationId INTEGER);
            CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER,
                globalTid INTEGER);
            CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
            INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100 80GB HBM3');
        """)
        names = {name: place for place, name in enumerate({e["name"] for e in events})}
        database.executemany("INSERT INTO StringIds VALUES (?, ?)",
                             [(place, name) for name, place in names.items()])  # fmt: skip
        for event in events:
            span = round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)
            correlation = event["args"].get("correlation")
            if event["cat"] == "kernel":
                row = (*span, 0, correlation, names[event["name"]])
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?)", row)
            elif event["cat"] == "cuda_runtime":
                row = (*span, event["tid"], correlation)
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?)", row)
            else:
                text = event["name"].replace("ProfilerStep#", "step ")
                as_id = text.startswith("aten")
                row = (*span, None if as_id else text, names.get(text), event["tid"])
                database.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?)", row)
    database.close()
    return path


@pytest.mark.parametrize("name", ["a host that runs ahead", "a slow data loader"])
def test_an_export_of_nsight_systems_says_the_same_as_a_trace(name, tmp_path):
    events, number = CASES[name]
    traced = read_step(write_trace(tmp_path / "t.json", events), number)
    exported = read_step(nsight(tmp_path / "t.sqlite", events), number)
    assert exported.device == "NVIDIA H100 80GB HBM3"
    assert [s[:2] for s in exported.spans] == [s[:2] for s in traced.spans]
    for ours, theirs in zip(exported.spans, traced.spans, strict=True):
        assert ours[2:] == pytest.approx(theirs[2:], abs=2e-9)


def test_another_database_is_refused_with_the_way_out(tmp_path):
    with sqlite3.connect(tmp_path / "t.sqlite") as database:
        database.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT 1 AS start")
    database.close()
    with pytest.raises(InputError, match="nsys export --type sqlite"):
        read_step(tmp_path / "t.sqlite")


def test_steps_without_kernels_are_left_out_and_said(tmp_path):
    path = write_trace(tmp_path / "t.json", CASES["a step without kernels"][0])
    step = read_step(path)
    assert list(step.numbers) == [0, 2]
    assert "steps that launch no kernel are left out: 1" in step.notes
    with pytest.raises(InputError, match="launch no kernel"):
        read_step(path, 1)


def test_a_late_reduction_is_of_the_phase_that_launched_it(tmp_path):
    events = [*CASES["a reduction that runs into the next step"][0],
              operator(EVALUATE, 15, 20, AUTOGRAD)]  # fmt: skip
    step = read_step(write_trace(tmp_path / "t.json", events), 1)
    [late] = [span for span in step.spans if span.kind is Kind.ALL_REDUCE]
    assert (late.phase, late.start_s, late.end_s) == ("backward", 0.0, pytest.approx(120e-6))


def test_a_real_cpu_step_is_covered_as_long_as_a_recount_says():
    events = json.loads(gzip.decompress(REAL.read_bytes()))["traceEvents"]
    step = read_step(REAL)
    host = next(e for e in events if e["name"] == f"ProfilerStep#{step.number}")
    begin, end = host["ts"], host["ts"] + host["dur"]
    covered = bytearray(int(end - begin) + 1)
    for event in events:
        waits = event["name"].startswith(("c10d::", "gloo:", "_c10d"))
        if event["cat"] == "cpu_op" and not waits:
            first = max(0, round(event["ts"] - begin))
            last = min(len(covered), round(event["ts"] + event["dur"] - begin))
            covered[first:last] = b"\1" * max(0, last - first)
    found = account(step.spans, step.step_s).by_phase_s
    kinds = {*Kind, *Wait, IDLE}
    busy_us = 1e6 * sum(seconds for (_, kind), seconds in found.items() if kind not in kinds)
    assert busy_us == pytest.approx(sum(covered), abs=0.005 * (end - begin))
