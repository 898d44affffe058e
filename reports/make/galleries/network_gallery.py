"""What do systems, placements and collectives look like, for people who only read?

One page with drawings of systems, maps of ranks, collectives chunk by chunk, and bus
bandwidth as measured and predicted. ``python -m reports.make.galleries.network_gallery DIR
TABLE.csv`` writes it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.make.galleries.small_bitmap import save_small
from simulator.described.load import job_from_document, load_profile
from simulator.engine.chunked import ChunkedCollective, simulate_collectives
from simulator.plots.bus_bandwidth import build_bus_bandwidth_figure
from simulator.plots.machines.chunk_steps import build_chunk_steps_figure
from simulator.plots.machines.placement import build_placement_figure
from simulator.plots.machines.system import build_system_figure
from simulator.program.grid.placement import placement
from simulator.validate.measured_bandwidths import bus_bandwidths

SYSTEMS = ("h100-sxm-80gb", "gb200-nvl72", "dgx1-v100-32gb", "mi300x", "l40s", "rtx-4090")
"""One system of each kind of scale-up links, and one consumer card."""

MEASURED = ("H100-SXM5-80GB", "B200-SXM", "GB200", "A100-SXM4-40GB", "MI300X", "V100-SXM2")
"""Systems of the table whose bus bandwidth is shown."""

_FOUR_PER_NODE = {
    "gpus_per_node": 4, "scale_up": {"gpus": 4}, "fabric": {"nics_per_node": 4},
}  # fmt: skip

PLACEMENTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "32-workers": (
        "Eight nodes of four GPUs, tensor parallelism inside a node, two copies, four stages: "
        "the 3D-parallel mapping that DeepSpeed's overview draws.",
        {
            "model": "llama3.1-70b",
            "cluster": {"profile": "a100-sxm-80gb", "gpus": 32, "network": _FOUR_PER_NODE},
            "batch": {"global": 32, "seq_len": 4096},
            "plan": {"tp": 4, "pp": 4},
        },
    ),
    "pipeline-before-data": (
        "Another rank order, `tp-cp-ep-pp-dp`: the stages of a copy are neighbours, and the "
        "copies are far apart.",
        {
            "model": "llama3.1-70b",
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 64},
            "batch": {"global": 64, "seq_len": 8192},
            "plan": {"tp": 4, "pp": 4, "cp": 2, "rank_order": "tp-cp-ep-pp-dp"},
        },
    ),
    "racks": (
        "A mixture of experts on racks of 72: most expert groups stay inside a rack.",
        {
            "model": "deepseek-v3",
            "cluster": {"profile": "gb200-nvl72", "gpus": 2304},
            "batch": {"global": 4608, "seq_len": 4096},
            "plan": {"pp": 8, "ep": 32},
        },
    ),
    "16384-gpus": (
        "16,384 GPUs: what repeats is folded. Stages are far apart, copies are near.",
        {
            "model": "llama3.1-405b",
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 16384},
            "batch": {"global": 2048, "seq_len": 8192},
            "plan": {"tp": 8, "pp": 16},
        },
    ),
}
"""Maps of ranks by file name: what there is to see, and the job."""

RINGS = {
    "ring-all-reduce": ("ring_all_reduce", 4),
    "tree-all-reduce": ("tree_all_reduce", 8),
    "all-to-all": ("pairwise_all_to_all", 6),
}
"""Collectives shown step by step, by file name: the algorithm, and ranks."""

_MESSAGE_BYTES, _LINK_BYTES_PER_S, _HOP_S = 64 * 2**20, 50e9, 5e-6

PAGE = "README.md"


def write_network_gallery(folder: Path, table: Path) -> Iterator[Path]:
    """Write the page and its pictures into a folder; yields each file when it is there.

    Args:
        folder: Made if it is not there.
        table: Measured collectives, see :func:`.validate_collectives`.

    Raises:
        InputError: The table cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in SYSTEMS:
        yield save_small(build_system_figure(load_profile(name)), folder / f"system-{name}.png")
    for name, (_, document) in PLACEMENTS.items():
        figure = build_placement_figure(placement(job_from_document(document)))
        yield save_small(figure, folder / f"placement-{name}.png", colors=256)
    for name, (algorithm, ranks) in RINGS.items():
        one = ChunkedCollective(algorithm, _MESSAGE_BYTES, range(ranks))
        timeline = simulate_collectives([one], _LINK_BYTES_PER_S, _HOP_S)[0]
        figure = build_chunk_steps_figure(one, timeline, _LINK_BYTES_PER_S)
        yield save_small(figure, folder / f"{name}.png")
    measured = bus_bandwidths(table)
    for gpu in MEASURED:
        figure = build_bus_bandwidth_figure(measured[gpu], f"{gpu}: bus bandwidth of collectives")
        yield save_small(figure, folder / f"bus-{gpu.lower()}.png")
    page = folder / PAGE
    page.write_text(gallery_page(), encoding="utf-8")
    yield page


def gallery_page() -> str:
    """The page as Markdown."""
    parts = [
        _INTRODUCTION,
        "## Systems",
        "Inside a node or rack, and between them. Rates are those of the data sheet, one way; "
        "large rings get the share that is written below. Draw any profile with "
        "`clustersim profile show PROFILE --plot FILE`.",
        *(f"![{name}](system-{name}.png)" for name in SYSTEMS),
        "## Who sits where",
        "Nodes are boxes, GPUs are cells, and dots mark the ranks that rank 0 talks to. Draw any "
        "job with `clustersim placement JOB.yaml --plot FILE`; `--set plan.rank_order=...` "
        "numbers the ranks in another order.",
        *(f"{text}\n\n![{name}](placement-{name}.png)" for name, (text, _) in PLACEMENTS.items()),
        "## Chunk by chunk",
        "Numbers count the ranks whose contribution a piece of the buffer holds. Show any of them "
        "with `clustersim collective show ALGORITHM --ranks N [--plot FILE]`.",
        *(f"![{name}]({name}.png)" for name in RINGS),
        "## Bus bandwidth, measured and predicted",
        "Dots are rows of `reports/data/collectives_open.csv`; the line is the prediction with the "
        "one set of parameters of the system's profile and fabric. Draw any table with "
        "`clustersim validate collectives TABLE.csv --plot DIR`.",
        *(f"![{gpu}](bus-{gpu.lower()}.png)" for gpu in MEASURED),
    ]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """\
# Networks

Drawn from the shipped profiles by `make network`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and its pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where the page and its pictures go")
    parser.add_argument("table", type=Path, help="measured collectives (CSV)")
    options = parser.parse_args(arguments)
    for path in write_network_gallery(options.folder, options.table):
        sys.stderr.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
