"""clustersim checks: what to make sure of before the run."""

from __future__ import annotations

import json


def test_checks_are_ranked_and_the_first_say_how_to_do_them(clustersim, job_file):
    outcome = clustersim("checks", job_file, "--top", "2")
    assert outcome.code == 0
    assert "what may be otherwise" in outcome.out
    assert outcome.out.count("To check: ") == 2
    assert "--top shows more" in outcome.err


def test_the_document_holds_every_check_with_its_fields(clustersim, job_file):
    document = json.loads(clustersim("checks", job_file, "--json").out)
    assert document["predicted_step_s"] > 0
    assert all(each["fields"] and each["check"] for each in document["checks"])
