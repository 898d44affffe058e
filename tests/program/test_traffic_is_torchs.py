"""The collectives that torch really issues are those of the Program, one for one.

torch runs one rank of a fake world; kind, group size, bytes and order must agree.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from simulator.described.job import Job
from simulator.described.model import Experts, Model
from simulator.program.build import build_program
from simulator.program.ir import Kind
from simulator.results.traffic import rank_collectives
from simulator.validate.torch_run.reference_model import (
    ReferenceModel,
    reference_model,
    token_loss,
)
from simulator.validate.torch_run.split_model import split_experts
from tests.jobs import small_job, small_model
from tests.torch_traffic import Issued, TrafficLog, fake_ranks, fake_world

pytestmark = pytest.mark.filterwarnings("ignore")

MICRO_BATCH, SEQ_LEN = 2, 32


def llama(**fields) -> Model:
    return small_model(
        **{"layers": 3, "heads": 4, "kv_heads": 2, "vocab": 256, "ffn_hidden": 128, **fields}
    )


def job(model: Model, ranks: int, *, stack: object = "torch", **plan) -> Job:
    width = plan.get("tp", 1) * plan.get("cp", 1)
    plan = {"precision": "fp32", "stack": stack, **plan}
    return small_job(
        model, gpus=ranks, global_batch=MICRO_BATCH * plan.pop("microbatches", 1) * ranks // width,
        micro_batch=MICRO_BATCH, seq_len=SEQ_LEN, **plan,
    )  # fmt: skip


def predicted(job: Job, *, without: str = "") -> list[Issued]:
    """What our Program issues, but for the norm of the gradients."""
    return [
        (collective.kind.value, collective.ranks, collective.num_bytes)
        for collective in rank_collectives(build_program(job))
        if collective.name not in ("gradient_norm", without)
    ]


def tokens(model: Model) -> Tensor:
    return torch.randint(0, model.vocab, (MICRO_BATCH, SEQ_LEN))


def train(net: nn.Module, model: Model) -> None:
    """One microbatch forward and backward."""
    inputs = tokens(model)
    token_loss(net(inputs), inputs).backward()


# --- data parallelism ---------------------------------------------------------------------


def data_parallel(net: nn.Module, **options) -> DistributedDataParallel:
    """The fake group cannot complete DDP's own all_reduce, a hook issues the same."""

    def reduce(state, bucket):
        dist.all_reduce(bucket.buffer())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    wrapped = DistributedDataParallel(net, **options)
    wrapped.register_comm_hook(None, reduce)
    return wrapped


def third_step(log: TrafficLog, net: nn.Module, model: Model) -> list[Issued]:
    """DDP learns the order of gradients in the first two steps."""
    for _ in range(3):
        log.issued.clear()
        train(net, model)
    return log.issued


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_ddp_reduces_a_megabyte_first_and_then_buckets_of_25_in_order_of_backward(tied, gated):
    model = llama(hidden=512, ffn_hidden=2048, vocab=4096, tied_embeddings=tied, gated_mlp=gated)
    with fake_world(8) as log:
        issued = third_step(log, data_parallel(reference_model(model)), model)
    assert predicted(job(model, 8, zero=0)) == issued
    assert len(issued) > 2


@pytest.mark.parametrize("cap_mib", [1, 2])
def test_ddp_buckets_may_end_inside_a_layer(cap_mib):
    model = llama(hidden=256, ffn_hidden=512, vocab=1024)
    with fake_world(4) as log:
        net = data_parallel(reference_model(model), bucket_cap_mb=cap_mib)
        issued = third_step(log, net, model)
    stack = {"base": "torch", "bucket": f"{cap_mib} MiB", "first_bucket": "0 B"}
    assert predicted(job(model, 4, zero=0, stack=stack)) == issued
    assert len(issued) > 3


def test_ddp_without_sync_reduces_only_after_the_last_microbatch():
    model = llama()
    with fake_world(8) as log:
        net = data_parallel(reference_model(model))
        third_step(log, net, model)
        log.issued.clear()
        with net.no_sync():
            train(net, model)
        train(net, model)
    assert predicted(job(model, 8, zero=0, microbatches=2)) == log.issued


def test_ddp_with_sync_reduces_after_every_microbatch():
    model = llama()
    with fake_world(8) as log:
        net = data_parallel(reference_model(model))
        third_step(log, net, model)
        log.issued.clear()
        train(net, model)
        train(net, model)
    assert predicted(job(model, 8, zero=0, microbatches=2, no_sync=False)) == log.issued


def test_a_static_graph_changes_no_collective_once_its_buckets_are_rebuilt():
    """Which happens a step later than without."""
    model = llama()
    with fake_world(8) as log:
        net = data_parallel(reference_model(model), static_graph=True)
        third_step(log, net, model)
        issued = third_step(log, net, model)
    assert predicted(job(model, 8, zero=0)) == issued


