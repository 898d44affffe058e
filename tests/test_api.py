"""The public functions, as a script would use them."""

from __future__ import annotations

import json

import pytest
import yaml

import simulator as sim
from simulator.errors import InputError

JOB = """
    model: {base: llama3.1-8b, layers: 4}
    cluster: {profile: h100-sxm-80gb, gpus: 8}
    batch: {global: 16, seq_len: 1024}
    plan: {tp: 2, pp: 2}
"""


@pytest.fixture
def job(write):
    return sim.load_job(write(JOB))


def test_the_package_offers_what_its_list_says_and_nothing_by_accident():
    assert set(sim.__all__) <= set(dir(sim))
    for name in sim.__all__:
        assert getattr(sim, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = sim.simulat


def test_a_job_in_place_is_that_of_the_file_that_says_the_same(job):
    document = yaml.safe_load(JOB)
    in_place = sim.load_job(document)
    assert in_place.model_dump() == job.model_dump()
    assert sim.load_job(document, {"plan.tp": 4}).plan.tp == 4
    document["plan"]["tp"] = 8
    assert in_place.replace(**{"plan.pp": 2}).model_dump() == job.model_dump()
    with pytest.raises(InputError, match="did you mean 'precision'"):
        sim.load_job(document, {"plan.precison": "fp8"})


def test_a_job_file_becomes_a_result(job):
    result = sim.simulate(job)
    assert isinstance(result, sim.Result)
    assert result.job is job
    assert result.step_time_s > 0
    assert 0 < result.mfu < 1
    assert result.fits
    assert result.title == job.title


def test_a_result_says_in_one_line_what_it_is(job):
    result = sim.simulate(job)
    assert repr(result).startswith(f"Result({job.title}: step ")
    assert repr(result).endswith("%, fits)")
    assert "\n" not in repr(result) + repr(result.timeline)
    assert len(repr(result.timeline)) < 80


def test_tables_of_a_result_print_as_plain_words(job):
    result = sim.simulate(job)
    assert repr(dict(result.breakdown)).startswith("{'forward': ")
    assert "'weights': " in repr(dict(result.memory[0].by_owner))
    assert "array" not in repr(result.memory)
    assert result.breakdown == result.breakdown_s


@pytest.mark.parametrize("given", ["job.yaml", None, 3])
def test_what_is_no_job_is_refused_with_the_way_to_load_one(given):
    for ask in (sim.simulate, lambda job: sim.sweep(job, {"plan.tp": [1]})):
        with pytest.raises(InputError, match="must be a Job; load one first"):
            ask(given)


def test_an_engine_that_does_not_exist_is_no_other_one(job):
    for ask in (sim.simulate, lambda job, engine: sim.sweep(job, {"plan.tp": [1]}, engine=engine)):
        with pytest.raises(InputError, match="engine = 'fast': must be 'des' or 'replay'"):
            ask(job, engine="fast")


@pytest.mark.parametrize("values", [4, "124", None])
def test_values_of_a_sweep_are_a_list(job, values):
    with pytest.raises(InputError, match="must be a list of values to try; for example"):
        sim.sweep(job, {"plan.tp": values})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"top": 0}, "top = 0: must be 1 or more"),
        ({"vary": {"plan.tp": 3}}, r"plan\.tp = 3: must be a list"),
        ({"vary": {"plan.tp": "1"}}, r"plan\.tp = '1': must be a list"),
        ({"vary": {"cluster.gpus": 8}}, r"cluster\.gpus = 8: must be a list"),
        ({"vary": {"cluster.gpus": []}}, r"cluster\.gpus: needs at least one value"),
    ],
)
def test_what_a_search_cannot_try_is_refused_at_its_name(job, arguments, says):
    with pytest.raises(InputError, match=says):
        sim.plan(job, **arguments)


def test_a_job_may_be_the_key_of_its_result():
    job = sim.load_job("llama3-8b-8xh100")
    by_job = {job: 1, job.replace(**{"plan.tp": 4}): 4}
    assert by_job[sim.load_job("llama3-8b-8xh100")] == 1
    assert by_job[job.replace(**{"plan.tp": 4})] == 4


def test_a_what_if_is_a_changed_job(job):
    more = job.replace(**{"cluster.gpus": 16, "batch.global": 32})
    assert (job.dp, more.dp) == (2, 4)
    assert job.cluster.gpus == 8
    weak_scaled = sim.simulate(more).step_time_s
    assert weak_scaled >= sim.simulate(job).step_time_s * 0.99


def test_a_change_that_breaks_a_rule_names_it(job):
    with pytest.raises(InputError) as raised:
        job.replace(**{"plan.tp": 3})
    assert {fault.path for fault in raised.value.faults} >= {"cluster.gpus"}


def test_the_same_job_gives_the_same_bytes(job):
    assert sim.simulate(job).to_json() == sim.simulate(job).to_json()


def test_the_lower_bound_is_an_engine_of_its_own(job):
    bound = sim.simulate(job, engine="replay").step_time_s
    assert bound <= sim.simulate(job).step_time_s


def test_json_holds_the_result_and_the_job_that_gave_it(job):
    result = sim.simulate(job)
    document, plain = json.loads(result.to_json()), result.to_dict()
    assert set(document) == set(plain)
    assert document["breakdown_s"] == plain["breakdown_s"]
    assert document["capacity_bytes"] == round(plain["capacity_bytes"])
    assert document["fits"] is True
    assert document["step_time_s"] == result.step_time_s
    assert document["job"]["plan"] == {"tp": 2, "pp": 2}
    assert set(document["sources"]) <= {"measured", "fitted", "datasheet", "published", "assumed"}


def test_a_job_can_be_rebuilt_from_its_own_json(job, write):
    document = json.loads(sim.simulate(job).to_json())
    again = sim.load_job(write(json.dumps(document["job"]), "again.yaml"))
    assert sim.simulate(again).step_time_s == sim.simulate(job).step_time_s


def test_the_frame_has_a_row_per_operation_and_lane(job):
    result = sim.simulate(job)
    frame = result.to_frame()
    lanes = sum(len(op.lanes) for op in result.timeline.program.operations)
    assert len(frame) == lanes
    assert frame["end_s"].max() == result.step_time_s


def test_a_job_that_does_not_fit_is_an_answer(job):
    result = sim.simulate(job.replace(**{"batch.micro": 8, "batch.seq_len": 131072}))
    assert not result.fits
    assert result.to_dict()["fits"] is False
    assert max(m.peak_device_bytes for m in result.memory) > result.capacity_bytes


def test_pictures_and_traces_are_written_where_asked(job, tmp_path):
    result = sim.simulate(job)
    written = result.plot_all(tmp_path / "pictures")
    assert sorted(path.name for path in written) == [
        "breakdown.png",
        "links.png",
        "memory.png",
        "memory_over_time.png",
        "pipeline.png",
        "placement.png",
        "roofline.png",
    ]
    trace = result.write_trace(tmp_path / "trace.json")
    assert json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert all(path.stat().st_size > 0 for path in written)
