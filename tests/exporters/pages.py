"""Which page do several tests look at?"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import simulator as sim
from simulator.described.load import job_from_document
from simulator.exporters.html.run_report import Run, write_compare_report, write_run_report
from simulator.results.views.verdict import Advice, Influence, WhatIf, verdict

HOSTILE = "<script>alert(1)</script> & </script> \"'{{ 7 * 7 }}"
TYPES = {"start_s": "<f8", "end_s": "<f8", "sheet": "<u4", "microbatch": "<i4"}


@cache
def result_of(
    *, layers: int = 16, gpus: int = 32, pp: int = 16, microbatches: int = 128, name: str = "deep"
) -> sim.Result:
    """A step of a deep pipeline of small layers."""
    model = {
        "name": name, "layers": layers, "hidden": 1024, "heads": 8, "ffn_hidden": 4096,
        "vocab": 32000,
    }  # fmt: skip
    document = {
        "model": model,
        "cluster": {"profile": "h100-sxm-80gb", "gpus": gpus},
        "batch": {"global": microbatches * gpus // (2 * pp), "micro": 1, "seq_len": 1024},
        "plan": {"tp": 2, "pp": pp},
    }
    return sim.simulate(job_from_document(document))


def advice_of(result: sim.Result) -> Advice:
    """What advice looks like, without simulating any."""
    what_ifs = (
        WhatIf("raising vpp from 1 to 2", {"plan.vpp": 2}, 0.062, 1.5, 2e9, 1.0, fits=True),
        WhatIf("lowering tp from 2 to 1", {"plan.tp": 1}, 0.01, 1.6, 99e9, 0.01, fits=False),
    )
    numbers = (Influence("kernels.gemm.bf16.efficiency", 0.08, "assumed", "nobody measured"),)
    return Advice(verdict(result, what_ifs), "", what_ifs, numbers)


def page_of(result: sim.Result, **options: Any) -> str:
    """The page of a step."""
    with TemporaryDirectory() as folder:
        write_run_report(result, result.job, advice_of(result), Path(folder) / "page", **options)
        return (Path(folder) / "page").read_text(encoding="utf-8")


def compare_page(runs: Sequence[Run]) -> str:
    """The page of several steps."""
    with TemporaryDirectory() as folder:
        write_compare_report(runs, Path(folder) / "page")
        return (Path(folder) / "page").read_text(encoding="utf-8")


def data_in(page: str) -> dict[str, Any]:
    """What the page's scripts read."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found.group(1))


def column(timeline: dict[str, Any], name: str) -> np.ndarray:
    """One column of the page's timeline."""
    return np.frombuffer(base64.b64decode(timeline[name]), dtype=TYPES[name])