def test_gradients_as_views_of_buckets_change_no_collective():
    model, stack = llama(), {"base": "torch", "buckets_gradients": False}
    with fake_world(8) as log:
        net = data_parallel(reference_model(model), gradient_as_bucket_view=True)
        issued = third_step(log, net, model)
    assert predicted(job(model, 8, zero=0, stack=stack)) == issued


def test_zero_redundancy_optimizer_reduces_all_and_broadcasts_every_parameter():
    model = llama()
    with fake_world(8) as log:
        net = data_parallel(reference_model(model))
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, foreach=False)
        third_step(log, net, model)
        optimizer.step()
    stack = {"base": "torch", "shards_whole_parameters": True}
    assert predicted(job(model, 8, zero=1, stack=stack)) == log.issued


# --- sharded data parallelism ---------------------------------------------------------------


def sharded(model: Model, mesh: DeviceMesh, **options) -> ReferenceModel:
    net = reference_model(model)
    shard(net, mesh, **options)
    return net


def shard(net: ReferenceModel, mesh: DeviceMesh, *, root: bool = True, **options) -> None:
    """Layers and root, or embedding and head as units of their own, as torchtitan does."""
    asked = options.pop("reshard_after_forward", None)
    reshards = asked is not False
    if not root:
        fully_shard(net.embedding, mesh=mesh, reshard_after_forward=reshards, **options)
        ends = [net.norm, net.head]
        fully_shard(ends, mesh=mesh, reshard_after_forward=asked is True, **options)
    for layer in net.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshards, **options)
    fully_shard(net, mesh=mesh, reshard_after_forward=None if reshards else False, **options)


@pytest.mark.parametrize(
    ("root", "reshards"),
    [(True, None), (True, False), (False, None), (False, True), (False, False)],
)
@pytest.mark.parametrize("ranks", [8, 64])
def test_fsdp2_gathers_and_reduces_layer_by_layer(ranks, reshards, root):
    """On 64 ranks the 32 rows of key and value are padded, and the padding travels."""
    model = llama(hidden=64)
    with fake_world(ranks) as log:
        mesh = init_device_mesh("cpu", (ranks,))
        train(sharded(model, mesh, root=root, reshard_after_forward=reshards), model)
    stack = {"base": "torch", "sharding_units": "root" if root else "ends"}
    plan = {"zero": 3, "reshard_after_forward": reshards, "stack": stack}
    assert predicted(job(model, ranks, **plan)) == log.issued


def test_fsdp2_gathers_16_bit_weights_and_reduces_fp32_gradients():
    model = llama()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with fake_world(8) as log:
        train(sharded(model, init_device_mesh("cpu", (8,)), mp_policy=policy), model)
    assert predicted(job(model, 8, zero=3, precision="bf16")) == log.issued


def test_hsdp_reduces_inside_and_then_across():
    model = llama()
    with fake_world(8) as log:
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
        train(sharded(model, mesh), model)
    assert predicted(job(model, 8, zero=3, zero_group=4)) == log.issued


def test_fsdp2_with_tied_embeddings_has_one_root():
    model = llama(tied_embeddings=True)
    with fake_world(8) as log:
        train(sharded(model, init_device_mesh("cpu", (8,))), model)
    assert predicted(job(model, 8, zero=3)) == log.issued


@pytest.mark.parametrize("root", [True, False])
def test_fsdp2_reduces_after_every_microbatch(root):
    model = llama()
    with fake_world(8) as log:
        net = sharded(model, init_device_mesh("cpu", (8,)), root=root)
        train(net, model)
        train(net, model)
    stack = {"base": "torch", "sharding_units": "root" if root else "ends"}
    assert predicted(job(model, 8, zero=3, microbatches=2, stack=stack)) == log.issued


# --- tensor parallelism ---------------------------------------------------------------------


