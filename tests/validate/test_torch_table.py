"""Kept runs are predicted anew and become a page."""

from __future__ import annotations

import json
from pathlib import Path

from reports.make.torch_runs.torch_page import page, read_runs
from simulator.validate.torch_run.predict import predict
from simulator.validate.torch_run.run_comparison import Measured, RankMeasured, TorchReport
from tests.validate.test_torch_strategies import job

ENVIRONMENT = {"device": "a CPU", "backend": "gloo", "torch": "2", "python": "3", "kernel": "6",
               "date": "2026-01-01", "load": "0.5"}  # fmt: skip


def keep(folder: Path, name: str, slower: float, **environment: str) -> None:
    given = job(2)
    predicted = predict(given)
    rank = RankMeasured(0, 0, predicted.phases_s[0], predicted.memory_bytes[0])
    measured = Measured([slower * predicted.step_s] * 3, [rank], {**ENVIRONMENT, **environment})
    document = TorchReport(given, measured, predicted, ["said"]).to_dict()
    path = folder / "runs" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")


def test_the_page_shows_every_kept_run_with_its_error(tmp_path):
    keep(tmp_path, "ddp-2-loopback", 2.0)
    keep(tmp_path, "ddp-2-50mbit", 1.0, link="50 Mbit/s")
    text = page(read_runs(tmp_path))
    assert "links of 50 Mbit/s" in text
    assert "at worst 50.0 %" in text
    assert "at worst 0.0 %" in text
    assert text.count("| ddp-2: small on 2 x a100-sxm-80gb, dp2 |") == 2
