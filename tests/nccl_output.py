"""Output of nccl-tests and rccl-tests with made-up numbers, in their real layout.

The layout is that of nccl-tests src/util.cu (2.17 and later) and of src/common.cu before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from simulator.importers.nccl_tests.measured_collective import KIND_OF_NAME, bus_share

HEADING = (
    "#\n"
    "#                                                              out-of-place                "
    "       in-place          \n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     "
    "time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            "
    "(us)  (GB/s)  (GB/s)       \n"
)


@dataclass(frozen=True)
class Bench:
    """One run: which program on how many GPUs of how many hosts.

    Attributes:
        program: Collective as nccl-tests spells it.
        nodes, gpus_per_node: Where the ranks are; one process each.
        gpu: As the driver names it.
        time_us: Time out of place by message size.
    """

    program: str
    nodes: int = 1
    gpus_per_node: int = 8
    gpu: str = "NVIDIA H100 80GB HBM3"
    time_us: Callable[[int], float] = lambda size: 20.0 + size / 4e5

    @property
    def ranks(self) -> int:
        """GPUs that take part."""
        return self.nodes * self.gpus_per_node

    def rates(self, size: int) -> tuple[float, float, float]:
        """Time [us], algbw and busbw [GB/s]."""
        time_us = self.time_us(size)
        kind = KIND_OF_NAME.get(self.program, self.program)
        alg_bw = size / time_us * 1e-3
        return time_us, alg_bw, alg_bw * (bus_share(kind, self.ranks) or 1.0)


def table_row(bench: Bench, size: int, wrong: str = "0") -> str:
    """One line of the table; in place takes a tenth longer."""
    time_us, alg_bw, bus_bw = bench.rates(size)
    out = f"{time_us:9.2f}  {alg_bw:6.2f}  {bus_bw:6.2f}  {wrong:>5}"
    inside = f"{1.1 * time_us:9.2f}  {alg_bw / 1.1:6.2f}  {bus_bw / 1.1:6.2f}  {'0':>5}"
    return f"{size:12d}  {size // 4:12d}     float     sum      -1{out}{inside}\n"


def device_lines(bench: Bench) -> str:
    """The list of ranks."""
    return "".join(
        f"#  Rank {rank:2d} Group  0 Pid {4000 + rank:6d} on     host-{rank // bench.gpus_per_node}"
        f" device {rank % bench.gpus_per_node:2d} [0000:{rank:02x}:00] {bench.gpu}\n"
        for rank in range(bench.ranks)
    )


def settings_line(operations: int = 1) -> str:
    """The line with the options of the run."""
    return (
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 17179869184 step: 2(factor) warmup iters: 1 "
        f"iters: 20 agg iters: {operations} validation: 1 graph: 0 unalign: 0\n"
    )


def footer(program: str, errors: int = 0) -> str:
    """The summary that a run ends with."""
    verdict = "FAILED" if errors else "OK"
    return (
        f"# Out of bounds values : {errors} {verdict}\n# Avg bus bandwidth    : 123.456 \n"
        f"#\n# Collective test concluded: {program}_perf\n#\n"
    )


def text_output(bench: Bench, sizes: Iterable[int], *, rows: str | None = None) -> str:
    """All that one run prints; ``rows`` in place of the lines of the table."""
    table = "".join(table_row(bench, size) for size in sizes) if rows is None else rows
    return (
        "# nccl-tests version 2.17.1 nccl-headers=22803 nccl-library=22803\n"
        f"# Collective test starting: {bench.program}_perf\n{settings_line()}#\n# Using devices\n"
        f"{device_lines(bench)}{HEADING}{table}{footer(bench.program)}"
    )


def rccl_output(bench: Bench, sizes: Iterable[int]) -> str:
    """The same of rccl-tests, from one process on all GPUs."""
    devices = device_lines(bench)
    for rank in range(bench.ranks):
        devices = devices.replace(f"Pid {4000 + rank:6d}", "Pid   4000")
    return (
        f"{settings_line().replace('nGpus 1', f'nGpus {bench.ranks}')}#\n"
        f"rccl-tests: Version develop:0123abc\n# Using devices\n{devices}"
        "RCCL version : 2.22.3-develop:0123abc\nHIP version  : 6.4.0\nROCm version : 6.4.0\n"
        f"{HEADING}{''.join(table_row(bench, size) for size in sizes)}"
        "# Errors with asterisks indicate errors that have exceeded the maximum threshold.\n"
        f"{footer(bench.program)}"
    )


def json_output(bench: Bench, sizes: Iterable[int], secret: str = "") -> str:
    """What ``-J`` writes, with an environment that holds ``secret``."""

    def body(size: int) -> dict[str, float]:
        time_us, alg_bw, bus_bw = bench.rates(size)
        return {"time": time_us, "alg_bw": alg_bw, "bus_bw": bus_bw, "nwrong": 0.0}

    document = {
        "version": 2,
        "start_time": "2026-03-04 05:06:07",
        "args": [f"/opt/{secret}/{bench.program}_perf", "-J", "out.json"],
        "env": [f"TOKEN={secret}"],
        "nccl_version": 22803,
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "minimum_bytes": 8,
            "maximum_bytes": 17179869184,
            "step_factor": 2,
            "warmup_iters": 1,
            "iterations": 20,
            "aggregated_iterations": 1,
            "validation": 1,
            "graph": 0,
            "blocking_collectives": "false",
            "parallel_init": "false",
            "devices": [
                {
                    "rank": rank,
                    "group": 0,
                    "pid": 4000 + rank,
                    "hostname": f"host-{rank // bench.gpus_per_node}",
                    "device": rank % bench.gpus_per_node,
                    "device_hex": f"0000:{rank:02x}:00",
                    "device_info": bench.gpu,
                }
                for rank in range(bench.ranks)
            ],
        },
        "results": [
            {
                "size": size,
                "count": size // 4,
                "type": "float",
                "redop": "sum",
                "root": "    -1",
                "out_of_place": body(size),
                "in_place": body(size),
                "actual_iterations": 20,
                "experiment_name": "",
            }
            for size in sizes
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 123.4, "okay": "unchecked"},
        "errors": [],
        "end_time": "2026-03-04 05:16:07",
    }
    return json.dumps(document)
