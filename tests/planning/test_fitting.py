"""Is the change that a misfit is answered with real, near and fast?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from simulator.api import simulate
from simulator.cli.options import parse_assignments
from simulator.described.documents import data_folder
from simulator.described.job import Job
from simulator.described.load import job_from_document, load_job
from simulator.errors import InputError
from simulator.planning.changes.advice import explain_misfit
from simulator.planning.changes.helpful_changes import (
    MOST_TRIED,
    FitSearch,
    _FitSearch,
    savings,
    what_ifs,
)
from simulator.planning.changes.helpful_changes import nearest_fit as nearest_fit_at
from simulator.planning.changes.single_changes import Question, single_changes
from simulator.planning.changes.trials import Trial, unbeaten
from simulator.results.fit_probability import DEFAULT_RISK, EVEN
from simulator.results.simulation import run_step
from simulator.units import format_seconds
from tests.planning.test_limits import small_job

MODEL: Mapping[str, Any] = {
    "layers": 8,
    "hidden": 2048,
    "heads": 16,
    "ffn_hidden": 8192,
    "vocab": 32000,
    "gated_mlp": False,
}
"""8 x 12 x 2048^2 + 2 x 32000 x 2048 = 0.53 billion parameters."""


def a_job(memory: str, *, gpus: int = 8, batch: Any = None, **plan: Any) -> Job:
    """A small model on H100s that have less memory than they have in the shop."""
    return job_from_document(
        {
            "model": MODEL,
            "cluster": {"profile": "h100-sxm-80gb", "gpus": gpus, "device": {"memory": memory}},
            "batch": {"global": 32, "seq_len": 2048, **(batch or {})},
            "plan": plan,
        }
    )


@pytest.fixture
def no_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One node is answered as many are, without the ladder of a small machine."""
    name = "simulator.planning.changes.helpful_changes.is_small_machine"
    monkeypatch.setattr(name, lambda job: False)


def nearest_fit(job: Job) -> FitSearch:
    """What the predicted peak itself decides, without room for its error."""
    return nearest_fit_at(job, EVEN)


def fits(job: Job) -> bool:
    """As likely as not, as the search is asked here."""
    return run_step(job, "replay").fits_probability >= EVEN


def peak_gib(job: Job) -> float:
    return max(m.peak_device_bytes for m in run_step(job, "replay").memory) / 2**30


MISFITS = {
    "states of plain data parallelism": a_job("8 GiB", zero=0),
    "activations of a large microbatch": a_job("9 GiB", batch={"micro": 4}),
    "everything": a_job("3.3 GiB", zero=0, batch={"micro": 4}),
    "a single GPU": a_job("7 GiB", gpus=1, batch={"micro": 8}),
    "a stack without model parallelism": a_job("5 GiB", zero=0, stack="torch"),
}


@pytest.mark.parametrize("job", MISFITS.values(), ids=MISFITS)
def test_the_nearest_change_does_fit_when_it_is_simulated(job):
    assert not fits(job)
    nearest = nearest_fit(job).nearest
    step = run_step(job.replace(nearest.changes))
    assert step.fits
    assert nearest.step_time_s == step.step_time_s
    assert nearest.peak_device_bytes == max(m.peak_device_bytes for m in step.memory)


@pytest.mark.parametrize("job", MISFITS.values(), ids=MISFITS)
def test_a_change_never_touches_what_is_learned(job):
    changed = job.replace(nearest_fit(job).nearest.changes)
    assert changed.model == job.model
    assert changed.batch.global_batch == job.batch.global_batch
    assert changed.batch.seq_len == job.batch.seq_len
    assert changed.plan.precision == job.plan.precision
    assert changed.plan.optimizer == job.plan.optimizer


@pytest.mark.parametrize("job", MISFITS.values(), ids=MISFITS)
def test_the_same_job_gets_the_same_answer(job):
    assert nearest_fit(job) == nearest_fit(job)


