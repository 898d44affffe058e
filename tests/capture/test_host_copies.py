"""Copies between a captured device and its host: recorded as torch does them, timed by the link."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from simulator.calibrate.gpu.kernel_case import KernelCase
from simulator.capture.host_link import host_copy_call, is_host_copy, is_waited_for
from simulator.capture.kernels_to_measure import kernels_to_measure
from simulator.capture.recording.one_rank import captured, device_answers
from simulator.capture.result import simulate_capture
from simulator.capture.table import Call, Phase, RankTable
from simulator.cost.gemm import gemm_s
from simulator.cost.host import TO_DEVICE, TO_HOST, copy_s
from simulator.described.job import Cluster
from simulator.described.load import load_profile
from simulator.facts import host_launches
from simulator.program.ir import Category
from tests.capture.made_up import Step, capture_of
from tests.capture.models import DEVICE

PROFILE = load_profile("h100-sxm-80gb")
CLUSTER = Cluster(profile=PROFILE, gpus=8)
GEMM_S = gemm_s(PROFILE, 4096, 4096, 4096)
LAUNCH_S = PROFILE.kernels.launch_s * host_launches("operator")
SIZE = 1 << 26
OUT_S, BACK_S = copy_s(CLUSTER, TO_HOST, SIZE), copy_s(CLUSTER, TO_DEVICE, SIZE)


def copy(*, to_host: bool, waits: bool = False) -> Call:
    return host_copy_call(SIZE, to_host=to_host, waits=waits)


def step_s(step: Step, *, gpus: int = 8) -> float:
    return simulate_capture(capture_of(step, world=gpus), PROFILE).step_time_s


def test_copies_take_the_hosts_link_on_the_stream_they_are_issued_on():
    step = Step()
    for call in (copy(to_host=True), copy(to_host=False)):
        step.kernel()
        step.kernel(call)
    result = simulate_capture(capture_of(step), PROFILE)
    assert result.step_time_s == pytest.approx(LAUNCH_S + 2 * GEMM_S + OUT_S + BACK_S)
    assert result.exposed_comm_s[Category.OFFLOAD] == pytest.approx(OUT_S + BACK_S)


def test_the_host_launches_nothing_until_a_copy_that_it_waits_for_has_ended():
    def step(*, waits: bool) -> Step:
        made = Step()
        for _ in range(3):
            made.kernel()
            made.kernel(copy(to_host=True, waits=waits))
        made.kernel()
        return made

    alone_s = LAUNCH_S + 4 * GEMM_S + 3 * OUT_S
    assert step_s(step(waits=False)) == pytest.approx(alone_s)
    assert step_s(step(waits=True)) == pytest.approx(alone_s + 3 * LAUNCH_S)


def test_copies_on_a_stream_of_the_code_are_hidden_and_follow_its_kernels():
    """The copy begins after a kernel on its stream, which waits for the first of computing."""
    step = Step()
    first = step.kernel()
    step.kernel(after=[first], stream=1)
    sent = step.kernel(copy(to_host=True), stream=1)
    computed = step.kernel()
    assert step_s(step) == pytest.approx(LAUNCH_S + 2 * GEMM_S + OUT_S, rel=0.02)
    step.kernel(after=[sent, computed])
    assert step_s(step) == pytest.approx(LAUNCH_S + 3 * GEMM_S + OUT_S, rel=0.02)


def test_both_directions_run_at_once_on_streams_of_the_code():
    """One GPU has the memory of its node to itself."""
    step = Step()
    step.kernel(copy(to_host=True), stream=1)
    step.kernel(copy(to_host=False), stream=2)
    assert step_s(step, gpus=1) == pytest.approx(max(OUT_S, BACK_S) + 2 * LAUNCH_S)


def test_copies_are_measured_as_copies_of_pinned_memory():
    step = Step()
    step.kernel(copy(to_host=True))
    step.kernel(copy(to_host=False))
    cases, left_out = kernels_to_measure(capture_of(step), (), KernelCase)
    assert not left_out
    assert [(case.op, case.m) for case in cases[1:]] == [
        ("copy_from_device_pinned", SIZE), ("copy_to_device_pinned", SIZE)
    ]  # fmt: skip


class Offloaded(nn.Module):
    """Linear layers and what acts between them; what backward needs goes to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(64, 64, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.nn.functional.silu(self.first(x)))


def recorded(forward, *, model: type[nn.Module] = Offloaded) -> list[tuple[Phase, Call]]:
    """Copies and kernels of a training step, whose forward is a function of model and input."""

    def train() -> None:
        network = model().cuda()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(4):
            forward(network, torch.ones(32, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    table: RankTable = captured(train, 0, 1, device_answers(DEVICE), Path("nowhere")).table
    calls = (table.calls[number] for number in table.call)
    return [(Phase(int(phase)), call) for phase, call in zip(table.phase, calls, strict=True)]


def copies(found: list[tuple[Phase, Call]]) -> list[tuple[Phase, Call]]:
    return [(phase, call) for phase, call in found if is_host_copy(call)]


@pytest.mark.parametrize("pinned", [True, False])
def test_what_save_on_cpu_keeps_goes_to_the_host_and_comes_back(pinned):
    """Neither way blocks where the memory is pinned, by torch 2.13; both do where it is not."""
    sizes: list[int] = []

    def seen(network, x):
        def pack(tensor):
            sizes.append(tensor.nbytes)
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            return network(x)

    def offloaded(network, x):
        with torch.autograd.graph.save_on_cpu(pin_memory=pinned):
            return network(x)

    recorded(seen)
    of_a_step = sizes[: len(sizes) // 2]
    found = copies(recorded(offloaded))
    there = [call for phase, call in found if phase is Phase.FORWARD]
    back = [call for phase, call in found if phase is Phase.BACKWARD]
    assert [call.read_bytes for call in there] == of_a_step
    assert sorted(call.written_bytes for call in back) == sorted(of_a_step)
    assert all(is_waited_for(call) is not pinned for call in (*there, *back))


def test_a_tensor_that_lies_otherwise_is_laid_out_on_the_device_first():
    """The host's memory is filled in order; a copy keeps the order and needs none of this."""

    def transposed(network, x):
        kept = torch.empty(64, 32, pin_memory=True)
        kept.copy_(x.t(), non_blocking=True)
        x.t().to("cpu")
        return network(x)

    found = [call for _, call in recorded(transposed)][1:4]
    assert [call.name for call in found] == [
        "aten.clone.default", "host.copy_to_host", "host.copy_to_host"
    ]  # fmt: skip
    assert [call.read_bytes for call in found] == [4 * 32 * 64] * 3
    assert found[0].written_bytes == 4 * 32 * 64


def test_what_is_cast_on_the_way_passes_the_link_as_torch_casts_it():
    """On the side that it comes from; on the host's if the host waits for it."""

    def cast(network, x):
        half = torch.empty(32, 64, dtype=torch.float16)
        half.copy_(x, non_blocking=True)
        half.copy_(x)
        return network(half.to("cuda", torch.float32))

    found = copies(recorded(cast))
    assert [call.read_bytes + call.written_bytes for _, call in found] == [
        2 * 32 * 64, 4 * 32 * 64, 4 * 32 * 64
    ]  # fmt: skip
    assert [is_waited_for(call) for _, call in found] == [False, True, True]
