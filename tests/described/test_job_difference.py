"""Which fields differ, as the authors wrote them."""

from __future__ import annotations

from simulator.described.job import changed_fields
from simulator.described.load import job_from_document

DOCUMENT = {
    "model": "llama3.1-8b",
    "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
    "batch": {"global": 8, "seq_len": 1024},
    "plan": {"tp": 2},
}


def test_changed_and_added_fields_are_named_by_path_and_equal_ones_are_not():
    job = job_from_document(DOCUMENT)
    changed = job.replace(**{"plan.tp": 4, "plan.zero": 0})
    assert changed_fields(job, changed) == {"plan.tp": (2, 4), "plan.zero": (None, 0)}
    assert changed_fields(changed, job) == {"plan.tp": (4, 2), "plan.zero": (0, None)}
    assert changed_fields(job, job) == {}
