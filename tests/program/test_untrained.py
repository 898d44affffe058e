"""What a reference or a teacher adds to a step: a forward alone (arXiv 2305.18290, section 4)."""

from __future__ import annotations

import pytest

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.program.build import build_program
from simulator.program.grid.stage_layers import stage_slices
from simulator.program.ir import Owner
from simulator.program.price.stage_cost import StageCosts
from simulator.program.run.untrained import untrained_pass
from simulator.program.states.resident import slice_parameters
from simulator.results.simulation import run_step
from simulator.schedule import Phase

SIZES = {"layers": 4, "hidden": 512, "heads": 8, "ffn_hidden": 2048, "vocab": 8192}
LORA = {"rank": 8, "targets": "all"}


def a_job(*, gpus: int = 1, reference: object = None, **plan: object) -> Job:
    document = {
        "model": SIZES,
        "cluster": {"profile": "h100-sxm-80gb", "gpus": gpus},
        "batch": {"global": 4 * gpus, "micro": 2, "seq_len": 1024},
        "plan": {"stack": "torch", "zero": 0, **plan},
    }
    return job_from_document(document | ({"reference": reference} if reference else {}))


def weights(job: Job) -> float:
    (rank_class,) = build_program(job).classes
    return sum(size for owner, size in rank_class.resident if owner is Owner.WEIGHTS)


def test_a_reference_runs_forward_once_per_microbatch():
    plain, dpo = a_job(), a_job(reference="same")
    (run,) = stage_slices(plain, 1)
    forward_s = StageCosts(plain).work(run, Phase.FORWARD).seconds
    more_s = run_step(dpo, "replay").step_time_s - run_step(plain, "replay").step_time_s
    assert more_s == pytest.approx(2 * forward_s, rel=0.01)


@pytest.mark.parametrize(("zero", "share"), [(0, 1.0), (3, 1 / 4)])
def test_its_weights_lie_beside_the_others_and_are_sharded_as_they_are(zero, share):
    plain, dpo = (a_job(gpus=4, zero=zero, master_weights=False, reference=reference)
                  for reference in (None, "same"))  # fmt: skip
    (run,) = stage_slices(plain, 1)
    numel = slice_parameters(plain, run).total
    assert weights(dpo) - weights(plain) == pytest.approx(2 * numel * share)


def test_a_model_without_its_adapters_has_no_weights_of_its_own():
    plain, dpo = (a_job(lora=LORA, reference=each) for each in (None, "adapters-off"))
    assert weights(dpo) == weights(plain)
    assert run_step(dpo, "replay").step_time_s > run_step(plain, "replay").step_time_s


def test_nothing_of_a_reference_is_kept_for_backward():
    plain, dpo = (a_job(lora=LORA, reference=each) for each in (None, "adapters-off"))
    peaks = [run_step(job, "replay").memory[0].peak_allocated_bytes for job in (plain, dpo)]
    assert peaks[0] == peaks[1]


def test_a_teacher_leaves_its_logits_until_backward():
    """2 x 1024 tokens, 8192 logits of two bytes; no longer there when the next one runs."""
    operations = build_program(a_job(reference=SIZES | {"layers": 2})).operations
    logits = [
        dict(op.takes)[Owner.LOGITS] for op in operations if dict(op.takes).keys() == {Owner.LOGITS}
    ]
    assert logits == [2 * 1024 * 8192 * 2] * 2
    given = [op.gives.count((Owner.LOGITS, logits[0])) for op in operations]
    assert sum(given) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reference": "adapters-off"}, "needs adapters"),
        ({"reference": "same", "gpus": 2, "pp": 2}, "plan.pp"),
        ({"reference": "no-such-model"}, "no such name"),
        ({"reference": SIZES | {"heads": 1}, "gpus": 2, "tp": 2}, "divide"),
    ],
)
def test_what_is_not_modelled_is_refused(changes, said):
    with pytest.raises(InputError, match=said):
        a_job(**changes)


@pytest.mark.parametrize(("bandwidth", "waits"), [("1 GB/s", True), ("450 GB/s", False)])
def test_a_sharded_reference_takes_as_long_as_its_gathers_where_these_take_longer(bandwidth, waits):
    """Two bytes of each weight, seven eighths of them from other ranks."""
    job = a_job(gpus=8, zero=3, reference="same").replace(
        {"cluster.network.scale_up.bandwidth": bandwidth}
    )
    forward, gathered = (untrained_pass(each) for each in (job.replace({"plan.zero": 0}), job))
    assert forward is not None
    assert gathered is not None
    parts = gathered.work.parts
    assert gathered.work.seconds == pytest.approx(sum(part.seconds for part in parts))
    assert [part.name for part in parts if part.name == "gather"] == ["gather"] * waits
    if waits:
        (run,) = stage_slices(job, 1)
        sent_s = 2 * slice_parameters(job, run).total * 7 / 8 / 1e9
        assert forward.work.seconds < sent_s <= gathered.work.seconds < 2 * sent_s
