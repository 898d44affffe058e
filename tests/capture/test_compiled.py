"""Kernels of compiled code: by the capture's rule, and by Inductor's own scheduler."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import detect_fake_mode
from torch._inductor import config
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import FusedSchedulerNode, Scheduler, SchedulerNode
from torch._inductor.virtualized import V
from torch.utils.checkpoint import checkpoint

from simulator.capture.merged_operations import unit_of
from simulator.capture.recording.one_rank import captured, device_answers
from simulator.capture.table import Phase, RankTable
from tests.capture.models import DEVICE, SEQ, WIDTH, Block, Model

pytestmark = pytest.mark.filterwarnings("ignore")
ANSWERS, NOWHERE = device_answers(DEVICE), Path("nowhere")
ROW_BYTES = 4 * 2 * SEQ * WIDTH
"""Of the hidden states of the batch."""


class Kernel(NamedTuple):
    """One that Inductor writes itself.

    Attributes:
        num_bytes: What it reads and writes [B].
        operators: What it is made of, as torch names them.
    """

    num_bytes: float
    operators: frozenset[str]


def inductors_kernels(module: torch.nn.Module, x: torch.Tensor) -> list[list[Kernel]]:
    """Those of forward and of backward, as its scheduler groups them; nothing is compiled.

    A processor's graph joins tensors one by one unless it is told to do as on a GPU.
    """
    found: list[list[Kernel]] = []

    def schedule(graph_module, inputs):
        graph = GraphLowering(graph_module, example_inputs=inputs)
        modes = V.set_graph_handler(graph), V.set_fake_mode(detect_fake_mode(inputs))
        with modes[0], modes[1], DebugContext(), config.patch(force_pointwise_cat=True):
            graph.run(*inputs)
            nodes = Scheduler(graph.operations).nodes
            found.append([_kernel(n) for n in nodes if isinstance(n, _WRITTEN)])
        return make_boxed_func(graph_module.forward)

    backend = aot_autograd(
        fw_compiler=schedule,
        bw_compiler=schedule,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    try:
        torch.compile(module, backend=backend)(x).sum().backward()
    finally:
        torch._dynamo.reset()
    return found


_WRITTEN = (SchedulerNode, FusedSchedulerNode)


def _kernel(node) -> Kernel:
    origins = {str(o.target) for each in node.get_nodes() for o in each.node.get_origins()}
    return Kernel(node.get_read_write_buffers_sizes(), frozenset(origins))


def captured_kernels(table: RankTable, module: str) -> Iterator[tuple[Phase, int]]:
    """Phase and bytes of the fused kernels in a module."""
    for number, phase, path in zip(table.call, table.phase, table.module, strict=True):
        call = table.calls[number]
        if call.name.startswith("inductor") and table.paths[path].startswith(module):
            yield Phase(int(phase)), call.read_bytes + call.written_bytes


def test_a_compiled_layer_of_llama_has_the_kernels_that_inductor_makes():
    """Norm; sum and norm; gate; sum. Back: gate; norm and sum; joined heads; norm and sum.

    A processor's graph also has a kernel for the gradients of both norms' weights, which a GPU
    makes beside those of the rows (``mix_order_reduction``), and one that turns what its own
    attention kernel returns.
    """

    def train() -> None:
        model = Model().cuda()
        for layer in model.layers:
            layer.compile()
        four_steps(model)

    found = list(captured_kernels(captured(train, 0, 1, ANSWERS, NOWHERE).table, "layers.1"))
    forward, backward = inductors_kernels(Block(), torch.ones(2, SEQ, WIDTH, requires_grad=True))
    backward = [kernel for kernel in backward if not _of_a_processor(kernel)]
    assert [phase for phase, _ in found] == [Phase.FORWARD] * 4 + [Phase.BACKWARD] * 4
    assert (len(forward), len(backward)) == (4, 4)
    moved = sum(num_bytes for _, num_bytes in found)
    assert 1 <= moved / sum(kernel.num_bytes for kernel in (*forward, *backward)) < 1.01


class Adding(torch.nn.Module):
    """One cast for two products, a gate, a sum that backward needs, and a wide activation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(WIDTH, eps=1e-5)
        self.first, self.second = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half, weights = torch.bfloat16, [each.weight for each in (self.first, self.second)]
        first, second = (
            torch.nn.functional.linear(x.to(half), weight.to(half)) for weight in weights
        )
        x = x + torch.nn.functional.silu(first) * second
        hidden = self.norm(x)
        return x + self.down(torch.nn.functional.gelu(self.up(hidden)))


