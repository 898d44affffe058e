"""Which profile describes a computer that trains on its processor?

No data sheet says what a processor reaches in each number format, so the best measured
rates stand as its peaks, and shares are shares of those. All cores work on one operation
at a time, so there is one multiprocessor. The links are a start for ``calibrate
collectives``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from simulator.errors import InputError
from simulator.units import format_quantity
from simulator.validate.kernel_rows import KernelRow

_IN_ITS_THREAD = '{kind: published, reference: "torch computes in the thread that calls it"}'
_ASSUMED = "{kind: assumed, reference: %s}"
_FORMATS = ("fp32", "bf16", "fp16")
_MOST_RANKS = 16
"""Processes that may share the computer as ranks."""


def processor_profile_text(
    name: str, processor: str, memory_bytes: int, rows: Sequence[KernelRow], reference: str
) -> str:
    """A profile whose peaks are the best rates of the rows; its kernels are not fitted yet.

    Args:
        name: Of the profile.
        processor: Words for its description.
        memory_bytes: Of the computer.
        rows: Measured kernels, products in fp32 and a copy among them.
        reference: Source of everything measured.

    Raises:
        InputError: The rows lack what a profile cannot be without.
    """
    peaks = _peaks_flop_per_s(rows)
    copies = [row for row in rows if row.text("op") == "stream_copy"]
    bandwidth = max((row.number("gbps") or 0.0 for row in copies), default=0.0)
    if "fp32" not in peaks or not bandwidth:
        rule = "no fp32 product or no copy of memory was measured"
        raise InputError.single("--minutes", rule, hint="give it more time, with --resume")
    measured = f"{{kind: measured, reference: {json.dumps(f'best rate of {reference}')}}}"
    rate = format_quantity(_three_digits(bandwidth * 1e9), "bytes_per_s")
    # A message is copied into the system and out of it.
    loopback = format_quantity(_three_digits(bandwidth * 1e9 / 2), "bytes_per_s")
    memory = format_quantity(memory_bytes, "bytes")
    lines = [
        f"name: {name}",
        f"description: {json.dumps(f'{processor}: torch on the processor, ranks on one computer')}",
        "",
        "device:",
        f"  source: {_ASSUMED % json.dumps('not told by any measurement, and of no influence')}",
        f"  memory: {{value: {memory}, source: {{kind: measured, reference: operating system}}}}",
        f"  memory_bandwidth: {{value: {rate}, source: {measured}}}",
        "  peak:",
        f"    source: {measured}",
        *(
            f"    {dtype}: {format_quantity(_three_digits(peak), 'flop_per_s')}"
            for dtype, peak in peaks.items()
        ),
        "  sm_count: 1",
        "  l2_cache: 32 MiB",
        "  boost_clock: 3 GHz",
        "  power: 100 W",
        "  context: 0 B",
        f"  launches_itself: {{value: true, source: {_IN_ITS_THREAD}}}",
        "",
        "kernels:",
        f"  source: {_ASSUMED % json.dumps('a start for the fit')}",
        "  gemm:",
    ]
    for dtype in peaks:
        lines += [
            f"    {dtype}:",
            "      efficiency: 0.8",
            "      tile_half: 16",
            "      k_ramp: 32",
            "      memory_efficiency: 0.8",
            "      floor: 10 us",
        ]
    lines += [
        "  flash_attention:",
        "    forward_efficiency: 0.5",
        "    backward_efficiency: 0.4",
        "    softmax_dim: 32",
        "    kv_ramp: 64",
        "    tail: 0",
        "    floor: 20 us",
        "  memory_efficiency: 0.8",
        "  memory_floor: 5 us",
        "  row_reduction_efficiency: 0.5",
        "  launch: 5 us",
        "  sustained_clock: 1.0",
        "",
        "network:",
        f"  source: {_ASSUMED % json.dumps('loopback; measure it with calibrate collectives')}",
        "  library: gloo",
        f"  gpus_per_node: {_MOST_RANKS}",
        "  scale_up:",
        "    kind: nvswitch",
        f"    gpus: {_MOST_RANKS}",
        f"    bandwidth: {loopback}",
        "    efficiency: 0.25",
        "    latency: 200 us",
        "    bulk_latency: 300 us",
        "    launch: 100 us",
        "    low_latency_share: 0.5",
        "    pipeline_fill: 0.4",
        f"    local_copy: {loopback}",
        "    sm_count: 0",
        "  fabric:",
        "    kind: ethernet",
        "    nics_per_node: 1",
        "    nic: 10 Gbit/s",
        "    efficiency: 0.8",
        "    latency: 50 us",
        "    bulk_latency: 100 us",
        "    low_latency_share: 0.15",
        "    pipeline_fill: 0.4",
        "    tree_piece: 1500 kB",
        "",
        "host:",
        f"  source: {_ASSUMED % json.dumps('the processor is the device: the same memory')}",
        f"  memory: {memory}",
        f"  pcie: {rate}",
        "",
    ]
    return "\n".join(lines)


def _peaks_flop_per_s(rows: Sequence[KernelRow]) -> Mapping[str, float]:
    best: dict[str, float] = {}
    for row in rows:
        rate = row.number("tflops")
        if rate:
            best[row.text("dtype")] = max(best.get(row.text("dtype"), 0.0), rate * 1e12)
    return {dtype: best[dtype] for dtype in _FORMATS if dtype in best}


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")
