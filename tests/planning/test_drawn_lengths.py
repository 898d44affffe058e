"""Do steps of drawn lengths take what steps of those lengths take?"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.described.job import Job
from simulator.described.load import job_from_document, load_job
from simulator.errors import InputError
from simulator.planning.drawn_lengths import Spread, drawn_steps, steps_of_lengths
from simulator.results.simulation import run_step


def a_job(lengths: Any, *, seq_len: int = 1024, micro: int = 2, **plan: Any) -> Job:
    return job_from_document(
        {
            "model": {"base": "llama3.1-8b", "layers": 2},
            "cluster": {"profile": "a100-sxm-80gb", "gpus": 2},
            "batch": {"global": 4 * micro, "micro": micro, "seq_len": seq_len, "lengths": lengths},
            "plan": {"stack": "torch", "zero": 0, **plan},
        }
    )


def test_equal_lengths_are_one_step_again_and_again():
    job = a_job({"values": [512]})
    drawn = drawn_steps(job, 20)
    step = run_step(job.replace({"batch.lengths": None, "batch.seq_len": 512}), "replay")
    assert drawn.step_time_s.p5 == drawn.step_time_s.p95
    assert drawn.step_time_s.mean == pytest.approx(step.step_time_s, rel=1e-6)
    assert drawn.peak_device_bytes.mean == pytest.approx(step.peak_device_bytes, rel=1e-6)
    assert drawn.filled_share == 1.0


def test_a_share_of_long_sequences_is_that_share_of_steps():
    """One microbatch of one sequence per rank and step, half of them long."""
    job = a_job({"values": [128, 1024]}, micro=1).replace({"batch.global": 2})
    drawn = drawn_steps(job, 400)
    short, long = (
        run_step(job.replace({"batch.lengths": None, "batch.seq_len": n}), "replay").step_time_s
        for n in (128, 1024)
    )
    # The slower of two ranks is short in a quarter of the steps.
    assert drawn.step_time_s.mean == pytest.approx(0.25 * short + 0.75 * long, rel=0.05)
    assert drawn.step_time_s.p5 == pytest.approx(short, rel=1e-6)
    assert drawn.step_time_s.p95 == pytest.approx(long, rel=1e-6)


def test_sorting_by_length_before_cutting_into_microbatches_pads_less():
    lengths = {"lognormal": {"median": 200, "sigma": 1.0}}
    padded, bucketed = (
        drawn_steps(a_job({**lengths, "layout": layout}), 50) for layout in ("padded", "bucketed")
    )
    assert bucketed.filled_share > padded.filled_share
    assert bucketed.step_time_s.mean < padded.step_time_s.mean


def test_packed_documents_of_equal_length_are_that_length_to_attention():
    job = a_job({"values": [256], "layout": "packed"})
    drawn = drawn_steps(job, 5)
    step = run_step(job.replace({"batch.lengths": None, "batch.document_len": 256}), "replay")
    assert drawn.step_time_s.mean == pytest.approx(step.step_time_s, rel=1e-6)


def test_the_same_seed_gives_the_same_steps():
    first, again, other = (
        drawn_steps(a_job({"lognormal": {"median": 300, "sigma": 0.7}, "seed": seed}), 30)
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_quantiles_are_of_the_sorted_values():
    assert Spread.of([float(n) for n in range(101)]) == Spread(50.0, 5.0, 50.0, 95.0)


def test_lengths_may_stand_in_a_file(tmp_path):
    (tmp_path / "lengths.txt").write_text("100\n200\n\n300\n", encoding="utf-8")
    job = a_job({"values": [1]})
    document = {**job.document, "batch": {**job.document["batch"]}}
    document["batch"]["lengths"] = {"file": str(tmp_path / "lengths.txt")}
    assert load_job(document).batch.lengths.values == (100, 200, 300)


@pytest.mark.parametrize(
    ("lengths", "plan", "path"),
    [(None, {}, "batch.lengths"), ({"values": [512]}, {"pp": 2}, "batch.lengths")],
)
def test_what_cannot_be_drawn_is_refused(lengths, plan, path):
    with pytest.raises(InputError) as caught:
        drawn_steps(a_job(lengths, **plan))
    assert caught.value.faults[0].path == path


def test_attention_inside_documents_costs_their_share():
    """Half as long documents have half of the scores."""
    job = a_job(None, seq_len=4096, micro=1)
    flop = [
        run_step(job.replace({"batch.document_len": length}), "replay").breakdown_s["forward"]
        for length in (4096, 1024)
    ]
    assert flop[1] < flop[0]


def test_steps_of_known_lengths_take_what_such_steps_take():
    job = a_job(None, micro=1)
    steps = [[[256.0, 256.0], [256.0, 256.0]], [[1024.0], [512.0]]]
    both, one = (
        run_step(job.replace({"batch.global": ranks, "batch.seq_len": n}), "replay").step_time_s
        for ranks, n in ((4, 256), (2, 1024))
    )
    assert steps_of_lengths(job, steps) == pytest.approx([both, one], rel=1e-6)
