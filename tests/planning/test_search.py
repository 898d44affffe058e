"""Is the plan that a search finds the fastest under the full simulation of all plans?"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simulator.described.job import Job
from simulator.described.variation import Lengths
from simulator.errors import InputError
from simulator.planning.search import candidates, plan_trial, search
from simulator.planning.search.bound import plan_bounds
from simulator.planning.search.plan_costs import CostTables, KnownCosts
from simulator.planning.search.search import PlanSearch, pareto_front, search_plans
from simulator.planning.search.space import plan_axes, plan_space
from simulator.results.fit_probability import EVEN, allowed_device_bytes, job_spread
from simulator.results.simulation import run_step
from tests.jobs import jobs as any_jobs
from tests.jobs import small_job, small_model

SCHEDULES = {
    "plan.schedule": [
        "naive", "gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zb-h1", "zb-v", "v-half",
        "dualpipe", "dualpipev", "chimera", "pipedream",
    ],
}  # fmt: skip
EXPERTS = {"count": 4, "top_k": 2, "ffn_hidden": 64}


def with_memory(job: Job, num_bytes: float) -> Job:
    """The job on devices of another size, which keep nothing for themselves."""
    profile = job.cluster.profile
    device = profile.device.model_copy(update={"memory_bytes": num_bytes, "context_bytes": 0.0})
    cluster = job.cluster.model_copy(
        update={"profile": profile.model_copy(update={"device": device})}
    )
    return job.model_copy(update={"cluster": cluster})


ROOMY = with_memory(small_job(gpus=8, global_batch=16), 64e9)
"""A job whose every plan fits, communicators and all."""


class Simulated(NamedTuple):
    """A plan under the full simulation."""

    step_time_s: float
    number: int
    peak_device_bytes: float
    changes: dict


def with_even_odds(job: Job, peak_bytes: float) -> Job:
    """The job on devices where a plan of that predicted peak fits as likely as not."""
    return with_memory(job, peak_bytes * math.exp(job_spread(job).centre) * (1 + 1e-12))


def simulate_all(job: Job, vary: dict) -> list[Simulated]:
    """Every plan, fully simulated, fastest first."""
    space = plan_space(job, vary)
    rows = []
    for number in range(len(space)):
        try:
            step = run_step(space.plan_job(number))
        except InputError:
            continue
        peak = max(memory.peak_device_bytes for memory in step.memory)
        rows.append(Simulated(step.step_time_s, number, peak, space.changes(number)))
    return sorted(rows, key=lambda row: row[:2])


SMALL = {"plan.tp": [1, 2], "plan.pp": [1, 2, 4], "batch.micro": [1, 2]}


@pytest.mark.parametrize(
    ("job", "vary"),
    [
        (small_job(gpus=8, global_batch=16), SMALL),
        (small_job(gpus=8, global_batch=8, overlap_grad_reduce=False), SMALL),
        (
            small_job(gpus=8, global_batch=16),
            {
                **SCHEDULES,
                "plan.pp": [2, 4],
                "plan.vpp": [1, 2],
                "plan.tp": [1],
                "plan.zero": [0, 1],
                "plan.recompute": ["none", "full"],
                "batch.micro": [1, 4],
            },
        ),
        (
            small_job(small_model(experts=EXPERTS), gpus=8, global_batch=16),
            {
                **SMALL,
                "plan.ep": [1, 2, 4],
                "plan.recompute": ["none", "full"],
                "plan.zero": [0, 1, 3],
            },
        ),
    ],
    ids=["dense", "blocking", "schedules", "experts"],
)
def test_the_choices_are_the_fastest_under_the_full_simulation_of_all_plans(job, vary):
    rows = simulate_all(with_memory(job, 1e12), vary)
    for share in (1.0, 0.3):
        found = fastest_that_fit(job, vary, rows, share)
        assert found.simulated < found.plans


def fastest_that_fit(job: Job, vary: dict, rows: list[Simulated], share: float) -> PlanSearch:
    """The search on devices that so large a share of plans fits, whose choices are checked."""
    peaks = sorted(row.peak_device_bytes for row in rows)
    capacity = peaks[int(share * (len(peaks) - 1))]
    expected = [row for row in rows if row.peak_device_bytes <= capacity]
    found = search_plans(with_even_odds(job, capacity), vary, top=5, risk=EVEN)
    assert [(choice.step_time_s, choice.changes) for choice in found.choices] == [
        (row.step_time_s, row.changes) for row in expected[:5]
    ]
    return found


@given(any_jobs(), st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_choices_of_random_spaces_are_the_fastest_of_all_their_plans(job, data):
    assume(job.cluster.gpus <= 8)

    def some(values):
        return data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))

    degrees = [degree for degree in (1, 2, 4) if job.cluster.gpus % degree == 0]
    kept = {f"plan.{name}": [getattr(job.plan, name)] for name in ("cp", "ep", "vpp")}
    free = {
        "plan.tp": degrees,
        "plan.pp": degrees,
        "plan.zero": [0, 1, 2, 3],
        "batch.micro": [1, 2],
    }
    vary = {**kept, **{path: some(values) for path, values in free.items()}}
    try:
        rows = simulate_all(with_memory(job, 1e12), vary)
    except InputError:
        rows = []
    assume(rows)
    fastest_that_fit(job, vary, rows, data.draw(st.sampled_from([1.0, 0.6, 0.3])))


@given(any_jobs(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_bound_is_above_what_is_simulated(job, varies_zero):
    vary = {"plan.zero": [job.plan.zero]} if not varies_zero else {}
    axes = {f"plan.{name}": [getattr(job.plan, name)] for name in ("tp", "pp", "vpp", "cp", "ep")}
    try:
        fields = {**axes, **vary, "plan.recompute": [job.plan.recompute]}
        space = plan_space(job, {**fields, "batch.micro": [job.batch.micro_batch]})
    except InputError:
        return
    bounds = plan_bounds(space)
    for number in range(len(space)):
        step = run_step(space.plan_job(number))
        assert bounds.step_time_s[number] <= step.step_time_s
        peak = max(memory.peak_device_bytes for memory in step.memory)
        assert bounds.peak_device_bytes[number] <= peak


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved-1f1b"])
@pytest.mark.parametrize("zero", [0, 1])
def test_the_memory_of_common_schedules_is_bounded_closely(schedule, zero):
    job = small_job(
        small_model(layers=8), gpus=16, global_batch=64, overlap_grad_reduce=False,
        stack="megatron-core",
    )  # fmt: skip
    fields = {"tp": [2], "pp": [4], "vpp": [2 if schedule == "interleaved-1f1b" else 1]}
    vary = {f"plan.{name}": values for name, values in fields.items()}
    vary |= {"plan.schedule": [schedule], "plan.zero": [zero], "batch.micro": [1]}
    space = plan_space(with_memory(job, 1e12), vary)
    bounds = plan_bounds(space)
    assert len(space) == 3  # one for each recomputation
    for number in range(len(space)):
        step = run_step(space.plan_job(number), "replay")
        peak = max(memory.peak_allocated_bytes for memory in step.memory)
        assert bounds.peak_allocated_bytes[number] == pytest.approx(peak, rel=0.02)


def test_bounds_up_to_some_memory_are_those_without_a_limit_for_all_that_fit():
    space = plan_space(small_job(gpus=8), {**SMALL, "plan.recompute": ["none", "full"]})
    every = plan_bounds(space)
    most_bytes = sorted(every.peak_device_bytes)[len(space) // 2]
    some, fits = plan_bounds(space, most_bytes=most_bytes), every.peak_device_bytes <= most_bytes
    assert ((some.peak_device_bytes <= most_bytes) == fits).all()
    assert (some.peak_device_bytes <= every.peak_device_bytes).all()
    assert (some.peak_device_bytes[fits] == every.peak_device_bytes[fits]).all()
    assert (some.step_time_s[fits] == every.step_time_s[fits]).all()


def test_costs_that_are_known_are_not_computed_again():
    space = plan_space(small_job(gpus=8), SMALL)
    tables = CostTables(space)
    first = plan_bounds(space, tables)
    again = plan_bounds(space, tables)
    assert (first.step_time_s == again.step_time_s).all()
    assert (first.peak_device_bytes == again.peak_device_bytes).all()


def test_costs_of_a_part_of_a_space_are_those_of_the_whole():
    vary = {**SMALL, "plan.recompute": ["none", "full"], "plan.zero": [0, 1, 3]}
    job, known = small_job(gpus=8), KnownCosts()
    part = plan_space(job, vary, part={"plan.recompute": ["full"], "plan.zero": [1, 3]})
    assert {part.changes(n)["plan.recompute"] for n in range(len(part))} == {"full"}
    plan_bounds(part, CostTables(part, known))
    of_part = len(known.rows)
    whole = plan_space(job, vary)
    shared, alone = plan_bounds(whole, CostTables(whole, known)), plan_bounds(whole)
    assert len(known.rows) > of_part > 0
    assert (shared.step_time_s == alone.step_time_s).all()
    assert (shared.peak_device_bytes == alone.peak_device_bytes).all()


def test_a_plan_of_the_space_is_what_replacing_fields_gives():
    from simulator.described.load import job_from_document

    job = job_from_document(
        {
            "model": {"base": "llama3.1-8b", "layers": 8},
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 16},
            "batch": {"global": 32, "seq_len": 4096},
        }
    )
    space = plan_space(job)
    for number in range(0, len(space), len(space) // 5):
        slow, fast = job.replace(space.changes(number)), space.plan_job(number)
        assert fast.model_dump() == slow.model_dump()


def test_all_plans_are_searched_for_or_pruned_for_a_reason():
    found = search_plans(ROOMY, SMALL, top=3)
    pruned = found.pruned
    reasons = (
        pruned.too_large, pruned.too_large_simulated, pruned.slower_bound,
        pruned.slower_replay, pruned.slower_simulation,
    )  # fmt: skip
    assert sum(reasons) + len(found.choices) == found.plans


def test_plans_that_nobody_can_build_are_refused_and_not_a_crash():
    vary = {**SMALL, "plan.pp": [2], "plan.schedule": ["pipedream", "1f1b"]}
    found = search_plans(ROOMY, vary, top=3)
    assert len(found.choices) == 3
    assert {choice.changes["plan.schedule"] for choice in found.choices} == {"1f1b"}
    assert found.pruned.refused["plan.schedule"] > 0


@pytest.mark.parametrize(
    ("model", "plan"), [({"sliding_window": 8}, {}), ({}, {"attention": "unfused"})]
)
def test_plans_that_cannot_share_a_sequence_are_left_out_and_do_not_end_the_search(model, plan):
    job = with_memory(small_job(small_model(**model), gpus=4, global_batch=8, **plan), 64e9)
    found = search_plans(job, {"plan.tp": [1], "plan.pp": [1], "plan.cp": [1, 2]})
    assert found.choices[0].changes["plan.cp"] == 1
    assert found.pruned.refused["plan.cp"] > 0


def test_the_answer_does_not_depend_on_where_plans_are_simulated():
    job = ROOMY
    alone = search_plans(job, SMALL, top=4)
    with ThreadPoolExecutor(3) as executor:
        spread = search_plans(job, SMALL, top=4, executor=executor, at_a_time=3)
    assert spread.choices == alone.choices


def test_a_search_on_processes_is_the_same_whichever_of_its_plans_is_known_first():
    class Late(ThreadPoolExecutor):
        """Ends tasks in the order in which they were not begun: two by two, the second first."""

        def submit(self, *task):
            self.tasks = [*getattr(self, "tasks", ()), task]
            wait = len(self.tasks) % 2
            return super().submit(lambda: (sleep(0.05 * wait), task[0](*task[1:]))[1])

    def found(executor_type):
        with executor_type(2) as executor:
            return search_plans(ROOMY, SMALL, top=3, executor=executor, at_a_time=2)

    assert found(Late) == found(ThreadPoolExecutor)


def test_nothing_is_simulated_where_no_plan_can_fit(monkeypatch):
    monkeypatch.setattr(plan_trial, "build_program", None)
    found = search_plans(with_memory(small_job(gpus=8), 1.0), SMALL)
    assert found.choices == ()
    assert found.pruned.too_large == found.plans
    assert found.smallest is not None


def test_progress_says_how_many_plans_could_still_be_faster():
    seen = []
    search_plans(ROOMY, SMALL, on_progress=seen.append)
    assert seen[-1].open == 0
    assert seen[-1].replayed == len(seen) > seen[-1].simulated > 0


def test_a_first_answer_comes_before_all_plans_have_bounds_and_changes_nothing(monkeypatch):
    """Where a space is large; here every one counts as large."""
    seen = []
    vary = {**SMALL, "plan.recompute": ["none", "full"], "batch.micro": [1, 2]}
    usual = search_plans(ROOMY, vary, top=3)
    monkeypatch.setattr(candidates, "_MANY_COMBINATIONS", 0)
    early = search_plans(ROOMY, vary, top=3, on_progress=seen.append)
    first = seen[0]
    assert first.open is None
    assert first.gap_share == 1
    assert early.choices == usual.choices
    assert first.best_s >= early.choices[0].step_time_s == seen[-1].best_s


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_which_plans_are_tried_first_because_they_are_quick_changes_nothing(monkeypatch, share):
    vary = {**SMALL, "plan.recompute": ["none", "full"]}
    usual = search_plans(ROOMY, vary, top=3)
    monkeypatch.setattr(search, "_NEAR_SHARE", share)
    other = search_plans(ROOMY, vary, top=3)
    assert other.choices == usual.choices
    assert other.gap_share == 0


def test_plans_that_are_tried_while_all_are_bounded_change_nothing(monkeypatch):
    vary = {**SMALL, "plan.recompute": ["none", "full"], "batch.micro": [1, 2]}
    alone = search_plans(ROOMY, vary, top=3)
    monkeypatch.setattr(candidates, "_MANY_COMBINATIONS", 0)
    begun = []
    bounded = candidates.plan_bounds

    class Counting(ThreadPoolExecutor):
        def submit(self, *task):
            begun.append(task)
            return super().submit(*task)

    def bounds(space, *arguments, **settings):
        begun_before.append(len(begun))
        return bounded(space, *arguments, **settings)

    begun_before = []
    monkeypatch.setattr(candidates, "plan_bounds", bounds)
    with Counting(2) as executor:
        spread = search_plans(ROOMY, vary, top=3, executor=executor, at_a_time=2)
    assert begun_before[0] == 0
    assert 0 < begun_before[1] <= 4
    assert spread.choices == alone.choices


def test_no_first_answer_is_given_that_does_not_fit(monkeypatch):
    monkeypatch.setattr(candidates, "_MANY_COMBINATIONS", 0)
    seen = []
    found = search_plans(with_memory(small_job(gpus=8), 1.0), SMALL, on_progress=seen.append)
    assert (found.choices, seen) == ((), [])


def test_the_next_plan_may_be_the_first_answer_where_the_quickest_holds_too_much(monkeypatch):
    monkeypatch.setattr(candidates, "_MANY_COMBINATIONS", 0)
    trials = []

    def tried(job, limit_s):
        trial = plan_trial.try_plan(job, limit_s)
        trials.append(trial)
        return trial._replace(peak_device_bytes=1e15) if len(trials) == 1 else trial

    monkeypatch.setattr(candidates, "try_plan", tried)
    first = candidates.first_answer(ROOMY, plan_axes(ROOMY, SMALL), 1e12)
    assert first.trial == trials[1]


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        ({"cluster.gpus": [8]}, "cannot be varied"),
        ({"plan.nonsense": [8]}, "cannot be varied"),
        ({"plan.tp": []}, "at least one value"),
        ({"plan.tp": ["four"]}, "plan.tp"),
        ({"batch.micro": [0]}, "batch.micro"),
    ],
)
def test_a_field_or_value_that_cannot_be_varied_is_the_users_to_mend(vary, words):
    with pytest.raises(InputError, match=words):
        plan_space(small_job(gpus=8), vary)


def test_no_plan_beats_one_of_the_front_in_both_time_and_memory():
    model = small_model(hidden=512, ffn_hidden=2048, vocab=32000)
    job = with_memory(small_job(model, gpus=4, global_batch=8, seq_len=512), 64e9)
    vary = {"plan.vpp": [1], "plan.cp": [1], "plan.zero": [0, 1], "batch.micro": [1, 2]}
    front = pareto_front(job, vary, most=50)
    every = simulate_all(job, vary)
    assert len(front) > 1
    for choice in front:
        # A plan of the front may be up to the front's step in memory above the next.
        better = [
            plan for plan in every
            if plan.step_time_s < choice.step_time_s * (1 - 1e-9)
            and plan.peak_device_bytes <= choice.peak_device_bytes
        ]  # fmt: skip
        assert better == []
    times = [choice.step_time_s for choice in front]
    sizes = [choice.peak_device_bytes for choice in front]
    assert times == sorted(times)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] * 0.98 <= min(plan.peak_device_bytes for plan in every)


def test_less_risk_is_a_smaller_device():
    job = with_memory(small_job(gpus=4, global_batch=8), 20e6)
    vary = {"plan.vpp": [1], "plan.cp": [1]}
    found = search_plans(job, vary, risk=0.1)
    less = search_plans(with_even_odds(job, allowed_device_bytes(job, 0.1)), vary, risk=EVEN)
    assert [plan.changes for plan in found.choices] == [plan.changes for plan in less.choices]
    assert all(plan.fits_probability >= 0.9 for plan in found.choices)


def test_a_search_knows_what_padded_sequences_reserve():
    model = small_model(layers=2, hidden=256, ffn_hidden=1024, vocab=32000)
    longest = small_job(model, gpus=1, global_batch=8, seq_len=512)
    lengths = Lengths(values=(64, 200, 350, 512))
    batch = longest.batch.model_copy(update={"lengths": lengths})
    job = longest.model_copy(update={"batch": batch})
    trial = plan_trial.try_plan(job, math.inf)
    assert trial.peak_device_bytes == run_step(job).peak_device_bytes
    assert trial.peak_device_bytes > run_step(longest).peak_device_bytes


@pytest.mark.parametrize("within", [0.01, 0.1, 0.5])
def test_an_early_answer_is_as_near_to_the_fastest_plan_as_it_says(within):
    job = with_memory(small_job(gpus=8, global_batch=16), 1e12)
    axes = {**SMALL, "plan.recompute": ["none", "full"]}
    fastest = search_plans(job, axes)
    early = search_plans(job, axes, within=within)
    (choice,) = early.choices
    assert fastest.gap_share == 0
    assert early.gap_share <= within
    assert choice.step_time_s * (1 - early.gap_share) <= fastest.choices[0].step_time_s
    assert early.replayed <= fastest.replayed
    assert early.simulated <= fastest.simulated
