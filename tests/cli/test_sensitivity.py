"""clustersim sensitivity: a table, a picture, and what to calibrate first."""

from __future__ import annotations

import json

import pytest

from simulator.api import load_job
from simulator.api.change_answers import SensitivityAnswer, change_text
from simulator.planning.changes.profile_numbers import Sensitivity


def test_the_command_names_what_to_calibrate_first(clustersim, job_file, tmp_path):
    picture = tmp_path / "tornado.png"
    outcome = clustersim("sensitivity", job_file, "--replay", "--top", "3", "--plot", picture)
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 2 + 3 + 1
    assert "without effect on this job" in outcome.err
    assert picture.stat().st_size > 10_000


def test_the_document_holds_every_number(clustersim, job_file):
    document = json.loads(clustersim("sensitivity", job_file, "--replay", "--json").out)
    fields = [number["field"] for number in document["numbers"]]
    assert len(fields) == len(set(fields)) > 50
    assert document["share"] == 0.1


@pytest.mark.parametrize(
    ("effect", "text"),
    [
        (0.02, "Calibrate first: host.layer_wait (assumed), which moves the step by up to 2.00 %."),
        (
            0.0049,
            "No assumed number matters: host.layer_wait (assumed) only moves the step by up to "
            "0.49 %.",
        ),
    ],
)
def test_what_hardly_moves_the_step_need_not_be_calibrated(effect, text):
    numbers = [
        Sensitivity("device.memory_bandwidth", "3 TB/s", "datasheet", 0.1, -0.1),
        Sensitivity("host.layer_wait", "1 us", "assumed", -effect, effect / 2),
    ]
    job = load_job("gpt2-1xa100")
    answer = SensitivityAnswer(job, 0.1, numbers)
    assert answer.calibration_text() == text
    assert text in answer.page().sentences
    assert SensitivityAnswer(job, 0.1, numbers[:1]).calibration_text() == ""


@pytest.mark.parametrize(
    ("change", "text"),
    [(0.0953, "+9.53 %"), (-0.0001, "-0.01 %"), (-0.00001, "0.00 %"), (0.0, "0.00 %")],
)
def test_a_change_that_rounds_to_nothing_has_no_sign(change, text):
    assert change_text(change) == text
