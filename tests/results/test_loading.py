"""What is held before the first step, where it is more than any step holds."""

from __future__ import annotations

from simulator.described.model import Experts
from simulator.program.grid.stage_layers import stage_slices
from simulator.program.ir import Owner, total_bytes
from simulator.program.states.resident import slice_parameters
from simulator.results.memory import BEFORE_THE_STEP_S, peak_moment
from simulator.results.simulation import run_step
from tests.jobs import small_job, small_model

LORA = {"rank": 1, "targets": ["query"]}


def fullest(**stack):
    model = small_model(layers=8, hidden=512, ffn_hidden=2048)
    return run_step(
        small_job(
            model, gpus=4, seq_len=16, zero=3, precision="bf16", recompute="full", lora=LORA,
            stack={"base": "torch", **stack},
        ),
        "replay",
    )  # fmt: skip


def test_weights_are_whole_beside_their_shards_while_a_full_state_is_loaded():
    result = fullest(loads_whole_weights=True)
    (memory,) = result.memory
    shards, whole = (memory.by_owner[o] for o in (Owner.WEIGHTS, Owner.GATHERED_WEIGHTS))
    assert whole == 4 * shards
    assert memory.peak_allocated_bytes == shards + whole
    assert memory.peak_time_s == BEFORE_THE_STEP_S
    assert peak_moment(result.timeline, 0, memory.peak_time_s) == "loading of the weights"


def test_loading_is_no_peak_where_weights_are_loaded_in_shards():
    (memory,) = fullest().memory
    loaded = fullest(loads_whole_weights=True).timeline.program.classes[0].loading
    assert memory.peak_allocated_bytes < total_bytes(loaded)
    assert memory.peak_time_s >= 0


def test_frozen_experts_are_whole_while_a_full_state_is_loaded_as_other_frozen_weights_are():
    experts = Experts(count=4, top_k=2, ffn_hidden=128)
    model = small_model(layers=2, experts=experts)
    job = small_job(
        model, gpus=4, seq_len=16, zero=3, precision="bf16", lora=LORA,
        stack={"base": "torch", "loads_whole_weights": True},
    )  # fmt: skip
    (loading,) = {each.loading for each in run_step(job, "replay").timeline.program.classes}
    count = slice_parameters(job, stage_slices(job, 1)[0])
    assert count.frozen_expert > count.frozen_dense > 0
    whole = dict(loading)[Owner.GATHERED_WEIGHTS]
    assert whole == 4 * count.trained + 2 * (count.frozen_dense + count.frozen_expert)
