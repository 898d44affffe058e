"""A step of torch's profiler becomes spans: on a GPU by launches, on a CPU by operators."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.program.ir import Kind
from simulator.program.price.roofline import KernelKind
from simulator.validate.measured_trace.account import IDLE, account
from simulator.validate.measured_trace.kernel_names import Wait
from simulator.validate.measured_trace.measured_step import read_step
from tests.validate.kineto import AUTOGRAD, MAIN, Gpu, annotation, operator, world, write_trace

GEMM, ATTENTION, OTHER = KernelKind.GEMM, KernelKind.ATTENTION, KernelKind.OTHER
EVALUATE = "autograd::engine::evaluate_function: MmBackward0"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
US = 1e-6


def gpu_step(number: int, at_us: float) -> list[dict]:
    """A step whose GPU runs 100 us behind its host, and for 900 us.

    From its first kernel on: 200 forward product, 100 attention, 50 idle, 200 backward product,
    100 all_reduce of which 50 beside a kernel, 50 norm, 50 idle, 100 optimizer, 100 until the
    next step.
    """
    gpu, gpu_us = Gpu(), at_us + 100
    gpu.run("nvjet_hsh_256x128", at_us + 10, gpu_us, 200)
    gpu.run("flash_fwd_kernel", at_us + 20, gpu_us + 200, 100)
    gpu.run("nvjet_hsh_128x128", at_us + 110, gpu_us + 350, 200, thread=AUTOGRAD)
    gpu.run(ALL_REDUCE, at_us + 120, gpu_us + 500, 100, thread=AUTOGRAD)
    gpu.run("layer_norm_grad", at_us + 130, gpu_us + 600, 50, thread=AUTOGRAD)
    gpu.run("multi_tensor_apply_kernel", at_us + 210, gpu_us + 700, 100)
    return [
        *gpu.events,
        annotation(f"ProfilerStep#{number}", at_us, 800),
        operator("aten::mm", at_us + 5, 30),
        operator(EVALUATE, at_us + 105, 40, AUTOGRAD),
        operator("aten::_foreach_norm", at_us + 205, 3),
        annotation("Optimizer.step#AdamW.step", at_us + 208, 20),
    ]


def renumbered(*steps: list[dict]) -> list[dict]:
    """Events of several steps whose correlations do not clash."""
    events = []
    for place, step in enumerate(steps):
        for event in step:
            args = dict(event["args"])
            if "correlation" in args:
                args["correlation"] += 1000 * place
            events.append({**event, "args": args})
    return events


BOOKED = {
    ("forward", GEMM): 200 * US,
    ("forward", ATTENTION): 100 * US,
    ("backward", IDLE): 100 * US,
    ("backward", GEMM): 200 * US,
    ("backward", Kind.ALL_REDUCE): 50 * US,
    ("backward", OTHER): 50 * US,
    ("optimizer", OTHER): 100 * US,
    # The host launches the next step's first kernel 10 us after the GPU has finished this one.
    ("optimizer", Wait.HOST): 10 * US,
    ("optimizer", IDLE): 90 * US,
}


@pytest.fixture
def write(tmp_path):
    def write(events, **header):
        return write_trace(tmp_path / "t.json.gz", events, **header)

    return write


def test_a_gpu_step_is_booked_as_one_does_by_eye(write):
    events = renumbered(gpu_step(4, 0.0), gpu_step(5, 900.0))
    header = world(3, 8) | {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
    step = read_step(write(events, **header))
    assert (step.number, list(step.numbers)) == (4, [4, 5])
    assert (step.rank, step.ranks, step.device) == (3, 8, "NVIDIA H100 80GB HBM3")
    assert step.is_gpu
    assert step.notes == []
    assert step.step_s == pytest.approx(900 * US)
    found = account(step.spans, step.step_s)
    assert found.by_phase_s == pytest.approx(BOOKED)
    assert found.communication_s == pytest.approx({Kind.ALL_REDUCE: 100 * US})


def test_a_device_cannot_speak_to_the_terminal(write):
    header = {"deviceProperties": [{"name": "H100\x1b[2J\u202e\n"}]}
    assert read_step(write(gpu_step(4, 0.0), **header)).device == "H100[2J"


def test_the_last_step_ends_with_its_last_kernel(write):
    events = renumbered(gpu_step(4, 0.0), gpu_step(5, 900.0))
    step = read_step(write(events), 5)
    assert (step.number, step.step_s) == (5, pytest.approx(800 * US))


def test_a_step_of_median_length_is_taken(write):
    at_us = [0.0, 900.0, 2900.0, 3900.0]
    steps = [gpu_step(number, start) for number, start in enumerate(at_us)]
    step = read_step(write(renumbered(*steps)))
    assert (step.number, step.step_s) == (2, pytest.approx(1000 * US))


def test_a_step_that_is_not_there_is_refused(write):
    with pytest.raises(InputError, match="it has 4"):
        read_step(write(gpu_step(4, 0.0)), 9)


def test_a_trace_without_steps_is_taken_as_one(write):
    events = [e for e in gpu_step(0, 0.0) if not e["name"].startswith("ProfilerStep")]
    step = read_step(write(events))
    assert (step.number, step.step_s) == (None, pytest.approx(800 * US))
    assert "all of it counts as one" in step.notes[0]


def test_what_a_program_calls_its_phases_decides(write):
    kernels, named = Gpu(), []
    phases = ("## forward ##", "Backward pass", "optimizer: Muon")
    for place, name in enumerate(phases):
        kernels.run("gemm", 100.0 * place + 10, 1000.0 + 100 * place, 100)
        named.append(annotation(name, 100.0 * place, 90))
    misleading = operator(EVALUATE, 205, 40)
    step = read_step(write([*kernels.events, *named, misleading]))
    assert [span.phase for span in step.spans] == ["forward", "backward", "optimizer"]


def test_forward_and_backward_of_microbatches_alternate(write):
    kernels, evaluated = Gpu(), []
    for place in range(4):
        thread = AUTOGRAD if place % 2 else MAIN
        kernels.run("gemm", 100.0 * place + 10, 1000.0 + 100 * place, 100, thread=thread)
        name = EVALUATE if place % 2 else "aten::mm"
        evaluated.append(operator(name, 100.0 * place + 5, 50, thread))
    step = read_step(write([*kernels.events, *evaluated]))
    assert [span.phase for span in step.spans] == ["forward", "backward"] * 2


def test_kernels_that_nobody_launched_are_left_out_and_said(write):
    kernels = Gpu()
    kernels.run("gemm", 10, 100, 50)
    stray = kernels.events[1] | {"args": {"device": 0, "correlation": 77}}
    step = read_step(write([*kernels.events, stray, operator("aten::mm", 5, 20)]))
    assert len(step.spans) == 1
    assert any("50.0% of the kernels are ignored" in sentence for sentence in step.notes)
    assert any("backward from forward" in sentence for sentence in step.notes)


def test_kernels_without_any_launches_are_refused(write):
    kernels = Gpu()
    kernels.run("gemm", 10, 100, 50)
    with pytest.raises(InputError, match=r"ProfilerActivity\.CPU"):
        read_step(write(kernels.events[1:]))


def test_kernels_of_several_gpus_are_refused(write):
    kernels = Gpu()
    kernels.run("gemm", 10, 100, 50)
    kernels.run("gemm", 20, 100, 50)
    kernels.events[3]["args"]["device"] = 1
    with pytest.raises(InputError, match="several GPUs"):
        read_step(write(kernels.events))


def test_a_cpu_step_is_booked_as_one_does_by_eye(write):
    # forward: 10 idle, 40 linear of which 30 product; 10 idle; backward 40 product, then 30
    # of a message 10 of which are beside the product; 10 idle; optimizer 20.
    events = [
        annotation("ProfilerStep#0", 1000, 150),
        operator("aten::linear", 1010, 40),
        operator("aten::addmm", 1015, 30),
        operator("aten::copy_", 1020, 10),
        operator(EVALUATE, 1060, 40),
        operator("aten::mm", 1060, 40),
        annotation("gloo:all_reduce", 1090, 30) | {"tid": 9},
        operator("c10d::allreduce_", 1088, 2),
        operator("aten::_fused_adamw_", 1130, 20),
    ]
    step = read_step(write(events, **world(0, 2)))
    assert not step.is_gpu
    assert step.step_s == pytest.approx(150 * US)
    found = account(step.spans, step.step_s)
    assert found.by_phase_s == pytest.approx(
        {
            ("forward", Wait.HOST): 10 * US,
            ("forward", OTHER): 10 * US,
            ("forward", GEMM): 30 * US,
            ("backward", GEMM): 40 * US,
            ("backward", Kind.ALL_REDUCE): 20 * US,
            ("backward", Wait.HOST): 20 * US,
            ("optimizer", OTHER): 20 * US,
        }
    )
    assert found.communication_s == pytest.approx({Kind.ALL_REDUCE: 30 * US})
