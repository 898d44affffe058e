"""What a rank sends in one step is what the papers say, to the byte."""

from __future__ import annotations

from fractions import Fraction

import pytest

from simulator.described.job import Job
from simulator.program.build import build_program
from simulator.program.grid.stage_layers import stage_slices
from simulator.program.ir import Collective, Kind
from simulator.program.states.resident import slice_parameters
from simulator.results.traffic import rank_collectives, sent_bytes
from tests.jobs import small_job, small_model

HALF = 2.0
"""Bytes of an activation in 16 bits."""


def collectives(job: Job, axis: str) -> list[Collective]:
    return [each for each in rank_collectives(build_program(job)) if each.axis == axis]


def sent(job: Job, axis: str) -> float:
    return sum(map(sent_bytes, collectives(job, axis)))


def parameters(job: Job) -> float:
    return sum(slice_parameters(job, run).total for run in stage_slices(job, 1))


@pytest.mark.parametrize("n", [2, 4, 8, 16])
@pytest.mark.parametrize(("zero", "passes"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_zero_moves_two_or_three_times_the_parameters(zero, passes, n):
    """ZeRO (arXiv 1910.02054), section 7: everything in one format, one microbatch.

    Psi parameters, (n-1)/n of them per pass: whole gradients twice, or shards there and
    weights back, and with stage 3 weights once more.
    """
    job = small_job(gpus=n, global_batch=n, zero=zero, precision="fp32")
    expected = passes * parameters(job) * 4.0 * (n - 1) / n
    assert sent(job, "dp") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("layers", [1, 4])
def test_a_layer_all_reduces_its_activation_four_times_per_microbatch(tp, layers):
    """Megatron-LM (arXiv 1909.08053), section 3: two forward, two backward."""
    b, s, microbatches = 2, 64, 3
    model = small_model(layers=layers, hidden=128, kv_heads=8)
    job = small_job(
        model, gpus=tp, tp=tp, micro_batch=b, global_batch=b * microbatches, seq_len=s,
        sequence_parallel=False,
    )  # fmt: skip
    of_layers = [each for each in collectives(job, "tp") if is_of_layer(each)]
    assert len(of_layers) == 4 * layers * microbatches
    assert {each.kind for each in of_layers} == {Kind.ALL_REDUCE}
    assert {each.num_bytes for each in of_layers} == {b * s * 128 * HALF}


def is_of_layer(collective: Collective) -> bool:
    return collective.name.startswith(("qkv", "attention_output", "mlp"))


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_sequence_parallelism_moves_the_same_bytes_as_gathers_and_scatters(tp):
    """Korthikanti et al. (arXiv 2205.05198), section 4.2.2; without gathering again."""
    stack = {"base": "megatron-core", "keeps_gathered": True}
    kept, plain, megatron = (
        [
            each
            for each in collectives(small_job(gpus=tp, tp=tp, stack=name, **plan), "tp")
            if is_of_layer(each)
        ]
        for name, plan in (
            (stack, {"sequence_parallel": True}),
            ("megatron-core", {"sequence_parallel": False}),
            ("megatron-core", {"sequence_parallel": True}),
        )
    )
    assert {each.kind for each in kept} == {Kind.ALL_GATHER, Kind.REDUCE_SCATTER}
    assert sum(map(sent_bytes, kept)) == pytest.approx(sum(map(sent_bytes, plain)), rel=1e-12)
    # Megatron stores the gathered inputs cut, and gathers two of them again.
    assert sum(map(sent_bytes, megatron)) == pytest.approx(
        sum(map(sent_bytes, plain)) * 5 / 4, rel=1e-12
    )


@pytest.mark.parametrize("p", [2, 4, 8])
def test_ulysses_trades_four_activations_over_p_ranks(p):
    """DeepSpeed-Ulysses (arXiv 2309.14509), section 3.2: messages of 4 b s h / p."""
    s, model = 64, small_model(layers=1, kv_heads=8)
    job = small_job(
        model, gpus=p, cp=p, cp_method="all_to_all", seq_len=s, global_batch=1, attention="flash"
    )
    traded = collectives(job, "cp")
    assert {each.kind for each in traded} == {Kind.ALL_TO_ALL}
    forward, backward = traded[:2], traded[2:]
    for one_pass in (forward, backward):
        assert sum(each.num_bytes for each in one_pass) == 4 * s * model.hidden / p * HALF


@pytest.mark.parametrize("p", [2, 4, 8])
def test_a_ring_passes_keys_and_values_of_all_other_ranks(p):
    """Ring attention (arXiv 2310.01889), section 3: 2 b s h_kv (p-1)/p forward.

    Backward, keys and values go round again and their gradients all the way home.
    """
    s, model = 64, small_model(layers=1)
    key_value = 2 * s * model.kv_heads * model.head_dim * HALF
    job = small_job(model, gpus=p, cp=p, seq_len=s, global_batch=1, attention="flash")
    hops = collectives(job, "cp")
    forward, backward = hops[: p - 1], hops[p - 1 :]
    assert sum(map(sent_bytes, forward)) == key_value * Fraction(p - 1, p)
    assert sum(map(sent_bytes, backward)) == key_value * (Fraction(p - 1, p) + 1)


def test_a_transfer_is_listed_with_its_sender():
    program = build_program(small_job(gpus=2, pp=2, global_batch=4))
    for stage in range(2):
        hops = [each for each in rank_collectives(program, stage) if each.axis == "pp"]
        assert [each.kind for each in hops] == [Kind.SEND_RECV] * 4
