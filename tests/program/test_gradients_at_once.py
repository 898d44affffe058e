"""Gradients of a compiled model, which come when its backward has ended."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.described.job import Job
from simulator.program.grid.stage_layers import stage_slices
from simulator.program.ir import Kind, Owner, total_bytes
from simulator.program.states.resident import slice_parameters
from simulator.results.simulation import run_step
from tests.jobs import small_job, small_model

_ELEMENT_BYTES = 2


def a_job(*, at_once: bool) -> Job:
    stack = {"base": "torch", "gradients_at_once": at_once}
    # With so few words, the fullest moment is in the layers and not in the loss.
    model = small_model(vocab=8)
    return small_job(model, zero=0, global_batch=2, stack=stack, master_weights=False)


def made_bytes(job: Job) -> list[float]:
    """Gradients that each microbatch's backward has made at its fullest."""
    operations = run_step(job).timeline.program.operations
    made: dict[int, float] = {}
    for each in operations:
        if each.kind is Kind.BACKWARD:
            held = tuple(block for block in each.holds if block[0] is Owner.GRADIENTS)
            made[each.microbatch] = made.get(each.microbatch, 0.0) + total_bytes(held)
    return [*made.values()]


def test_only_backward_in_one_graph_makes_all_gradients_of_a_later_microbatch_before_it_adds_them():
    assert made_bytes(a_job(at_once=True))[1] > 0
    assert made_bytes(a_job(at_once=False))[1] == 0


def test_all_gradients_are_there_twice_at_most():
    job = a_job(at_once=True)
    (run,) = stage_slices(job, 1)
    every = _ELEMENT_BYTES * slice_parameters(job, run).total
    assert made_bytes(job)[1] <= every
    plain = run_step(a_job(at_once=False)).peak_allocated_bytes
    assert plain <= run_step(job).peak_allocated_bytes <= plain + every


@pytest.mark.parametrize(("compiled", "sums_first"), [(False, 2), (True, 3)])
def test_torch_adds_no_gradient_up_before_a_compiled_backward_has_ended(compiled, sums_first):
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    happened: list[str] = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if operator.overloadpacket is torch.ops.aten.mm:
                happened.append("product")
            return operator(*args, **(kwargs or {}))

    layers = [torch.nn.Linear(4, 4, bias=False) for _ in range(2)]
    model = torch.nn.Sequential(*layers)
    run = torch.compile(model, backend="aot_eager") if compiled else model
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: happened.append("sum"))
    tokens = torch.ones(2, 4)
    run(tokens).sum().backward()
    happened.clear()
    loss = run(tokens).sum()
    with Products():
        loss.backward()
    # Of the second layer two products, for its weight and for its input; of the first one.
    assert happened.count("product") == 3
    assert happened.index("sum") == sums_first
