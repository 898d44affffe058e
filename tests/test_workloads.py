"""Do the shipped job files run, and do their results make sense?"""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.api import simulate
from simulator.described.documents import data_folder, read_yaml
from simulator.described.job import Batch, Job
from simulator.described.load import load_job
from simulator.described.plan.plan import Plan
from simulator.results.fit_probability import Fit

JOB_FILES = sorted(data_folder("workloads").glob("*.yaml"))

pytestmark = pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: path.stem)


def test_a_job_file_gives_a_plausible_step(path: Path):
    result = simulate(load_job(path), engine="replay")
    assert 0 < result.mfu < 1
    assert result.mfu <= result.hfu < 1
    assert 0 <= result.bubble_fraction < 0.5
    assert sum(result.breakdown_s.values()) == pytest.approx(result.step_time_s)
    assert result.tokens_per_s_per_gpu * result.step_time_s * result.job.cluster.gpus == (
        pytest.approx(result.job.batch.tokens)
    )


def test_a_job_file_may_fit_unless_its_name_says_otherwise(path: Path):
    """Published runs that used all of their memory are near even odds."""
    result = simulate(load_job(path), engine="replay")
    assert (result.fit is Fit.DOES_NOT_FIT) == ("does-not-fit" in path.stem)


def test_a_job_file_is_named_after_its_gpus(path: Path):
    job = load_job(path)
    family = job.cluster.profile.name.split("-sxm")[0].split("-hbm2e")[0].replace("-", "")
    assert f"{job.cluster.gpus}x{family}" in path.stem


def test_a_job_file_says_first_what_it_shows(path: Path):
    first_line = path.read_text(encoding="utf-8").splitlines()[0]
    assert first_line.startswith("# ")


def test_a_job_file_leaves_defaults_out(path: Path):
    document = read_yaml(path)
    job = load_job(path)
    assert _stated_defaults(document["plan"], Plan) == []
    assert _stated_defaults(document["batch"], Batch) == []
    assert isinstance(job, Job)


def _stated_defaults(block, spec) -> list[str]:
    defaults = {field.alias or name: field.default for name, field in spec.model_fields.items()}
    return [key for key, value in block.items() if defaults[key] == value]