def kept_by_the_partitioner(module: torch.nn.Module, x: torch.Tensor) -> int:
    """What AOTAutograd keeps from forward to backward beside the input and parameters [B]."""
    kept: list[int] = []

    def partition(joint, inputs, **known):
        parts = min_cut_rematerialization_partition(joint, inputs, **known)
        (returned,) = next(node for node in parts[0].graph.nodes if node.op == "output").args
        saved = {*returned[known["num_fwd_outputs"] :]}
        kept.append(sum(n.meta["val"].nbytes for n in saved if n.op != "placeholder"))
        return parts

    def as_it_is(graph_module, _):
        return make_boxed_func(graph_module.forward)

    backend = aot_autograd(
        fw_compiler=as_it_is, partition_fn=partition, decompositions=select_decomp_table()
    )
    try:
        torch.compile(module, backend=backend)(x).sum().backward()
    finally:
        torch._dynamo.reset()
    (num_bytes,) = kept
    return num_bytes


def four_steps(model: torch.nn.Module) -> None:
    """As many as a capture looks at, on tokens."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.ones(2, SEQ, dtype=torch.int64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def kept_bytes(module: torch.nn.Module, rows: int, *, is_compiled: bool) -> int:
    """What the captured module holds between forward and backward, without its result [B]."""
    held: list[int] = []

    def train() -> None:
        module.cuda()
        if is_compiled:
            module.compile()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(4):
            x = torch.ones(rows, WIDTH, device="cuda", requires_grad=True)
            before = torch.cuda.memory_allocated()
            result = module(x)
            held.append(torch.cuda.memory_allocated() - before - result.nbytes)
            result.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            del x, result

    captured(train, 0, 1, ANSWERS, NOWHERE)
    return held[1]


def test_compiled_code_keeps_for_backward_what_the_partitioner_keeps():
    """Neither what an activation made, nor the same cast twice, nor a sum of what is kept."""
    rows = 512
    theirs = kept_by_the_partitioner(Adding(), torch.ones(rows, WIDTH, requires_grad=True))
    assert kept_bytes(Adding(), rows, is_compiled=True) == theirs
    cast, activation, added = 2 * rows * WIDTH, 2 * rows * WIDTH, 4 * rows * WIDTH
    assert kept_bytes(Adding(), rows, is_compiled=False) == theirs + cast + activation + added


@pytest.mark.parametrize("recompute", [False, True])
def test_a_compiled_method_of_a_layer_has_the_kernels_of_the_compiled_layer(recompute):
    """Also under a checkpoint around it, which runs the method again and not the module."""

    def calls(*, of_methods: bool) -> list[tuple[str, Phase, str, int]]:
        def train() -> None:
            model = Model(recompute=recompute and not of_methods).cuda()
            for layer in model.layers:
                if not of_methods:
                    layer.compile()
                    continue
                layer.forward = torch.compile(layer.forward, dynamic=False)
                if recompute:
                    layer.forward = functools.partial(
                        checkpoint, layer.forward, use_reentrant=False
                    )
            four_steps(model)

        table = captured(train, 0, 1, ANSWERS, NOWHERE).table
        found = []
        for number, phase, module in zip(table.call, table.phase, table.module, strict=True):
            call, unit = table.calls[number], unit_of(table.paths[module])
            moved = call.read_bytes + call.written_bytes
            found.append((unit, Phase(int(phase)), call.name, moved))
        return found

    found = calls(of_methods=True)
    fused = {phase for _, phase, name, _ in found if name.startswith("inductor")}
    assert fused == {Phase.FORWARD, Phase.BACKWARD, *([Phase.RECOMPUTE] if recompute else [])}
    assert found == calls(of_methods=False)


def test_a_checkpoint_around_compiled_code_runs_all_of_it_again():
    """Also the last product, whose result backward does not need: it is one graph."""

    def train() -> None:
        model = Model(recompute=True).cuda()
        for layer in model.layers:
            layer.compile()
        four_steps(model)

    table = captured(train, 0, 1, ANSWERS, NOWHERE).table
    of_layer = [table.paths[n].startswith("layers.1") for n in table.module]
    forward, again = (
        [table.calls[n] for n in table.call[of_layer & (table.phase == phase)]]
        for phase in (Phase.FORWARD, Phase.RECOMPUTE)
    )
    names = [call.name for call in forward]
    assert names == [call.name for call in again]
    assert names.count("aten.mm.default") == 5
    moved, moved_again = (
        [call.read_bytes + call.written_bytes for call in calls] for calls in (forward, again)
    )
    assert moved_again == pytest.approx(moved, rel=0.01)


class Checkpointed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Gated()

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


def test_what_a_checkpoint_inside_compiled_code_runs_again_is_compiled():
    def train() -> None:
        module = Checkpointed()
        module.compile()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(4):
            x = torch.ones(SEQ, WIDTH, device="cuda", requires_grad=True)
            module(x).backward(torch.ones(SEQ, WIDTH, device="cuda"))
            optimizer.step()
            optimizer.zero_grad()

    table = captured(train, 0, 1, ANSWERS, NOWHERE).table
    again = [table.calls[n].name for n in table.call[table.phase == Phase.RECOMPUTE]]
    assert [name for name in again if "mm" not in name] == ["inductor.fused"]


def _of_a_processor(kernel: Kernel) -> bool:
    names = " ".join(kernel.operators)
    if "for_cpu" in names:
        return "cat" not in names
    return not any(word in names for word in ("pow", "exp", "cat"))


class Gated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda") for _ in range(3)
        )

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


def _called(module, x):
    return module(x)


@pytest.mark.parametrize("how", ["eager", "module", "function", "method"])
def test_compiled_code_reads_and_writes_what_passes_between_its_kernels_once(how):
    """Eager, a gate is 2 kernels of 5 rows and back 3 of 9.

    As one it reads gate and up and writes the product. Back it makes what it needs of the gate
    again, reads three rows and writes two gradients. A product between does not part them.
    """

    def train() -> None:
        module = Gated()
        run = module
        if how == "module":
            run = torch.compile(module)
        elif how == "function":
            run = functools.partial(torch.compile(_called), module)
        elif how == "method":
            module.forward = torch.compile(module.forward, dynamic=False)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(4):
            x = torch.ones(SEQ, WIDTH, device="cuda")
            run(x).backward(torch.ones(SEQ, WIDTH, device="cuda"))
            optimizer.step()
            optimizer.zero_grad()

    table = captured(train, 0, 1, ANSWERS, NOWHERE).table
    names = ("silu", "mul", "inductor")
    rows: dict[Phase, list[float]] = {Phase.FORWARD: [], Phase.BACKWARD: []}
    for number, phase in zip(table.call, table.phase, strict=True):
        call = table.calls[number]
        if phase in rows and any(name in call.name for name in names):
            rows[phase].append((call.read_bytes + call.written_bytes) / (4 * SEQ * WIDTH))
    if how == "eager":
        assert rows == {Phase.FORWARD: [2, 3], Phase.BACKWARD: [3, 3, 3]}
    else:
        assert rows == {Phase.FORWARD: [3], Phase.BACKWARD: [5]}


def scaled(x, dtype=torch.float8_e4m3fn):
    """In fp8, and what it was divided by, which is made of all its values."""
    largest = torch.finfo(dtype).max
    scale = largest / x.abs().max().float()
    return (x.float() * scale).clamp(-largest, largest).to(dtype), scale.reciprocal()


def scaled_product(left, right):
    (left, left_scale), (right, right_scale) = left, right
    by_columns = right.t().contiguous().t()
    half = torch.bfloat16
    return torch._scaled_mm(left, by_columns, left_scale, right_scale, out_dtype=half)


class ScaledLinear(torch.autograd.Function):
    """As torchao's linear layer in fp8 with one scale for a tensor."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        (weight8, scale) = scaled(weight)
        return scaled_product(scaled(x), (weight8.t(), scale))

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        gradient8, scale = scaled(gradient, torch.float8_e5m2)
        along_tokens = gradient8.t().contiguous(), scale
        return scaled_product((gradient8, scale), scaled(weight)), scaled_product(
            along_tokens, scaled(x)
        )


