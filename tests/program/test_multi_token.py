"""Multi-token-prediction modules: a join, one more layer and one more pass of the head."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.program.grid.stage_layers import Slice, stage_slices
from simulator.program.layer.model_ends import multi_token_tensors
from simulator.program.price.stage_cost import StageCosts
from simulator.program.states.resident import slice_parameters
from simulator.schedule import Phase
from tests.jobs import small_job, small_model

TOKENS, HIDDEN = 64, 64
HEAD = Slice(4, 4, has_head=True)


def flop(run: Slice, **model: int) -> float:
    return StageCosts(small_job(small_model(**model))).work(run, Phase.FORWARD).flop


def test_a_module_computes_a_join_a_layer_and_the_head_once_more():
    join_flop = 2.0 * TOKENS * HIDDEN * 2 * HIDDEN
    expected = join_flop + flop(Slice(3, 4)) + flop(HEAD)
    assert flop(HEAD, multi_token_layers=1) - flop(HEAD) == pytest.approx(expected)


def test_modules_add_up():
    one, two = (flop(HEAD, multi_token_layers=n) - flop(HEAD) for n in (1, 2))
    assert two == pytest.approx(2 * one)


def test_earlier_runs_do_not_change():
    assert flop(Slice(0, 4), multi_token_layers=1) == flop(Slice(0, 4))


def test_their_parameters_lie_with_the_head():
    model = small_model(multi_token_layers=1)
    extra = sum(tensor.numel for tensor in multi_token_tensors(model))
    with_module = slice_parameters(small_job(model), HEAD).dense
    assert with_module - slice_parameters(small_job(), HEAD).dense == extra


def test_they_read_a_copy_of_the_embedding_on_the_last_stage():
    job = small_job(small_model(multi_token_layers=1), gpus=2, pp=2)
    assert job.choices.copies_embedding
    assert not small_job(gpus=2, pp=2).choices.copies_embedding
    assert not small_job(small_model(multi_token_layers=1)).choices.copies_embedding
    last = stage_slices(job, 2)[-1]
    table = 1024 * HIDDEN
    copied = slice_parameters(job, last, tied_copy=True).dense - slice_parameters(job, last).dense
    assert copied == table


def test_a_module_takes_the_place_of_a_layer_on_the_last_stage():
    runs = stage_slices(small_job(small_model(layers=7, multi_token_layers=1), gpus=4, pp=4), 4)
    assert [run.end - run.first for run in runs] == [2, 2, 2, 1]


def test_a_last_stage_without_room_for_its_modules_is_refused():
    job = small_job(small_model(layers=3, multi_token_layers=2), gpus=2, global_batch=8, pp=2)
    assert [run.end - run.first for run in stage_slices(job, 2)] == [3, 0]
    with pytest.raises(InputError, match="fewer than the 2 units"):
        stage_slices(job, 5)
