"""Which layers each virtual stage holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cells import read_table
from simulator.described.documents import validated
from simulator.described.job import Job
from simulator.described.plan.plan import Plan
from simulator.errors import Fault, InputError
from simulator.program.build import build_program
from simulator.program.grid.stage_layers import Slice, cut, stage_slices
from simulator.program.ir import Kind
from simulator.program.price.stage_cost import StageCosts
from simulator.program.strategies.backward_memory import BackwardMemory
from simulator.results.simulation import run_step
from simulator.schedule import Phase
from tests.jobs import small_job, small_model

RUNS = Path(__file__).parents[2] / "reports" / "data" / "runs_opened.csv"


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


def test_nanotron_gives_each_stage_layers_until_it_has_passed_its_share_of_the_cost():
    """Llama 3 8B: 34.2 times a layer with the head, 4.3 for each of 8 stages."""
    model = small_model(
        layers=32, hidden=4096, ffn_hidden=14336, heads=32, kv_heads=32, vocab=128256,
        head_dim=128,
    )  # fmt: skip
    job = small_job(model, gpus=8, pp=8, stack="nanotron", global_batch=8)
    held = [run.end - run.first for run in stage_slices(job, 8)]
    assert held == [5, 4, 4, 5, 4, 4, 4, 2]


def test_nanotron_deals_layers_as_55_published_runs_say():
    """Their units per stage, with embedding and head."""
    said = re.compile(r"units per stage incl\. embedding and head ([\d/]+)")
    seen = 0
    for row in read_table(RUNS, ["id", "notes"]):
        found = said.search(row["notes"])
        if not row["id"].startswith("nanotron-") or not found:
            continue
        layers, hidden, ffn, heads, vocab, pp = (
            int(row[name]) for name in ("layers", "hidden", "ffn_hidden", "heads", "vocab", "pp")
        )
        model = small_model(
            layers=layers, hidden=hidden, ffn_hidden=ffn, heads=heads, kv_heads=heads, vocab=vocab,
            head_dim=hidden // heads,
        )  # fmt: skip
        job = small_job(model, gpus=pp, pp=pp, stack="nanotron", global_batch=pp)
        units = [run.end - run.first for run in stage_slices(job, pp)]
        units[0], units[-1] = units[0] + 1, units[-1] + 1
        assert "/".join(map(str, units)) == found.group(1)
        seen += 1
    assert seen == 55


def test_layers_that_divide_are_dealt_out_evenly():
    assert counts(8, 4) == [2, 2, 2, 2]


@pytest.mark.parametrize(("stages", "held"), [(3, [10, 11, 11]), (5, [6, 6, 6, 7, 7])])
def test_some_frameworks_give_the_last_stages_the_layers_that_do_not_divide(stages, held):
    assert counts(32, stages, stack={"uneven_layers": "last"}) == held


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


def laid_out(layout, layers: int = 7, pp: int = 4, vpp: int = 1, **plan) -> Job:
    model = small_model(layers=layers)
    gpus = pp * plan.pop("dp", 1)
    return small_job(model, gpus=gpus, pp=pp, vpp=vpp, layout=layout, **plan)


def layout_fault(layout, **job) -> Fault:
    with pytest.raises(InputError) as raised:
        laid_out(layout, **job)
    (fault,) = raised.value.faults
    assert fault.path == "plan.layout"
    assert fault.value == layout
    assert fault.hint
    return fault


@pytest.mark.parametrize("layout", [(1, 4, 2, 0), "Et|t*4|tt|L"])
def test_a_layout_says_which_layers_each_stage_holds(layout):
    runs = stage_slices(laid_out(layout), 4)
    assert [(run.first, run.end) for run in runs] == [(0, 1), (1, 5), (5, 7), (7, 7)]
    assert [run.has_embedding for run in runs] == [True, False, False, False]
    assert [run.has_head for run in runs] == [False, False, False, True]


def test_a_layout_with_more_stages_than_layers_is_sound():
    job = laid_out((0, 1, 1, 0), layers=2)
    assert [run.end - run.first for run in stage_slices(job, 4)] == [0, 1, 1, 0]


def test_a_layout_with_the_wrong_number_of_stages_says_how_many():
    fault = layout_fault((2, 3, 2))
    assert fault.rule == "has 3 stages, but pp x vpp = 4 x 1 = 4"
    assert "vpp" not in fault.hint
    assert "plan.vpp: 2" in layout_fault((1, 1, 1, 1, 1, 1, 1, 0)).hint
    assert layout_fault("Et*4|t*3L").rule.startswith("has 2 stages")


def test_a_layout_with_the_wrong_number_of_layers_says_how_many():
    for layout in [(2, 2, 2, 2), "Ett|(tt|)*2ttL"]:
        assert layout_fault(layout).rule == "has 8 layers, but the model has 7"


def test_a_layout_string_names_every_multi_token_module():
    assert layout_fault("Et|t*4|tt|mL").rule.startswith("has 1 multi-token-prediction modules")
    model = small_model(layers=4, multi_token_layers=1)
    for layout in ["Ett|ttmL", (2, 2)]:
        assert small_job(model, gpus=2, pp=2, layout=layout).plan.layout == layout


def test_a_fault_inside_the_string_is_the_only_one_reported():
    assert "'x' at position 3" in layout_fault("Etx|t|t|L").rule


@pytest.mark.parametrize(
    "other",
    [
        {"first_stage_layers": 1},
        {"last_stage_layers": 1},
        {"account_for_embedding": True},
        {"account_for_loss": True},
    ],
)
def test_a_layout_excludes_the_other_ways_to_say_the_same(other):
    assert f"plan.{next(iter(other))}" in layout_fault((1, 2, 2, 2), **other).rule


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"first_stage_layers": 1}, "conflicts with plan.first_stage_layers"),
        ({"stack": "nanotron"}, "does not apply"),
    ],
)
def test_ends_count_as_layers_only_where_the_layers_are_dealt_out_evenly(fields, said):
    with pytest.raises(InputError, match=rf"plan\.account_for_loss.*{said}"):
        small_job(small_model(layers=8), gpus=2, pp=2, account_for_loss=True, **fields)


@pytest.mark.parametrize("layout", [3, [1.0, 2], [-1, 8], ["t", "t"], [True, 6], {"t": 1}])
def test_a_layout_is_a_list_of_layers_or_a_string(layout):
    with pytest.raises(InputError) as raised:
        validated(Plan, {"pp": 2, "layout": layout}, "plan")
    (fault,) = raised.value.faults
    assert fault.path == "plan.layout"
    assert "[3, 4, 4, 3]" in fault.rule


def test_the_even_layout_written_out_changes_nothing():
    even = small_job(small_model(layers=7), gpus=8, pp=4)
    counts = [run.end - run.first for run in stage_slices(even, 4)]
    written = "E" + "|".join(f"t*{count}" for count in counts) + "L"
    steps = [run_step(laid_out(layout, dp=2), "des") for layout in (tuple(counts), written)]
    assert {step.step_time_s for step in steps} == {run_step(even, "des").step_time_s}


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "split",
    [
        {"layout": (0, 0, 7, 0)},
        {"layout": "E||t*7|L"},
        {"layout": (0, 0, 7, 0), "pp": 2, "vpp": 2},
        {"layout": (0, 7, 0, 0), "pp": 2, "vpp": 2, "schedule": "zb-v"},
        {"layout": (0, 0, 7, 0), "schedule": "zb-h1"},
    ],
)
def test_stages_without_layers_run_and_pass_everything_on(split, zero):
    job = laid_out(**split, zero=zero, dp=2, recompute="selective")
    assert run_step(job, "des").step_time_s > 0
    costs, program = StageCosts(job), build_program(job)
    runs = stage_slices(job, 4)
    for phase, kind in ((Phase.FORWARD, Kind.FORWARD), (Phase.BACKWARD, Kind.BACKWARD)):
        if kind not in {operation.kind for operation in program.operations}:
            continue  # schedules that split the backward have no such pass
        done = sum(op.work.flop for op in program.operations if op.kind is kind)
        expected = sum(costs.work(run, phase).flop for run in runs) * job.microbatches
        assert done == pytest.approx(expected)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_the_model_holds_the_same_parameters_under_every_layout(zero):
    def weights(job: Job) -> float:
        classes = build_program(job).classes
        return sum(size for one in classes for owner, size in one.resident)

    # One placeholder for the gradients of each shape and stage says nothing of parameters.
    stack = {"base": "megatron-core", "keeps_placeholder_gradients": False}
    even = small_job(small_model(layers=7), gpus=8, pp=4, zero=zero, stack=stack)
    piled = laid_out((0, 0, 7, 0), dp=2, zero=zero, stack=stack)
    assert weights(piled) == pytest.approx(weights(even))


def test_an_empty_stage_costs_no_time_and_no_memory():
    costs = StageCosts(laid_out((0, 0, 7, 0)))
    empty = Slice(0, 0)
    assert costs.work(empty, Phase.FORWARD).seconds == 0
    assert costs.work(empty, Phase.BACKWARD).seconds == 0
    assert (costs.saved(empty), costs.backward(empty)) == ((), BackwardMemory())
