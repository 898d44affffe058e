"""Is every measurement kept, every refusal explained, and every disturbance noticed?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from simulator.calibrate.gpu import measure_kernels as module
from simulator.calibrate.gpu.device_facts import DeviceFacts, device_facts
from simulator.calibrate.gpu.kernel_calls import Call, Timing
from simulator.calibrate.gpu.kernel_case import KernelCase
from simulator.calibrate.gpu.measure_kernels import (
    COLUMNS,
    DeviceFailedError,
    KernelJournal,
    measure_kernels,
)
from simulator.calibrate.gpu.system_calls import Measured
from simulator.errors import InputError
from simulator.validate.kernel_errors import validate_kernels
from tests.tiny import tiny_profile

CASES = [KernelCase("gemm", "fp32", 16, 16, 16 * step) for step in range(1, 6)]
Answer = Callable[[KernelCase], Sequence[float]]


@pytest.fixture
def facts() -> DeviceFacts:
    return device_facts("cpu")


def journal_at(path: Path, facts: DeviceFacts, *, resume: bool = False) -> KernelJournal:
    return KernelJournal.opened(path, facts.name, "test", resume=resume)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], list[str]]:
    """Let cases take what the test says; the list is what was measured."""

    def install(answer: Answer) -> list[str]:
        measured: list[str] = []

        def fake(case: KernelCase, stopwatch: object) -> Measured:
            samples = answer(case)
            measured.append(case.id)
            return Measured(Timing(samples), Call(lambda: None, flop=1e6))

        monkeypatch.setattr(module, "measured", fake)
        monkeypatch.setattr(module, "_WITNESS_EVERY_S", 0.0)
        return measured

    return install


def steady(case: KernelCase) -> Sequence[float]:
    return [1e-3] * 5


def test_an_undisturbed_device_gives_rows_and_nothing_to_say(tmp_path, facts, answers):
    answers(steady)
    journal = journal_at(tmp_path / "k.csv", facts)
    assert measure_kernels(CASES, facts, journal, seconds=6000) == []
    assert [row.text("id") for row in journal.measured] == [case.id for case in CASES]
    assert journal.rows[0].number("time_us") == 1000
    assert journal.rows[0].number("tflops") == pytest.approx(1e-3)


def test_a_second_run_measures_only_what_the_first_did_not_reach(tmp_path, facts, answers):
    answers(steady)
    path = tmp_path / "k.csv"
    measure_kernels(CASES[:2], facts, journal_at(path, facts), seconds=6000)
    measured = answers(steady)
    journal = journal_at(path, facts, resume=True)
    measure_kernels(CASES, facts, journal, seconds=6000)
    ours = [name for name in measured if "256x256x256" not in name]  # without the witness
    assert ours == [case.id for case in CASES[2:]]
    assert len(journal.rows) == len(CASES)


def test_a_run_out_of_time_says_how_to_go_on(tmp_path, facts, answers):
    answers(steady)
    said = measure_kernels(CASES, facts, journal_at(tmp_path / "k.csv", facts), seconds=-1)
    assert "5 of 5 cases were not reached" in said[0]
    assert "--resume" in said[0]


def test_half_a_line_of_a_killed_run_is_measured_again(tmp_path, facts, answers):
    answers(steady)
    path = tmp_path / "k.csv"
    measure_kernels(CASES[:3], facts, journal_at(path, facts), seconds=6000)
    path.write_text(path.read_text()[:-10])
    journal = journal_at(path, facts, resume=True)
    assert journal.done == {case.id for case in CASES[:2]}
    measure_kernels(CASES[:3], facts, journal, seconds=6000)
    assert journal_at(path, facts, resume=True).done == {case.id for case in CASES[:3]}


def test_measurements_are_never_overwritten_unasked(tmp_path, facts):
    journal_at(tmp_path / "k.csv", facts)
    with pytest.raises(InputError, match="continue with --resume"):
        journal_at(tmp_path / "k.csv", facts)


def test_a_journal_of_another_device_is_refused(tmp_path, facts, answers):
    answers(steady)
    path = tmp_path / "k.csv"
    measure_kernels(CASES, facts, journal_at(path, facts), seconds=6000)
    with pytest.raises(InputError, match="and this is NVIDIA H100"):
        KernelJournal.opened(path, "NVIDIA H100", "test", resume=True)


def test_a_table_of_other_columns_is_no_journal(tmp_path, facts):
    path = tmp_path / "k.csv"
    path.write_text("id,gpu\n")
    with pytest.raises(InputError, match="its columns differ"):
        journal_at(path, facts, resume=True)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried..."), "out of memory on the device"),
        (RuntimeError("fp8 needs sm89\nmore"), "not supported here: fp8 needs sm89"),
        (NotImplementedError("no kernel"), "not supported here: no kernel"),
    ],
)
def test_a_refused_case_is_a_row_with_its_reason(tmp_path, facts, answers, error, reason):
    def refuse_the_second(case: KernelCase) -> Sequence[float]:
        if case == CASES[1]:
            raise error
        return steady(case)

    answers(refuse_the_second)
    journal = journal_at(tmp_path / "k.csv", facts)
    measure_kernels(CASES, facts, journal, seconds=6000)
    assert [row.text("skipped") for row in journal.skipped] == [reason]
    assert len(journal.measured) == len(CASES) - 1


def test_a_dead_device_stops_the_run_and_keeps_what_was_measured(tmp_path, facts, answers):
    def die(case: KernelCase) -> Sequence[float]:
        if case == CASES[3]:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return steady(case)

    answers(die)
    path = tmp_path / "k.csv"
    with pytest.raises(DeviceFailedError, match="--resume, which skips it"):
        measure_kernels(CASES, facts, journal_at(path, facts), seconds=6000)
    assert len(journal_at(path, facts, resume=True).done) == 4


def test_a_shared_device_is_noticed_by_the_spread(tmp_path, facts, answers):
    answers(lambda case: [1e-3, 1e-3, 2e-3, 2e-3, 3e-3])
    said = measure_kernels(CASES, facts, journal_at(tmp_path / "k.csv", facts), seconds=6000)
    assert any("shared or throttled: 5 of 5 rows" in sentence for sentence in said)


def test_a_throttled_device_is_noticed_by_its_drift(tmp_path, facts, answers):
    times: Iterator[float] = iter(1e-3 * (1 + 0.02 * step) for step in range(100))
    answers(lambda case: [next(times)] * 5)
    said = measure_kernels(CASES, facts, journal_at(tmp_path / "k.csv", facts), seconds=6000)
    assert any("did not keep its clock" in sentence for sentence in said)


def test_a_gpu_that_others_use_is_said(facts):
    shared = DeviceFacts(
        "GPU", torch.device("cuda"), ("bf16",), (), 80 * 2**30, 5 * 2**30, "torch", "today"
    )
    assert "another process holds 5.0 GiB" in shared.notes[0]
    assert facts.notes == []


def test_memory_that_others_hold_is_no_context_of_ours(facts):
    def values(foreign_bytes: int) -> dict[str, object]:
        device = torch.device("cuda")
        own = DeviceFacts("GPU", device, ("bf16",), (), 80 * 2**30, foreign_bytes, "torch", "today")
        return {path: found.value for path, found in own.sourced_values("a test").items()}

    assert values(2**29) == {"device.memory": "80 GiB", "device.context": "512 MiB"}
    assert values(5 * 2**30) == {"device.memory": "80 GiB"}
    assert facts.sourced_values("a test") == {}


def test_the_journal_is_a_kernel_table_that_validation_reads(tmp_path, facts, answers):
    answers(steady)
    path = tmp_path / "k.csv"
    journal = journal_at(path, facts)
    measure_kernels(CASES, facts, journal, seconds=6000)
    journal.skip(KernelCase("gemm", "fp8", 1, 1, 1), "no matrix unit")
    assert path.read_text().splitlines()[0] == ",".join(COLUMNS)
    report = validate_kernels(path, profile=tiny_profile())
    assert report.summary.n == len(CASES)
    assert report.rows[-1].skipped == "no matrix unit"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_computer_without_a_gpu_is_told_the_way_out():
    with pytest.raises(InputError, match="--device cpu"):
        device_facts(None)


def test_an_unknown_device_is_refused():
    with pytest.raises(InputError, match="must be cuda, cuda:N or cpu"):
        device_facts("tpu")
