"""Does the studio open only what its page can show?"""

from __future__ import annotations

import json

import pytest

from simulator.described.load import profile_file


def test_a_job_with_a_profile_of_its_own_is_refused_before_the_page_opens(clustersim, tmp_path):
    pytest.importorskip("uvicorn", reason="uvicorn is not installed (extra studio)")
    (tmp_path / "mine.yaml").write_text(profile_file("h100-sxm-80gb").read_text("utf-8"), "utf-8")
    job = tmp_path / "job.yaml"
    state = {"profile": "mine.yaml", "gpus": 8}
    batch = {"global": 8, "seq_len": 2048}
    job.write_text(json.dumps({"model": "llama3.2-1b", "cluster": state, "batch": batch}))
    refused = clustersim("studio", job, "--no-browser", "--port", 0)
    assert refused.code == 2
    assert "names a file, but the studio reads no files" in refused.err
