"""Jobs that are told to a framework, read back, and compared."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.exporters.plans import spelled_out
from simulator.importers.assembly import Given


def imported(read: Any, text: str, name: str, **given: Any) -> Job:
    """The job of an exported text, read as a file of that name."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        job, report = read(path, Given(**given))
        assert not report.unsupported
        return job


def assert_same(job: Job, other: Job) -> None:
    """Same model, batch and GPUs, and plans that mean the same."""
    assert job.model == other.model
    assert job.batch == other.batch
    assert job.cluster == other.cluster
    assert spelled_out(job) == spelled_out(other)


def job_with(model: object = "llama3.1-8b", **plan: Any) -> Job:
    """A job on one node; ``plan`` holds the fields of its plan."""
    return job_from_document(
        {
            "model": model,
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
            "batch": {"global": 32, "seq_len": 4096},
            "plan": plan,
        }
    )
