"""Which layers each virtual stage holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.program.layout import Slice, cut, stage_slices
from tests.jobs import small_job, small_model


def counts(layers: int, stages: int, **plan) -> list[int]:
    job = small_job(small_model(layers=layers), gpus=stages, pp=stages, **plan)
    return [run.end - run.first for run in stage_slices(job, stages)]


@given(st.integers(1, 8), st.integers(0, 40), st.booleans(), st.booleans())
@settings(deadline=None)
def test_every_layer_is_on_exactly_one_stage_in_order(stages, extra, embedding, loss):
    layers = stages + extra + 2
    job = small_job(
        small_model(layers=layers),
        gpus=stages,
        pp=stages,
        account_for_embedding=embedding,
        account_for_loss=loss,
    )
    runs = stage_slices(job, stages)
    assert [i for run in runs for i in range(run.first, run.end)] == list(range(layers))
    assert [run.has_embedding for run in runs] == [True] + [False] * (stages - 1)
    assert [run.has_head for run in runs] == [False] * (stages - 1) + [True]


@given(st.integers(1, 8), st.integers(0, 40), st.booleans(), st.booleans())
@settings(deadline=None)
def test_stages_differ_by_at_most_one_unit(stages, extra, embedding, loss):
    units = counts(
        stages + extra + 2, stages, account_for_embedding=embedding, account_for_loss=loss
    )
    units[0] += embedding
    units[-1] += loss
    assert max(units) - min(units) <= 1


def test_layers_that_divide_are_dealt_out_evenly():
    assert counts(8, 4) == [2, 2, 2, 2]


def test_the_ends_of_the_pipeline_are_one_layer_short():
    """As Llama 3 405B: 126 layers on 16 stages, 7 on the first and the last."""
    assert counts(126, 16) == [7, *[8] * 14, 7]


def test_embedding_and_loss_take_the_place_of_a_layer_each():
    assert counts(6, 4, account_for_embedding=True, account_for_loss=True) == [1, 2, 2, 1]
    assert counts(7, 4, account_for_embedding=True) == [1, 2, 2, 2]


def test_given_ends_leave_the_rest_to_the_others():
    assert counts(8, 4, first_stage_layers=1, last_stage_layers=3) == [1, 2, 2, 3]
    assert counts(7, 4, last_stage_layers=1) == [2, 2, 2, 1]
    assert counts(4, 2, first_stage_layers=1, last_stage_layers=3) == [1, 3]


@pytest.mark.parametrize(
    ("layers", "plan"),
    [
        (8, {"first_stage_layers": 1}),
        (8, {"first_stage_layers": 8}),
        (8, {"first_stage_layers": 9}),
        (8, {"first_stage_layers": 3, "last_stage_layers": 4}),
    ],
)
def test_ends_that_leave_no_even_rest_are_refused_with_the_field(layers, plan):
    with pytest.raises(InputError) as raised:
        counts(layers, 4, **plan)
    assert raised.value.faults[0].path == "plan.first_stage_layers"


@pytest.mark.parametrize("first", [3, 5])
def test_given_ends_of_a_single_stage_must_be_the_whole_model(first):
    with pytest.raises(InputError):
        counts(4, 1, first_stage_layers=first)


@given(st.integers(0, 5), st.integers(0, 12), st.integers(1, 5), st.booleans(), st.booleans())
def test_cutting_a_run_loses_nothing(first, layers, most, embedding, head):
    run = Slice(first, first + layers, embedding, head)
    pieces = cut(run, most)
    assert [i for piece in pieces for i in range(piece.first, piece.end)] == list(
        range(run.first, run.end)
    )
    assert all(piece.end - piece.first <= most for piece in pieces)
    assert sum(piece.has_embedding for piece in pieces) == embedding
    assert sum(piece.has_head for piece in pieces) == head
    assert pieces[0].has_embedding == embedding
    assert pieces[-1].has_head == head


def laid_out(layout, layers: int, pp: int, vpp: int = 1, **fields):
    plan = {name: fields.pop(name) for name in list(fields) if name in Plan.model_fields}
    model = small_model(layers=layers, **fields)
    return small_job(model, gpus=pp, pp=pp, vpp=vpp, layout=layout, **plan)


def layout_fault(layout, **job):
    with pytest.raises(InputError) as raised:
        laid_out(layout, **job)
    (fault,) = raised.value.faults
    assert fault.path == "plan.layout"
    assert fault.value == layout
    assert fault.hint
    return fault.rule


@pytest.mark.parametrize("layout", [(1, 4, 2, 0), "Et|t*4|(t|)*2L"])
def test_a_layout_says_which_layers_each_stage_holds(layout):
    runs = stage_slices(laid_out(layout, layers=7, pp=4), 4)
    assert [(run.first, run.end) for run in runs] == [(0, 1), (1, 5), (5, 7), (7, 7)]
    assert [run.has_embedding for run in runs] == [True, False, False, False]
    assert [run.has_head for run in runs] == [False, False, False, True]