def test_one_change_is_preferred_and_of_several_the_fastest():
    job = MISFITS["activations of a large microbatch"]
    nearest = nearest_fit(job).nearest
    others = [
        {"plan.recompute": "full"},
        {"batch.micro": 2},
        {"batch.micro": 1},
        {"plan.zero": 2},
        {"plan.zero": 3},
        {"plan.tp": 2},
        {"plan.pp": 2},
    ]
    fitting = [job.replace(change) for change in others if fits(job.replace(change))]
    assert len(fitting) >= 2
    assert len(nearest.changes) == 1
    best_s = run_step(job.replace(nearest.changes), "replay").step_time_s
    assert best_s <= min(run_step(j, "replay").step_time_s for j in fitting)


def test_the_fastest_with_contention_is_found_where_replays_disagree():
    in_full_s = {"first": 9.0, "second": 7.0, "third": 6.5, "too slow without": 7.0}
    replayed_s = {"first": 5.0, "second": 6.0, "third": 6.2, "too slow without": 6.6}
    simulated = []

    def in_full(changes):
        for name in changes:
            simulated.append(name)
            yield SimpleNamespace(change=name, step_time_s=in_full_s[name], fits=name != "third")

    search = _FitSearch(MISFITS["everything"], EVEN)
    vars(search)["_in_full"] = SimpleNamespace(of=in_full)
    replays = [
        SimpleNamespace(change=name, step_time_s=seconds, fits=True)
        for name, seconds in replayed_s.items()
    ]
    assert search._fastest(replays).change == "second"
    assert simulated == [*replayed_s]
    in_full_s["second"] = 6.6
    simulated.clear()
    assert search._fastest(replays).change == "second"
    assert simulated == ["first", "second", "third"]


def test_experts_that_fill_every_gpu_are_spread_over_several():
    model = {**MODEL, "gated_mlp": True, "experts": {"count": 8, "top_k": 2, "ffn_hidden": 8192}}
    job = a_job("25 GiB").replace({"model": model})
    assert not fits(job)
    assert nearest_fit(job).nearest.changes == {"plan.ep": 8}


def test_whole_layers_are_computed_again_whatever_modules_were():
    job = a_job("9 GiB", recompute="selective", recompute_modules=["mlp"])
    smaller = [change.fields for change in single_changes(job, Question.SMALLER)]
    changes = [fields for fields in smaller if "plan.recompute" in fields]
    assert [job.replace(change).plan.recompute for change in changes] == ["full"]
    assert all(not job.replace(change).plan.recompute_modules for change in changes)


def test_two_changes_are_proposed_only_where_no_single_one_fits():
    job = MISFITS["everything"]
    nearest = nearest_fit(job).nearest
    assert len(nearest.changes) == 2
    assert not any(fits(job.replace({path: value})) for path, value in nearest.changes.items())


def test_three_changes_are_found_where_two_are_not_enough():
    job = a_job("3.2 GiB", gpus=16, zero=0, batch={"global": 128, "micro": 8})
    nearest = nearest_fit(job).nearest
    assert len(nearest.changes) == 3
    for pair in combinations(nearest.changes.items(), 2):
        assert not fits(job.replace(dict(pair)))


@pytest.mark.usefixtures("no_small_machine")
def test_more_gpus_are_proposed_only_where_two_changes_do_not_help():
    job = a_job("5.65 GiB", gpus=2, zero=0, recompute="full")
    nearest = nearest_fit(job).nearest
    assert nearest.changes["cluster.gpus"] == 4
    changes = [{f"plan.{degree}": 2} for degree in ("tp", "pp")] + [
        {"plan.zero": stage} for stage in (1, 2, 3)
    ]
    for pair in combinations(changes, 2):
        try:
            changed = job.replace({**pair[0], **pair[1]})
        except InputError:  # tp x pp = 4 on two GPUs
            continue
        assert not fits(changed)


@pytest.mark.usefixtures("no_small_machine")
def test_states_of_a_single_gpu_are_sharded_over_new_ones():
    job = a_job("8 GiB", gpus=1, zero=0, recompute="full", stack="torch")
    changes = nearest_fit(job).nearest.changes
    assert changes["cluster.gpus"] == 2
    assert changes["plan.zero"] > 0


