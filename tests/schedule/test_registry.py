import pytest

from simulator.described.plan.plan import Plan
from simulator.errors import InputError, UnsupportedError
from simulator.schedule import SCHEDULES, schedule_info, schedule_order


def test_a_plan_may_name_every_schedule_and_no_other():
    assert [Plan(schedule=name).schedule for name in SCHEDULES] == list(SCHEDULES)
    with pytest.raises(ValueError, match="'1f1b', 'dapple'"):
        Plan(schedule="2f2b")


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_info_is_under_its_own_name_with_a_source(name):
    info = SCHEDULES[name]
    assert info.name == name
    assert "arXiv" in info.source or "torch" in info.source
    assert info.summary


def test_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"plan.schedule = '1b1f'.*use one of naive, gpipe"):
        schedule_order("1b1f", 2, 1, 2)


@pytest.mark.parametrize(
    ("sizes", "field"),
    [((0, 1, 1), "plan.pp"), ((1, 0, 1), "plan.vpp"), ((1, 1, 0), "microbatches")],
)
def test_sizes_below_one_are_refused(sizes, field):
    with pytest.raises(InputError, match=f"{field} = 0: must be 1 or more"):
        schedule_order("gpipe", *sizes)


REFUSED = [
    ("1f1b", (4, 2, 8), "runs with 1 chunk per rank", "plan.vpp = 1, or use interleaved-1f1b"),
    ("interleaved-1f1b", (4, 1, 8), "needs 2 or more chunks per rank", "plan.vpp = 2"),
    ("interleaved-1f1b", (4, 2, 9), "multiple of microbatches // pp = 2", "use 8 microbatches"),
    ("zb-1p", (4, 2, 13), "multiple of microbatches // pp = 3", "use 12 microbatches"),
    ("zb-v", (4, 1, 8), "needs 2 chunks per rank", "plan.vpp = 2"),
    ("zb-v", (4, 3, 8), "runs with 2 chunks per rank", "plan.vpp = 2"),
    ("dualpipev", (4, 2, 7), "at least 2 pp microbatches", "use 8 microbatches"),
    ("dualpipe", (3, 1, 8), "plan.pp must be even", "plan.pp = 4"),
    ("dualpipe", (4, 1, 9), "microbatches must be even", "use 10 microbatches"),
    ("dualpipe", (4, 1, 6), "at least 2 pp microbatches", "use 8 microbatches"),
    ("chimera", (5, 1, 8), "plan.pp must be even", "plan.pp = 6"),
    ("chimera", (4, 1, 7), "microbatches must be even", "use 8 microbatches"),
]


@pytest.mark.parametrize(("name", "sizes", "rule", "way_out"), REFUSED)
def test_sizes_without_an_order_are_refused_with_rule_and_way_out(name, sizes, rule, way_out):
    with pytest.raises(UnsupportedError) as caught:
        schedule_order(name, *sizes)
    (fault,) = caught.value.faults
    assert (fault.path, fault.value) == ("plan.schedule", name)
    assert rule in fault.rule
    assert f"pp = {sizes[0]}, vpp = {sizes[1]}, {sizes[2]} microbatches" in fault.rule
    assert way_out in fault.hint


def test_pipedream_keeps_a_weight_version_per_microbatch_in_flight_and_2bw_two():
    versions = [schedule_info("pipedream").weight_versions(rank, 4) for rank in range(4)]
    assert versions == [4, 3, 2, 1]
    assert schedule_info("pipedream-2bw").weight_versions(0, 8) == 2
    assert schedule_info("1f1b").weight_versions(0, 8) == 1


def test_only_the_pipedreams_train_without_a_flush():
    asynchronous = {name for name, info in SCHEDULES.items() if not info.synchronous}
    assert asynchronous == {"pipedream", "pipedream-2bw"}


def test_bidirectional_schedules_hold_two_copies_of_the_model():
    two = {name for name, info in SCHEDULES.items() if info.placement.copies == 2}
    assert two == {"dualpipe", "chimera"}


def test_torch_has_every_schedule_under_the_name_that_its_entry_gives():
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    named = [info.torch_name for info in SCHEDULES.values() if info.torch_name]
    assert len(named) == 8
    for name in named:
        assert schedules.get_schedule_class(name).__name__ == f"Schedule{name}"


def test_no_schedule_both_waits_for_its_transfers_and_joins_passes():
    assert not [info.name for info in SCHEDULES.values() if info.waits and info.joins_passes]
    assert {info.name for info in SCHEDULES.values() if info.joins_passes} == {
        "dualpipe",
        "dualpipev",
    }
