"""What is held before the first step, where it is more than any step holds."""

from __future__ import annotations

from simulator.program.ir import Owner, total_bytes
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