class ScaledPair(torch.nn.Module):
    """Two layers of the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(WIDTH, eps=1e-5)
        self.gate, self.up = (torch.nn.Parameter(torch.ones(WIDTH, WIDTH)) for _ in range(2))

    def forward(self, x):
        hidden = self.norm(x)
        gate, up = (ScaledLinear.apply(hidden, weight) for weight in (self.gate, self.up))
        return x + gate * up


def test_casts_that_need_the_largest_of_all_values_are_the_kernels_that_inductor_makes():
    """The input of two layers is read once for its largest value and once to be cast.

    Without kernels that only make a scale, and without that for the gradient of the norm's weight,
    which a GPU makes beside those of the rows. What differs is what Inductor's partitioner keeps of
    the casts, and that a processor's scheduler joins these and the norm of backward to one kernel.
    """
    rows = 16 * SEQ

    def train() -> None:
        before = torch.nn.Linear(WIDTH, WIDTH)
        module = torch.nn.Sequential(before, ScaledPair()).to("cuda", torch.bfloat16)
        module[1].compile()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(4):
            x = torch.ones(rows, WIDTH, device="cuda", dtype=torch.bfloat16)
            module(x).backward(torch.ones_like(x))
            optimizer.step()
            optimizer.zero_grad()

    table = captured(train, 0, 1, ANSWERS, NOWHERE).table
    x = torch.ones(rows, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    theirs = inductors_kernels(ScaledPair().to(torch.bfloat16), x)
    for phase, kernels in zip((Phase.FORWARD, Phase.BACKWARD), theirs, strict=True):
        ours = [moved for each, moved in captured_kernels(table, "1") if each == phase]
        large = [
            kernel.num_bytes
            for kernel in kernels
            if kernel.num_bytes > 100 and not _sums_columns(kernel)
        ]
        assert 0.93 < sum(ours) / sum(large) < 1


def _sums_columns(kernel: Kernel) -> bool:
    names = " ".join(kernel.operators)
    return "sum" in names and "pow" not in names
