"""The simulator's numbers are cut into the phases that a real run has."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from simulator.validate.torch_run.predict import WAITING, predict
from simulator.validate.torch_run.recorded_trace import read_events
from simulator.validate.torch_run.run_comparison import (
    REST,
    Measured,
    RankMeasured,
    TorchReport,
    TracedSpan,
)
from tests.validate.test_torch_strategies import EXPERTS, job

JOBS = {
    "one rank": job(1),
    "ddp": job(2),
    "fsdp": job(2, zero=3),
    "tensor": job(2, tp=2),
    "experts": job(2, {"experts": EXPERTS}, ep=2),
    "pipeline": job(2, pp=2),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_phases_of_a_stage_sum_to_the_step(name):
    predicted = predict(JOBS[name])
    for phases in predicted.phases_s.values():
        assert sum(phases.values()) == pytest.approx(predicted.step_s)


def test_only_pipelines_wait_outside_of_their_passes():
    assert all(WAITING in phases for phases in predict(JOBS["pipeline"]).phases_s.values())
    assert WAITING not in predict(JOBS["ddp"]).phases_s[0]


def test_a_rank_alone_takes_the_time_of_what_it_computes():
    whole, alone = predict(JOBS["fsdp"]), predict(JOBS["fsdp"], alone=0)
    assert 0 < alone.step_s < whole.step_s
    assert sum(alone.phases_s[0].values()) <= alone.step_s * (1 + 1e-9)


def test_a_report_sets_phases_and_owners_side_by_side():
    predicted = predict(JOBS["one rank"])
    memory = predicted.memory_bytes[0]
    rank = RankMeasured(
        0,
        0,
        {name: 2 * seconds for name, seconds in predicted.phases_s[0].items()},
        {**memory, "peak_allocated": memory["peak_allocated"] + 8.0, "communication": 0.0},
        [TracedSpan("forward", False, 0, 0, 0.0, 1.0)],
    )
    step_s = predicted.step_s
    measured = Measured([step_s, 2 * step_s, 3 * step_s], [rank], {"date": "2026-01-01"})
    report = TorchReport(JOBS["one rank"], measured, predicted, ["a note"])
    assert report.step.error_pct == pytest.approx(-50)
    assert all(pair.error_pct == pytest.approx(-50) for pair in report.phases)
    rest = next(pair for pair in report.memory if pair.name == REST)
    assert rest.measured is not None
    assert rest.measured - rest.predicted == pytest.approx(8.0)
    document = report.to_dict()
    assert document["spread"] == pytest.approx(0.25)
    assert "spans" not in document["ranks"][0]
    assert Measured.from_dict(measured.to_dict()) == measured


def event(name: str, category: str, start_us: float, length_us: float, **args: float):
    return MappingProxyType(
        {"name": name, "cat": category, "ph": "X", "ts": start_us, "dur": length_us, "args": args}
    )


EVENTS = [
    event("ProfilerStep#0", "user_annotation", 1000.0, 500.0),
    event("step: forward 0 1", "user_annotation", 1100.0, 200.0),
    event("gloo:all_reduce", "user_annotation", 1300.0, 100.0),
    event("aten::mm", "cpu_op", 1110.0, 50.0),
    event("step: optimizer -1 0", "user_annotation", 1600.0, 50.0),
    *(
        {"name": "[memory]", "ph": "i", "ts": at, "args": {"Bytes": num_bytes}}
        for at, num_bytes in ((900.0, 64), (1110.0, 100), (1120.0, 50), (1130.0, -100))
    ),
]


def test_a_profile_becomes_the_spans_and_the_memory_of_its_step():
    traced = read_events(EVENTS, is_gpu=False)
    assert traced.spans == [
        TracedSpan("forward", False, 0, 1, pytest.approx(100e-6), pytest.approx(300e-6)),
        TracedSpan("all_reduce", True, -1, 0, pytest.approx(300e-6), pytest.approx(400e-6)),
    ]
    assert traced.peak_extra_bytes == 150


def test_kernels_of_nccl_are_communication_on_a_gpu():
    events = [
        event("ProfilerStep#0", "user_annotation", 0.0, 500.0),
        event("step: backward 2 0", "gpu_user_annotation", 10.0, 20.0),
        event("step: backward 2 0", "user_annotation", 5.0, 2.0),
        event("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "kernel", 20.0, 30.0),
        event("ncclDevKernel_SendRecv", "kernel", 60.0, 30.0),
    ]
    kinds = [span.kind for span in read_events(events, is_gpu=True).spans]
    assert kinds == ["backward", "reduce_scatter", "send_recv"]
    assert read_events(events, is_gpu=True).peak_extra_bytes is None


@pytest.mark.parametrize(("pp", "layers"), [(1, 4), (2, 8)])
def test_layers_that_sleep_take_nothing_but_their_sleep_and_the_bubble(pp, layers):
    """GPipe: (m + p - 1) (f + b) layers / p, and what the optimizer takes."""
    micro = 4
    sleepers = job(pp, {"layers": layers}, pp=pp, schedule="gpipe" if pp > 1 else None)
    sleepers = sleepers.replace({"batch.global": micro, "batch.micro": 1})
    found = predict(sleepers, layer_sleep_s=1.0)
    passes_s = (micro + pp - 1) * 3.0 * layers / pp
    assert found.step_s == pytest.approx(passes_s, abs=0.1)
    assert found.phases_s[0]["backward"] == pytest.approx(micro * 2.0 * layers / pp, abs=0.1)


@pytest.mark.parametrize("name", ["tensor", "experts"])
def test_layers_that_exchange_activations_take_their_sleep_on_top(name):
    """Three sleeps per layer and microbatch, one after another; all else stays."""
    exchanging = JOBS[name]
    awake, asleep = predict(exchanging), predict(exchanging, layer_sleep_s=1.0)
    sleeps = 3 * exchanging.model.layers * exchanging.microbatches
    assert asleep.step_s - awake.step_s == pytest.approx(sleeps, rel=1e-3)