@pytest.mark.usefixtures("no_small_machine")
def test_a_larger_device_is_the_last_resort():
    job = job_from_document(
        {
            "model": MODEL,
            "cluster": {"profile": "rtx-4090", "gpus": 1},
            "batch": {"global": 1, "seq_len": 131072},
            "plan": {"recompute": "full", "stack": "torch"},
        }
    )
    assert not fits(job)
    changes = nearest_fit(job).nearest.changes
    assert list(changes) == ["cluster.profile"]
    assert fits(job.replace(changes))


def test_the_search_ends_and_says_so_where_nothing_fits():
    job = job_from_document(
        {
            "model": "gpt-1t",
            "cluster": {"profile": "a100-sxm-80gb", "gpus": 4},
            "batch": {"global": 64, "micro": 4, "seq_len": 2048},
        }
    )
    search = nearest_fit(job)
    assert search.nearest is None
    assert 20 < search.tried <= MOST_TRIED


def test_a_stack_without_model_parallelism_is_not_told_to_use_it():
    changes = nearest_fit(MISFITS["a stack without model parallelism"]).nearest.changes
    assert not {"plan.tp", "plan.pp", "plan.cp"} & changes.keys()


def test_gradients_are_not_sharded_under_a_pipeline_that_does_not_do_so():
    job = a_job("5.05 GiB", pp=2)
    assert not fits(job)
    assert fits(job.replace({"plan.zero": 3}))
    changes = nearest_fit(job).nearest.changes
    assert "plan.zero" not in changes


def test_a_job_that_fits_has_nothing_to_explain():
    assert simulate(a_job("70 GiB"), engine="replay").explain_misfit() == ""


def test_a_misfit_is_explained_with_need_owners_and_options_to_paste():
    result = simulate(MISFITS["states of plain data parallelism"], engine="replay")
    need, owners, way_out, price = result.explain_misfit().splitlines()
    assert f"needs {peak_gib(result.job):.1f} GiB" in need
    assert "8.00 GiB of h100-sxm-80gb" in need
    assert owners.startswith("It holds optimizer states 3.9")
    assert "--set plan." in way_out
    changes = nearest_fit_at(result.job).nearest.changes
    step_s = simulate(result.job.replace(changes)).step_time_s
    assert f"With it, a step takes {format_seconds(step_s)} and" in price


def test_the_shares_of_the_owners_sum_to_the_whole():
    result = simulate(MISFITS["everything"], engine="replay")
    owners = result.explain_misfit().splitlines()[1]
    shares = [int(part.split("%")[0]) for part in owners.split("(")[1:]]
    assert sum(shares) == pytest.approx(100, abs=len(shares) / 2)


def test_the_options_of_a_misfit_can_be_pasted():
    job = MISFITS["activations of a large microbatch"]
    text = simulate(job, engine="replay").explain_misfit()
    pasted = [line.split("--set ")[1:] for line in text.splitlines() if "--set " in line]
    assert pasted
    for options in pasted:
        changes = parse_assignments([option.split()[0] for option in options])
        assert run_step(job.replace(changes)).fits_probability >= 1 - DEFAULT_RISK


def test_an_unfitting_job_without_a_way_out_says_so():
    job = job_from_document(
        {
            "model": "gpt-1t",
            "cluster": {"profile": "a100-sxm-80gb", "gpus": 1},
            "batch": {"global": 8, "seq_len": 2048},
        }
    )
    text = simulate(job, engine="replay").explain_misfit()
    assert "None of the simulated changes makes it fit" in text
    assert "clustersim plan searches all plans" in text


ON_ONE_V100 = data_folder("workloads") / "gpt3-13b-1xv100-zero-offload.yaml"


def test_a_full_node_is_told_from_a_full_gpu():
    job = load_job(ON_ONE_V100, {"cluster.host.memory": "64 GB"})
    text = explain_misfit(job, run_step(job, "replay"))
    assert "a node needs" in text
    assert "in memory for offloading" in text
    assert "a GPU needs" not in text


@pytest.mark.usefixtures("no_small_machine")
def test_leaving_the_gpu_is_a_way_out_where_the_stack_knows_it():
    job = load_job(ON_ONE_V100, {"plan.offload.optimizer": None, "cluster.device.memory": "48 GiB"})
    nearest = nearest_fit(job).nearest
    assert nearest is not None
    assert nearest.changes == {"plan.offload.optimizer": "cpu"}


