"""Pipelines that update their weights without a flush."""

from __future__ import annotations

import pytest

from simulator.engine.replay import replay
from simulator.errors import InputError
from simulator.program.build import build_program, steps_around
from simulator.program.ir import Category, Kind, Owner, Program, Stream
from simulator.program.run.order import asynchrony
from simulator.results.simulation import run_step
from simulator.results.views.plain_data import result_to_dict
from tests.jobs import small_job, small_model

NAMES = ["pipedream", "pipedream-2bw"]
every_name = pytest.mark.parametrize("name", NAMES)


def pipeline_job(name: str, stages: int = 4, microbatches: int = 8, **plan):
    model = small_model(layers=4 * stages)
    return small_job(
        model, gpus=stages, pp=stages, global_batch=microbatches, schedule=name, **plan
    )


def compute_kinds(program: Program, rank: int) -> list[Kind]:
    return [program.operations[i].kind for i in program.lanes[rank, Stream.COMPUTE]]


def test_pipedream_updates_after_the_backward_of_every_microbatch():
    """Forward, backward, update in turn once the first microbatches are in flight."""
    program = build_program(pipeline_job("pipedream", stages=2, microbatches=3))
    f, b, update = Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER
    compute = [
        [kind for kind in compute_kinds(program, rank) if kind is not Kind.SEND_RECV]
        for rank in range(2)
    ]
    assert compute[0] == [f, f, b, update, f, b, update, b, update]
    assert compute[1] == [f, b, update] * 3


def test_2bw_updates_after_the_backwards_of_every_step():
    program = build_program(pipeline_job("pipedream-2bw", stages=2, microbatches=4), steps=3)
    for rank in range(2):
        kinds = compute_kinds(program, rank)
        assert kinds.count(Kind.OPTIMIZER) == 3
        backwards = [i for i, kind in enumerate(kinds) if kind is Kind.BACKWARD]
        updates = [i for i, kind in enumerate(kinds) if kind is Kind.OPTIMIZER]
        done = [sum(i < update for i in backwards) for update in updates]
        assert done == [4, 8, 12]


@every_name
def test_no_rank_waits_for_another_in_a_full_pipeline_of_equal_stages(name):
    """The busiest stage sets the pace: a step takes what it computes, updates and sends."""
    job = pipeline_job(name, microbatches=16)
    result = run_step(job, "replay")
    busiest = max(
        sum(s for category, s in each.items() if category.value not in ("bubble", "pipeline"))
        for each in result.class_breakdown_s
    )
    assert result.step_time_s == pytest.approx(busiest, rel=0.02)


def test_2bw_takes_the_bubble_out_of_the_slowest_stage():
    """In 1F1B even that one, the last with its head, waits while the pipeline fills."""
    drained = run_step(pipeline_job("1f1b", microbatches=16), "replay")
    full = run_step(pipeline_job("pipedream-2bw", microbatches=16), "replay")
    idle = [result.class_breakdown_s[-1].get(Category.BUBBLE, 0.0) for result in (drained, full)]
    assert idle[0] > 0.1 * drained.step_time_s
    assert idle[1] == pytest.approx(0.0, abs=1e-6 * full.step_time_s)
    assert full.step_time_s < drained.step_time_s


@every_name
def test_the_step_is_the_period_of_the_pipeline(name):
    """As much longer as one more step makes a long run."""
    job = pipeline_job(name, microbatches=8)
    around = steps_around(job)
    assert around.before >= 1
    result = run_step(job, "replay")
    shorter, longer = (replay(build_program(job, steps=n)).step_time_s for n in (5, 6))
    assert result.step_time_s == pytest.approx(longer - shorter, rel=1e-6)
    assert sum(result.breakdown_s.values()) == pytest.approx(result.step_time_s)


def test_pipedream_stashes_a_version_per_microbatch_in_flight():
    """P - r versions, of which the newest is the weights themselves; 16-bit."""
    job = pipeline_job("pipedream")
    result = run_step(job)
    stashed = [memory.by_owner.get(Owner.STASHED_WEIGHTS, 0.0) for memory in result.memory]
    weights = [memory.by_owner[Owner.WEIGHTS] for memory in result.memory]
    assert stashed == pytest.approx([3 * weights[0], 2 * weights[1], weights[2], 0.0])


def test_2bw_stashes_one_version_everywhere():
    result = run_step(pipeline_job("pipedream-2bw"))
    for memory in result.memory:
        assert memory.by_owner[Owner.STASHED_WEIGHTS] == memory.by_owner[Owner.WEIGHTS]


def test_staleness_is_that_of_the_papers():
    """P - 1 - r updates (arXiv 1806.03377), and one (arXiv 2006.09503)."""
    for name, per_update, versions, stale in (
        ("pipedream", 1, (4, 3, 2, 1), (3, 2, 1, 0)),
        ("pipedream-2bw", 8, (2, 2, 2, 2), (1, 1, 1, 1)),
    ):
        job = pipeline_job(name)
        found = asynchrony(job, job.choices.schedule)
        assert found is not None
        assert found.microbatches_per_update == per_update
        assert found.weight_versions == versions
        assert found.staleness_updates == stale


def test_pipedream_updates_lie_between_a_forward_and_its_backward_as_stated():
    """Counted in the program: staleness is how many updates a rank makes in between."""
    program = build_program(pipeline_job("pipedream", stages=4, microbatches=12))
    for rank in range(4):
        updates, since = 0, {}
        for index in program.lanes[rank, Stream.COMPUTE]:
            operation = program.operations[index]
            updates += operation.kind is Kind.OPTIMIZER
            if operation.kind is Kind.FORWARD:
                since[operation.microbatch] = updates
            if operation.kind is Kind.BACKWARD and operation.microbatch >= 4:
                assert updates - since[operation.microbatch] == 3 - rank


@every_name
def test_the_report_says_that_this_is_not_synchronous_training(name):
    job = pipeline_job(name)
    document = result_to_dict(run_step(job), job)
    assert document["synchronous"] is False
    assert "not synchronous training" in document["asynchrony"]["statement"]
    plain = pipeline_job("1f1b")
    document = result_to_dict(run_step(plain), plain)
    assert document["synchronous"] is True
    assert document["asynchrony"] is None


@every_name
def test_what_would_make_ranks_wait_for_each_other_is_refused(name):
    with pytest.raises(InputError, match=r"plan\.zero"):
        small_job(gpus=4, pp=2, schedule=name)
    with pytest.raises(InputError, match="share the embedding"):
        small_job(small_model(tied_embeddings=True), gpus=2, pp=2, schedule=name)
    with pytest.raises(InputError, match="post_validation"):
        small_job(gpus=2, pp=2, schedule=name, post_validation=True)


def test_2bw_needs_an_update_to_cover_the_pipeline():
    with pytest.raises(InputError, match="at least pp microbatches"):
        pipeline_job("pipedream-2bw", stages=4, microbatches=2)


@every_name
def test_replicas_reduce_the_gradients_of_every_update(name):
    job = small_job(gpus=4, pp=2, zero=0, global_batch=16, schedule=name)
    program = build_program(job)
    reductions = [op for op in program.operations if op.kind is Kind.ALL_REDUCE]
    updates = [op for op in program.operations if op.kind is Kind.OPTIMIZER]
    assert len(updates) == 2 * (8 if name == "pipedream" else 1)
    assert len(reductions) >= len(updates)
    assert all(op.after for op in updates)
