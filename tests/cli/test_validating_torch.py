"""clustersim validate torch: one rank of many, alone in this process."""

from __future__ import annotations

import json

import pytest

JOB = """
model: {name: small, layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn_hidden: 128, vocab: 256}
cluster: {profile: a100-sxm-80gb, gpus: 4}
batch: {global: 4, seq_len: 32}
plan: {stack: torch, precision: fp32, zero: 3}
"""
WORDS = ("--backend", "fake", "--steps", "2")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.usefixtures("one_thread")
def test_both_sides_are_printed_kept_and_drawn(clustersim, write, tmp_path):
    kept, picture = tmp_path / "kept.json", tmp_path / "timeline.svg"
    words = ("--out", kept, "--plot", picture, "--profile", "v100-sxm2-32gb")
    outcome = clustersim("validate", "torch", write(JOB), *WORDS, *words)
    assert outcome.code == 0, outcome.err
    assert "v100-sxm2-32gb" in outcome.out
    for name in ("step", "forward", "backward", "optimizer states", "peak allocated"):
        assert name in outcome.out
    document = json.loads(kept.read_text(encoding="utf-8"))
    assert len(document["step_s"]) == 2
    assert document["step"]["measured"] > 0
    drawn = picture.read_text(encoding="utf-8")
    assert "<svg" in drawn


@pytest.mark.usefixtures("one_thread")
def test_json_goes_to_stdout_alone(clustersim, write):
    outcome = clustersim("validate", "torch", write(JOB), *WORDS, "--rank", "3", "--json")
    document = json.loads(outcome.out)
    assert {row["name"] for row in document["phases_s"]} == {"forward", "backward", "optimizer"}
    assert document["environment"]["backend"] == "fake"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rank", "4"), "must be below the job's 4 ranks"),
        (("--shaped", "200"), "has no unit"),
        (("--shaped", "0 Mbit/s"), "must be above zero"),
        (("--shaped", "200 Mbit/s", "--backend", "fake"), "sends nothing"),
        (("--set", "plan.zero=2", "--backend", "gloo"), "has no ZeRO 2"),
        (("--backend", "nccl"), "--backend = 'nccl'"),
    ],
)
def test_what_cannot_be_run_is_said(clustersim, write, words, said):
    outcome = clustersim("validate", "torch", write(JOB), *words)
    assert outcome.code == 2
    assert said in outcome.err
    assert not outcome.out


def test_another_number_of_ranks_than_the_job_has_is_said(clustersim, write, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    outcome = clustersim("validate", "torch", write(JOB), "--backend", "gloo")
    assert outcome.code == 2
    assert "must equal the 2 ranks that torchrun started" in outcome.err