def test_two_changes_are_told_of_beside_a_single_one_where_they_are_much_faster():
    """Sharding gradients is enough where every GPU holds all experts, and slow."""
    model = {**MODEL, "gated_mlp": True, "experts": {"count": 8, "top_k": 2, "ffn_hidden": 8192}}
    job = a_job("16 GiB", gpus=32, zero=0).replace({"model": model})
    search = nearest_fit(job)
    assert len(search.nearest.changes) == 1
    assert len(search.faster.changes) == 2
    step = run_step(job.replace(search.faster.changes))
    assert step.fits
    assert search.faster.step_time_s == step.step_time_s < 0.95 * search.nearest.step_time_s
    roomy = job.replace({"cluster.device.memory": "20 GiB"})
    assert "Faster, with two changes: --set " in explain_misfit(roomy, run_step(roomy))


def test_two_changes_are_not_told_of_where_one_is_as_fast():
    search = nearest_fit(MISFITS["activations of a large microbatch"])
    assert len(search.nearest.changes) == 1
    assert search.faster is None


def test_no_single_change_that_is_offered_for_speed_fits_and_beats_the_answer():
    """An update on CPUs whose memory is full: back on the GPUs it fits, and is much faster."""
    job = job_from_document(
        {
            "model": {"base": "llama3.1-8b", "layers": 4},
            "cluster": {"profile": "a100-sxm-80gb", "gpus": 8, "host": {"memory": "8 GB"}},
            "batch": {"global": 8, "seq_len": 2048},
            "plan": {"stack": "deepspeed", "zero": 2, "offload": {"optimizer": "cpu"}},
        }
    )
    nearest = nearest_fit(job).nearest
    offered = [
        each
        for each in what_ifs(job)
        if each.fits_probability >= EVEN and "batch.global" not in each.changes
    ]
    best = min(offered, key=lambda each: each.step_time_s)
    assert nearest.changes == best.changes == {"plan.offload": {}}


def test_what_another_change_beats_in_memory_and_time_is_no_way_out():
    def trial(saved: float, step_s: float) -> Trial:
        return Trial(
            words="", changes={}, gain=0.0, step_time_s=step_s, peak_device_bytes=80 - saved,
            fits_probability=1.0, fits=True, held_bytes={}, before_s=1.0, before_bytes=80.0,
        )  # fmt: skip

    most, quick, beaten, equal = trial(30, 9), trial(20, 1.1), trial(19, 2), trial(20, 1.1)
    assert unbeaten([most, quick, beaten, equal]) == [most, quick, equal]
    assert unbeaten([]) == []


def test_savings_hold_what_trains_otherwise_and_it_hides_no_change_of_the_plan():
    found = savings(small_job(micro=4))
    eight_bit, adapters = {"plan.optimizer": "adam-8bit"}, {"plan.lora.rank": 16}
    changes = [each.changes for each in found]
    assert eight_bit in changes
    assert adapters in changes
    assert {**adapters, "plan.lora.base_precision": "nf4"} in changes
    cheaper = [each for each in found if not any("lora" in path for path in each.changes)]
    assert unbeaten(cheaper) == [each for each in unbeaten(found) if each in cheaper]


def test_savings_are_those_of_the_simulated_change_and_sorted():
    job = small_job(micro=4)
    found = savings(job)
    assert {"plan.recompute": "full"} in [saving.changes for saving in found]
    assert [s.saved_bytes for s in found] == sorted((s.saved_bytes for s in found), reverse=True)
    before = run_step(job)
    for saving in found:
        changed = run_step(job.replace(saving.changes))
        saved = before.peak_device_bytes - changed.peak_device_bytes
        assert 0 < saving.saved_bytes == pytest.approx(saved)
        assert saving.step_time_s == changed.step_time_s


def test_full_recompute_saves_memory_and_costs_time():
    (full,) = [s for s in savings(small_job(micro=4)) if s.changes == {"plan.recompute": "full"}]
    assert full.slower_share > 0.1
