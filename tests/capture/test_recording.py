"""A captured step is the step that torch would run."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method

from simulator.capture.make import merged
from simulator.capture.recording.one_rank import (
    RankResult,
    captured,
    captured_script,
    device_answers,
)
from simulator.capture.result import simulate_capture
from simulator.capture.table import BlockOwner, Call, Phase
from simulator.program.ir import Owner
from tests.capture.models import (
    DEVICE,
    LAYERS,
    SEQ,
    VOCAB,
    WIDTH,
    parameter_bytes,
    pipeline,
    training,
)

pytestmark = pytest.mark.filterwarnings("ignore")
ANSWERS = device_answers(DEVICE)
NOWHERE = Path("nothing")
LAYER_BYTES = 2 * (10 * WIDTH * WIDTH + 2 * WIDTH)
"""Parameters of a layer in bf16."""
ENDS_BYTES = 2 * 2 * VOCAB * WIDTH


@functools.cache
def capture_of(way: str, world: int = 8, **choices: bool) -> RankResult:
    return captured(training(way, **choices), 0, world, ANSWERS, NOWHERE)


def exchanges(found: RankResult) -> list[tuple[str, int, str]]:
    table = found.table
    issued = (table.exchanges[number] for number in table.exchange if number >= 0)
    return [(each.kind, each.num_bytes, each.axis) for each in issued]


@pytest.mark.parametrize(
    ("way", "choices"),
    [
        ("alone", {"autocast": True}),
        ("ddp", {}),
        ("fsdp", {"recompute": True}),
        ("fsdp-keep", {"autocast": True}),
        ("hsdp", {}),
        ("hsdp", {"recompute": True}),
    ],
)
def test_memory_over_the_step_is_what_torchs_tracker_counts(way, choices):
    from torch.distributed._tools.mem_tracker import MemTracker

    peaks, trackers = [], []

    def around(model, optimizer, step):
        if not trackers:
            trackers.append(MemTracker())
            trackers[0].track_external(model, optimizer)
        (tracker,) = trackers
        with tracker:
            step()
        snapshot = tracker.get_tracker_snapshot("peak")
        peaks.append(snapshot[torch.device("cuda", 0)]["Total"])
        tracker.reset_mod_stats()

    found = captured(training(way, **choices, around=around), 0, 8, ANSWERS, NOWHERE)
    assert found.table.held_bytes.max() == peaks[-1]


def test_fsdp2_gathers_ahead_and_scatters_beside_backward():
    found = exchanges(capture_of("fsdp"))
    gather, layer = ("all_gather", ENDS_BYTES, "dp"), ("all_gather", LAYER_BYTES, "dp")
    scatter = ("reduce_scatter", 2 * LAYER_BYTES, "dp")
    last = ("reduce_scatter", 2 * ENDS_BYTES, "dp")
    assert found == [gather, layer, layer, gather, layer, layer, scatter, scatter, last]


def test_fsdp2_that_keeps_parameters_gathers_them_once():
    kinds = Counter(kind for kind, _, _ in exchanges(capture_of("fsdp-keep")))
    assert kinds == {"all_gather": LAYERS + 1, "reduce_scatter": LAYERS + 1}


def test_hybrid_sharding_reduces_over_both_axes():
    axes = Counter((kind, axis) for kind, _, axis in exchanges(capture_of("hsdp")))
    assert axes["reduce_scatter", "dp_shard"] == axes["all_reduce", "dp_replicate"] == LAYERS + 1


def test_ddp_reduces_every_gradient_once_beside_backward():
    found = capture_of("ddp")
    issued = exchanges(found)
    assert {(kind, axis) for kind, _, axis in issued} == {("all_reduce", "dp")}
    assert sum(num_bytes for _, num_bytes, _ in issued) == parameter_bytes()
    assert set(found.table.stream[found.table.exchange >= 0]) != {0}


def test_each_operator_knows_its_module_and_phase():
    table = capture_of("alone", recompute=True).table
    products = [
        (Phase(int(phase)).name, table.paths[module])
        for call, phase, module in zip(table.call, table.phase, table.module, strict=True)
        if table.calls[call].name == "aten.mm.default"
    ]
    assert Counter(products)["FORWARD", "layers.1.gate"] == 1
    assert Counter(products)["RECOMPUTE", "layers.1.gate"] == 1
    assert Counter(products)["BACKWARD", "head"] == 2
    assert sum(phase == "BACKWARD" for phase, _ in products) == 2 * (5 * LAYERS + 1)


def calls_named(found: RankResult, name: str) -> list[tuple[Phase, Call]]:
    table = found.table
    pairs = zip(table.call, table.phase, strict=True)
    known = ((Phase(int(phase)), table.calls[number]) for number, phase in pairs)
    return [(phase, call) for phase, call in known if call.name.split(".")[1] == name]


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("_fused_rms_norm", Phase.FORWARD),
        ("_fused_rms_norm_backward", Phase.BACKWARD),
        ("silu", Phase.FORWARD),
        ("silu_backward", Phase.BACKWARD),
        ("_scaled_dot_product_efficient_attention", Phase.FORWARD),
        ("_scaled_dot_product_efficient_attention_backward", Phase.BACKWARD),
    ],
)
def test_an_operator_with_a_kernel_on_cuda_is_one_kernel(name, phase):
    found = calls_named(capture_of("alone"), name)
    assert [each for each, _ in found] == [phase] * LAYERS * (2 if "norm" in name else 1)


def test_fsdp2_copies_weights_and_gradients_once():
    found = capture_of("fsdp")
    gathered = [call for _, call in calls_named(found, "split_with_sizes_copy")]
    assert {(call.read_bytes, call.written_bytes) for call in gathered} == {
        (LAYER_BYTES, LAYER_BYTES), (ENDS_BYTES, ENDS_BYTES),
    }  # fmt: skip
    cast = [call for _, call in calls_named(found, "chunk_cat")]
    assert {(call.read_bytes, call.written_bytes) for call in cast} == {
        (LAYER_BYTES, 2 * LAYER_BYTES), (ENDS_BYTES, 2 * ENDS_BYTES),
    }  # fmt: skip
    sent = [call for _, call in calls_named(found, "all_gather_copy_in")]
    assert {call.written_bytes for call in sent} == {LAYER_BYTES // 8, ENDS_BYTES // 8}


def test_the_gradient_of_a_loss_is_written_and_its_input_not_read():
    ((_, call),) = calls_named(capture_of("alone"), "nll_loss_backward")
    logits_bytes = 4 * 2 * SEQ * VOCAB
    assert call.written_bytes == logits_bytes
    assert call.read_bytes < logits_bytes / 8


def test_clipping_without_no_grad_belongs_to_the_update(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "made = torch.Generator('cuda').manual_seed(1)\n"
        "x = torch.randn(2, 4, device='cuda', generator=made)\n"
        "layer = torch.nn.Linear(4, 4).cuda()\n"
        "optimizer = torch.optim.SGD(layer.parameters(), fused=True)\n"
        "for _ in range(5):\n"
        "    layer(x).sum().backward()\n"
        "    for each in layer.parameters():\n"
        "        each.grad.mul_(0.5)\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n",
        encoding="utf-8",
    )
    found = captured_script(str(script), [], 0, 1, ANSWERS, NOWHERE)
    assert [phase for phase, _ in calls_named(found, "mul_")] == [Phase.OPTIMIZER] * 2
    ((phase, update),) = calls_named(found, "_fused_sgd_")
    assert phase is Phase.OPTIMIZER
    assert update.written_bytes >= layer_bytes(4)


def layer_bytes(width: int) -> int:
    """Weight and bias of a square layer in fp32."""
    return 4 * (width * width + width)


def held_at_peak(table):
    """Bytes of each owner when most is held [B]."""
    peak = int(np.argmax(table.held_bytes)) + 1
    owners = table.block_owner[table.block[:peak]]
    held = np.bincount(owners, weights=table.change_bytes[:peak], minlength=len(BlockOwner))
    return {owner: int(held[owner]) for owner in BlockOwner if held[owner]}


def test_who_holds_memory_is_known():
    held = held_at_peak(capture_of("alone").table)
    rounding = 512 * 40
    assert held[BlockOwner.PARAMETER] == pytest.approx(parameter_bytes(), abs=rounding)
    moments = held[BlockOwner.OPTIMIZER_STATE]
    assert moments == pytest.approx(2 * parameter_bytes(), abs=rounding)


def test_tokens_are_those_that_the_embedding_looks_up():
    assert capture_of("alone").tokens == 2 * SEQ


def test_the_streams_of_fsdp2_wait_for_each_other():
    table = capture_of("fsdp").table
    beside = set(np.flatnonzero(table.exchange >= 0).tolist())
    awaited = set(table.waits[:, 1].tolist())
    assert beside <= awaited
    assert all(before < operation for operation, before in table.waits.tolist())


def test_streams_of_the_accelerator_are_those_of_cuda():
    waits = []

    def run():
        model, side = torch.nn.Linear(8, 8, device="cuda"), torch.cuda.Stream()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            with torch.cuda.stream(side):
                found = model(torch.ones(4, 8, device="cuda"))
                event = side.record_event()
            torch.accelerator.current_stream().wait_event(event)
            found.sum().backward()
            optimizer.step()
            waits.append(torch.accelerator.memory_allocated() == torch.cuda.memory_allocated())

    table = captured(run, 0, 1, ANSWERS, NOWHERE).table
    assert all(waits)
    assert len(set(table.stream.tolist())) == 2
    assert len(table.waits) > 0


@pytest.mark.parametrize("way", ["fsdp", "fsdp1"])
def test_fsdp_moves_a_model_from_the_host(way):
    """As accelerate leaves it to: the parameters are made on the host."""
    on_host = captured(training(way, on_host=True), 0, 8, ANSWERS, NOWHERE)
    assert exchanges(on_host) == exchanges(capture_of(way))
    held, expected = (held_at_peak(each.table) for each in (on_host, capture_of(way)))
    assert held == expected


@pytest.mark.parametrize("kept", ["", "-keep"])
def test_fsdp1_gathers_and_reduces_as_many_bytes_as_fsdp2(kept):
    ways = f"fsdp1{kept}", f"fsdp{kept}"
    older, newer = (Counter(each[:2] for each in exchanges(capture_of(way))) for way in ways)
    of_the_whole = "all_gather", ENDS_BYTES
    assert older.pop(of_the_whole) == 1, "FSDP1 keeps its root"
    assert newer.pop(of_the_whole) == (1 if kept else 2)
    assert older == newer


def test_fsdp1_holds_shards_as_large_as_those_of_fsdp2():
    """What is in shards gets smaller on more ranks."""

    def shards_bytes(way: str) -> Counter[int]:
        table = capture_of(way).table
        assert {each.axis for each in table.exchanges} == {"dp"}
        sharded = (table.block_shards[table.block] == 8) & (table.change_bytes > 0)
        owners = table.block_owner[table.block]
        held = np.bincount(owners[sharded], weights=table.change_bytes[sharded])
        return Counter(dict(enumerate(held.tolist())))

    older, newer = shards_bytes("fsdp1"), shards_bytes("fsdp")
    for owner in (BlockOwner.PARAMETER, BlockOwner.GRADIENT, BlockOwner.OPTIMIZER_STATE):
        assert newer[owner] > 0
        assert older[owner] == pytest.approx(newer[owner], rel=0.05), "but for rounding"


def test_a_kernel_for_triton_reads_and_writes_what_it_is_given(tmp_path):
    pytest.importorskip("triton")
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, triton\n"
        "@triton.jit\n"
        "def double(x, size: triton.language.constexpr): pass\n"
        "layer = torch.nn.Linear(4, 4).cuda()\n"
        "x = torch.randn(2, 4, device='cuda')\n"
        "optimizer = torch.optim.SGD(layer.parameters())\n"
        "for _ in range(5):\n"
        "    y = layer(x)\n"
        "    double[(1,)](y, size=8)\n"
        "    y.sum().backward()\n"
        "    optimizer.step()\n",
        encoding="utf-8",
    )
    found = captured_script(str(script), [], 0, 1, ANSWERS, NOWHERE)
    ((phase, call),) = calls_named(found, "double")
    assert phase is Phase.FORWARD
    assert (call.read_bytes, call.written_bytes) == (32, 32)


class InHalf(torch.Tensor):
    """Says that it is fp32 and holds bf16, as float8 tensors hold fewer bits than they say."""

    @staticmethod
    def __new__(cls, held):
        like = {"dtype": torch.float32, "device": held.device}
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, **like)

    def __init__(self, held):
        self.held = held

    def __tensor_flatten__(self):
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(parts, *_):
        return InHalf(parts["held"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(each.held.t().contiguous() for each in args)).float()


def test_an_operator_on_tensors_that_hold_others_is_what_is_done_with_these():
    def run():
        model = torch.nn.Linear(8, 8, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.ones(4, 8, device="cuda")).sum().backward()
            half = InHalf(torch.ones(8, 8, device="cuda", dtype=torch.bfloat16))
            torch.mm(half, half)
            optimizer.step()

    calls = captured(run, 0, 1, ANSWERS, NOWHERE).table.calls
    products = {tensor.dtype for call in calls if ".mm." in call.name for tensor in call.inputs}
    assert products == {"float32", "bfloat16"}
    copies = [call for call in calls if "contiguous" in call.name or "clone" in call.name]
    assert [(call.read_bytes, call.written_bytes) for call in copies] == [(128, 128)]


def test_context_parallelism_gathers_the_keys_and_values_of_all_its_ranks():
    rows, heads, width = 32, 4, 16

    def run():
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "cp"))["cp"]
        set_rotate_method("allgather")
        layer = torch.nn.Linear(8, 3 * heads * width, device="cuda", dtype=torch.bfloat16)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(4):
            x = torch.ones(1, 2 * rows, 8, device="cuda", dtype=torch.bfloat16)
            with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
                parts = layer(x).unflatten(-1, (3, heads, width)).transpose(1, 3).unbind(2)
                attention = torch.nn.functional.scaled_dot_product_attention
                attention(*parts, is_causal=True).sum().backward()
            optimizer.step()

    found = captured(run, 0, 4, ANSWERS, NOWHERE)
    own_bytes = 2 * rows * heads * width * 2
    assert ("all_gather", 2 * own_bytes, "cp") in exchanges(found)
    queries = [
        call.inputs[0].shape[2]
        for call in found.table.calls
        if call.name == "aten._scaled_dot_product_cudnn_attention.default"
    ]
    assert queries == [rows, rows // 2]


def test_process_groups_reduce_as_before_after_a_capture():
    before = dict(vars(dist.ProcessGroup))
    capture_of("ddp")
    assert dict(vars(dist.ProcessGroup)) == before


def test_torch_is_as_it_was_after_a_capture():
    before = torch.cuda.Stream, torch.Tensor.item, open
    capture_of("alone")
    assert (torch.cuda.Stream, torch.Tensor.item, open) == before
    assert not torch.cuda.is_available()
    assert torch.ones(3, requires_grad=True).sum().item() == 3


def test_stages_that_are_captured_one_by_one_are_one_pipeline(tmp_path):
    microbatches = 4
    parts = [
        captured(pipeline(microbatches), rank, 2, ANSWERS, tmp_path).as_capture(2)
        for rank in range(2)
    ]
    capture = merged(parts, "train.py", "h100-sxm-80gb")
    sent = [
        Counter(each.sends for each in table.exchanges for _ in range(_times(table, each)))
        for table in capture.tables
    ]
    assert sent == [{True: microbatches, False: microbatches}] * 2
    result = simulate_capture(capture)
    assert 0 < result.bubble_fraction < 0.5
    activations = [memory.by_owner[Owner.ACTIVATIONS] for memory in result.memory]
    assert activations[0] > activations[1], "the first stage has more microbatches under way"


def _times(table, exchange) -> int:
    return int((table.exchange == table.exchanges.index(exchange)).sum())
