"""What models of transformers hold and compute by its release, in closed form."""

from __future__ import annotations

import pytest

from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import total_bytes
from simulator.program.price.stage_cost import StageCosts
from simulator.schedule.slots import Phase
from tests.jobs import small_job

T, H, F, V = 64, 64, 128, 1000
"""Tokens of a microbatch; width, inner width of MLPs and vocabulary of the small model."""
LAYER, LOSS = Slice(1, 2), Slice(4, 4, has_loss=True)


def costs_of(release: str, **plan) -> StageCosts:
    facts = {"stack": "trl", "zero": 0, "master_weights": False, **plan}
    job = small_job(libraries={"transformers": release}, seq_len=T, **facts)
    assert (job.model.hidden, job.model.ffn_hidden, job.model.vocab) == (H, F, V)
    return StageCosts(job)


def test_until_4_49_a_loss_holds_another_fp32_copy_of_all_logits():
    before, since = (
        total_bytes(costs_of(release).forward(LOSS).holds) for release in ("4.48", "4.49")
    )
    assert before - since == 4 * T * V


@pytest.mark.parametrize(("recompute", "repeats"), [("full", 1), ("none", 0)])
def test_until_5_0_a_checkpoint_multiplies_by_its_last_matrix_again(recompute, repeats):
    before, since = (
        costs_of(release, recompute=recompute).work(LAYER, Phase.BACKWARD).flop
        for release in ("4.57", "5.0")
    )
    assert before - since == repeats * 2 * T * H * F


def test_until_5_0_a_checkpoint_holds_its_output_while_it_is_computed_again():
    """As an argument of ``CheckpointFunction.backward``."""
    before, since = (
        costs_of(release, recompute="full").working_bytes(LAYER) for release in ("4.57", "5.0")
    )
    assert before - since == 2 * T * H


def test_a_checkpoint_keeps_the_input_of_its_layer_alone():
    for release in ("4.57", "5.0"):
        assert total_bytes(costs_of(release, recompute="full").saved(LAYER)) == 2 * T * H
