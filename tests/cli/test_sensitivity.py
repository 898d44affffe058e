"""clustersim sensitivity: a table, a picture, and what to calibrate first."""

from __future__ import annotations

import json


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