def tensor_parallel(net: ReferenceModel, mesh: DeviceMesh, *, cuts_sequence: bool) -> None:
    """Columns, then rows, as PyTorch's tutorial and torchtitan lay a Llama out."""
    cut = Shard(1) if cuts_sequence else Replicate()
    rows = RowwiseParallel(output_layouts=cut)
    ends: dict[str, object] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=cut),
        "head": ColwiseParallel(
            input_layouts=cut, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    block: dict[str, object] = {
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        **{f"mlp.{name}": ColwiseParallel() for name in ("gate", "up")},
        "attention.output": rows,
        "mlp.down": rows,
    }
    if cuts_sequence:
        gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        ends["norm"] = SequenceParallel()
        block |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
        block |= {"attention": gather, "mlp": gather}
    parallelize_module(net, mesh, ends)
    for layer in net.layers:
        parallelize_module(layer, mesh, dict(block))


def train_on_shards(net: nn.Module, model: Model) -> None:
    """One microbatch, with the loss on logits that are cut by vocabulary."""
    inputs = tokens(model)
    with loss_parallel():
        logits = net(inputs)
        assert isinstance(logits, DTensor)
        nn.functional.cross_entropy(logits.flatten(0, 1), inputs.flatten()).backward()


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("cuts_sequence", [False, True])
def test_tensor_parallel_layers_reduce_or_gather_and_scatter(tp, cuts_sequence):
    """DTensor leaves gradients of norms partial until somebody reads them."""
    model = llama(kv_heads=4)
    with fake_world(tp) as log:
        net = reference_model(model)
        tensor_parallel(net, init_device_mesh("cpu", (tp,)), cuts_sequence=cuts_sequence)
        log.issued.clear()
        train_on_shards(net, model)
    expected = job(model, tp, tp=tp, zero=0, sequence_parallel=cuts_sequence)
    assert predicted(expected, without="partial_gradient") == log.issued


@pytest.mark.parametrize("root", [True, False])
def test_fsdp2_over_tensor_parallel_layers_adds_partial_gradients_up_before_it_reduces(root):
    """The two groups work side by side, so there is an order within each only."""
    model = llama(kv_heads=4)
    with fake_world(8) as log:
        mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
        net = reference_model(model)
        tensor_parallel(net, mesh["tp"], cuts_sequence=True)
        shard(net, mesh["dp"], root=root)
        log.issued.clear()
        train_on_shards(net, model)
    stack = {"base": "torch", "sharding_units": "root" if root else "ends"}
    expected = predicted(job(model, 8, tp=2, zero=3, sequence_parallel=True, stack=stack))
    for ranks in (4, 2):
        of_group = [each for each in expected if each[1] == ranks]
        assert of_group == [each for each in log.issued if each[1] == ranks]
    assert len(expected) == len(log.issued)


# --- context and expert parallelism -----------------------------------------------------------


def test_a_ring_of_keys_and_values_and_of_their_gradients():
    """Torch passes to the neighbour by an all_to_all_single with one part that is not empty."""
    cp, model = 4, llama(layers=1, kv_heads=4)
    local = SEQ_LEN // cp
    ring.set_rotate_method("alltoall")
    with fake_world(cp) as log:
        query, key, value = (
            torch.randn(MICRO_BATCH, model.heads, local, model.head_dim, dtype=torch.bfloat16)
            for _ in range(3)
        )
        group = dist.group.WORLD
        output, log_sum = ring._templated_ring_attention(
            group, 2, flash_attention, query, key, value, is_causal=True
        )[:2]
        forward, log.issued = log.issued, []
        ring._templated_ring_attention_backward(
            group, 2, flash_attention_backward, torch.ones_like(output), "grad_out",
            query, key, value, output, log_sum, is_causal=True,
        )  # fmt: skip
    plan = {"cp": cp, "zero": 0, "precision": "bf16"}
    collectives = [
        collective
        for collective in rank_collectives(build_program(job(model, cp, **plan)))
        if collective.axis == "cp"
    ]
    hops = [("all_to_all", each.ranks, each.num_bytes) for each in collectives]
    assert {collective.kind for collective in collectives} == {Kind.SEND_RECV}
    assert hops == forward + log.issued
    assert len(forward) == cp - 1
    assert len(log.issued) == (cp - 1) + cp


def flash_attention(query, key, value, is_causal, **_):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal
    )


def flash_attention_backward(grad_out, query, key, value, out, logsumexp, is_causal, **_):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, query, key, value, out, logsumexp, 0.0, is_causal
    )


def test_experts_exchange_counts_copies_and_results():
    """Nothing arrives in a fake world, so the size of an exchange is what a rank sends."""
    model = llama(layers=2, experts=Experts(count=8, top_k=2, ffn_hidden=32))
    with fake_world(4) as log:
        net = reference_model(model)
        split_experts(net)
        log.issued.clear()
        train(net, model)
    collectives = rank_collectives(build_program(job(model, 4, ep=4, zero=0)))
    exchanges = [
        (each.kind.value, each.ranks, each.num_bytes) for each in collectives if each.axis == "ep"
    ]
    assert exchanges == log.issued


def test_fsdp1_reduces_in_the_format_of_its_products_where_nobody_says_otherwise():
    with fake_ranks(2):
        half = MixedPrecision(param_dtype=torch.bfloat16)
        sharded = FullyShardedDataParallel(
            nn.Linear(4, 4), mixed_precision=half, device_id=torch.device("cpu")
        )
        reduced = sharded._handle._reduce_dtype
    plan = job(llama(), 2, zero=3, precision="bf16", stack="torch-fsdp").plan
    assert reduced is torch.bfloat16
    assert plan.stack.grad_reduce_precision == "bf16"
