"""Orders against torch itself, and torch's own checks applied to orders it does not have."""

import contextlib
import io
from functools import cache
from unittest import mock

import pytest

from simulator.errors import UnsupportedError
from simulator.schedule import SCHEDULES, schedule_order
from simulator.schedule.written import read_order, write_order

pytest.importorskip("torch", reason="torch is the oracle here")
schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
stage = pytest.importorskip("torch.distributed.pipelining.stage")

pytestmark = pytest.mark.filterwarnings("ignore")

TORCH_NAME = {
    "gpipe": "GPipe",
    "looped-bfs": "LoopedBFS",
    "interleaved-1f1b": "Interleaved1F1B",
    "zb-1p": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
SIZES = [(1, 4), (2, 2), (2, 4), (2, 7), (3, 6), (3, 9), (4, 3), (4, 4), (4, 6), (4, 8), (4, 10),
         (4, 12), (5, 10), (6, 12), (8, 16), (8, 32)]  # fmt: skip
ONE_COPY = [name for name, info in SCHEDULES.items() if info.placement.copies == 1]


@cache
def fake_of_the_class():
    """Made once: to copy what the class looks like takes long."""
    return mock.create_autospec(stage.PipelineStage, instance=True)


def fake_stage(stages: int, virtual_stages: int):
    """Stands for one of torch's stages."""
    fake = fake_of_the_class()
    fake.group_rank, fake.group_size, fake.num_stages = 0, stages, virtual_stages
    fake.stage_index, fake.submod, fake.has_backward = 0, None, True
    return fake


def torch_order(name: str, stages: int, chunks: int, microbatches: int):
    """Torch's plan in our words, or None if torch refuses the sizes."""
    fake = fake_stage(stages, stages * chunks)
    build = schedules.get_schedule_class(TORCH_NAME[name])
    try:
        if issubclass(build, schedules.PipelineScheduleSingle):
            plan = build(fake, microbatches)._get_pipeline_order()
        else:
            plan = build([fake] * chunks, microbatches).pipeline_order
    except ValueError:
        return None
    skipped = (None, schedules.REDUCE_GRAD)
    rows = [
        ",".join(_cell(a) for a in plan[rank] if a is None or a.computation_type not in skipped)
        for rank in sorted(plan)
    ]
    return read_order("\n".join(rows))


def _cell(action) -> str:
    return "" if action is None else str(action)


def our_order(name: str, *sizes: int):
    try:
        return schedule_order(name, *sizes)
    except UnsupportedError:
        return None


def allowed_chunks(name: str) -> range:
    least, most = SCHEDULES[name].chunks
    return range(least, (most or 4) + 1)


@pytest.mark.parametrize(
    ("name", "chunks"), [(name, v) for name in TORCH_NAME for v in allowed_chunks(name)]
)
def test_order_equals_torchs_for_every_size_that_both_run(name, chunks):
    compared = 0
    for stages, microbatches in SIZES:
        theirs = torch_order(name, stages, chunks, microbatches)
        ours = our_order(name, stages, chunks, microbatches)
        assert (ours is None) == (theirs is None), (stages, microbatches)
        assert ours == theirs, (stages, microbatches)
        compared += ours is not None
    assert compared >= 5


def test_every_schedule_that_torch_has_is_compared():
    def below(base) -> set[str]:
        return {base.__name__}.union(*map(below, base.__subclasses__()))

    theirs = below(schedules._PipelineSchedule)
    compared = {schedules.get_schedule_class(n).__name__ for n in (*TORCH_NAME.values(), "1F1B")}
    frames = {name for name in theirs if name.startswith(("_", "PipelineSchedule"))}
    assert theirs - frames == compared


@pytest.mark.parametrize(("stages", "microbatches"), [(p, m) for p, m in SIZES if m >= p])
def test_1f1b_equals_torchs_plan_but_for_the_label_bug_of_the_last_rank(stages, microbatches):
    build = schedules.get_schedule_class("1F1B")
    plan = build(fake_stage(stages, stages), microbatches)._get_pipeline_order()
    ours = schedule_order("1f1b", stages, 1, microbatches)
    for rank in range(stages):
        cells = [str(a) for a in plan[rank] if a and a.computation_type != schedules.REDUCE_GRAD]
        if rank < stages - 1:
            assert [str(slot) for slot in ours[rank]] == cells
        else:
            assert [str(slot)[:-1].rstrip("0123456789") for slot in ours[rank]] == [
                cell[:-1].rstrip("0123456789") for cell in cells
            ]


def cases(names) -> list[tuple[str, int, int]]:
    """Every schedule with every size that it runs with and with its fewest chunks."""
    sizes = [(2, 4), (4, 4), (4, 8), (6, 13), (8, 16)]
    return [
        (name, *pair)
        for name in sorted(names)
        for pair in sizes
        if our_order(name, pair[0], SCHEDULES[name].chunks[0], pair[1]) is not None
    ]


def parsed_by_torch(text: str):
    action = schedules._Action.from_str
    return {
        rank: [action(cell) for cell in row.split(",")]
        for rank, row in enumerate(text.strip().split("\n"))
    }


@pytest.mark.parametrize(("name", "stages", "microbatches"), cases(ONE_COPY))
def test_torch_finds_every_order_valid(name, stages, microbatches):
    info = SCHEDULES[name]
    chunks = info.chunks[0]
    order = schedule_order(name, stages, chunks, microbatches)
    plan = parsed_by_torch(write_order(order))
    stage_to_rank = schedules._validate_schedule(plan, stages, stages * chunks, microbatches)
    assert stage_to_rank == {
        virtual: info.placement.rank(virtual, stages) for virtual in range(stages * chunks)
    }


@pytest.mark.parametrize(("name", "stages", "microbatches"), cases(set(ONE_COPY) - {"dualpipev"}))
def test_torchs_simulator_runs_every_order_with_its_sends_to_the_end(name, stages, microbatches):
    info = SCHEDULES[name]
    chunks = info.chunks[0]
    order = schedule_order(name, stages, chunks, microbatches)

    def rank_of(virtual: int) -> int:
        return info.placement.rank(virtual, stages)

    plan = parsed_by_torch(write_order(order))
    with_sends = schedules._add_send_recv(plan, rank_of, stages * chunks)
    with contextlib.redirect_stdout(io.StringIO()):
        ran = schedules._simulate_comms_compute(with_sends, rank_of, stages * chunks)
    slots = _cells(order)
    computed = sum(1 for row in ran.values() for action in row if str(action) in slots)
    assert computed == sum(map(len, order))


def _cells(order) -> set[str]:
    return {str(slot) for slots in order for slot in slots}
