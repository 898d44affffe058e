"""Lengths of pipelines, and what their passes take, as a person computes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from simulator.engine.replay import replay
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Kind, Memory, Owner, Program, RankClass, Stream, Work
from simulator.program.run.pipeline import Pipeline, add_pipeline
from simulator.schedule import Phase, Slot, schedule_info, schedule_order
from tests.jobs import EqualPasses, NoDataParallel, pipeline_program

F, B = 1.0, 2.0


def step_s(
    name: str, p: int, v: int, m: int, transfer_s: float, *, blocking: bool = False
) -> float:
    program = pipeline_program(name, p, v, m, transfer=Work(transfer_s), blocking=blocking)
    return replay(program).step_time_s


@pytest.mark.parametrize("m", range(1, 9))
@pytest.mark.parametrize("t", [0.0, 0.1, 0.4])
def test_two_stages_of_1f1b_lose_a_transfer_each_way_for_every_two_microbatches(m, t):
    """A microbatch comes back before the one after the next may start: (m + 1)(f + b) + ...

    ... 2 t for every two, because rank 0 runs no more than two forwards ahead.
    """
    expected = (m + 1) * (F + B) + 2 * math.ceil(m / 2) * t
    assert step_s("1f1b", 2, 1, m, t) == pytest.approx(expected)


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("m", [1, 4, 7])
def test_gpipe_shows_the_transfers_of_its_first_and_last_microbatch_alone(p, m):
    """All others travel beside passes: (m + p - 1)(f + b) + 2 (p - 1) t."""
    expected = (m + p - 1) * (F + B) + 2 * (p - 1) * 0.3
    assert step_s("gpipe", p, 1, m, 0.3) == pytest.approx(expected)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_a_blocking_send_takes_the_time_of_its_senders_passes(m):
    """Rank 0 of GPipe forwards in f + t, rank 1 goes back in b + t, and the ends stick out."""
    t = 0.3
    expected = m * (F + B + 2 * t) + F + B
    assert step_s("gpipe", 2, 1, m, t, blocking=True) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "p", "v", "hops"),
    [("1f1b", 4, 1, 3), ("looped-bfs", 3, 2, 5), ("interleaved-1f1b", 2, 3, 5)],
)
def test_one_microbatch_passes_every_boundary_both_ways(name, p, v, hops):
    t = 0.25
    assert step_s(name, p, v, 1, t) == pytest.approx(p * v * (F + B) + 2 * hops * t)


@pytest.mark.parametrize("p", [2, 3, 4])
def test_a_split_backward_sends_after_its_first_half(p):
    """The weight gradient of rank 0 is the only one that is not beside another's half."""
    t = 0.25
    assert step_s("zb-h1", p, 1, 1, t) == pytest.approx(p * (F + B / 2) + B / 2 + 2 * (p - 1) * t)


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (4, 2, 8), (3, 4, 6), (4, 1, 8)])
def test_interleaving_shortens_the_bubble_by_the_number_of_chunks(p, v, m):
    """Narayanan et al. (arXiv 2104.04473): (p - 1) / v microbatches; here in passes of a chunk."""
    name = "1f1b" if v == 1 else "interleaved-1f1b"
    assert step_s(name, p, v, m, 0.0) == pytest.approx((m * v + p - 1) * (F + B))


@pytest.mark.parametrize(("p", "m"), [(2, 6), (3, 6), (4, 12)])
def test_zb_h1_has_a_third_of_the_bubble_of_1f1b(p, m):
    """Qi et al. (arXiv 2401.10241): (p - 1)(T_F + T_B - T_W), all of one length here."""
    assert step_s("zb-h1", p, 1, m, 0.0) == pytest.approx(3 * m + (p - 1))
    assert step_s("1f1b", p, 1, m, 0.0) == pytest.approx(3 * m + 3 * (p - 1))


class Hides(EqualPasses):
    """A forward beside a backward leaves a quarter of its exchange, a backward half of it."""

    def work(self, run: Slice, phase: Phase, exposed: float = 1.0, host_s: float = 0.0) -> Work:
        return Work(super().work(run, phase, exposed, host_s).seconds + exposed)

    def exposed_share(self, run: Slice, phase: Phase, beside: Slice, beside_phase: Phase) -> float:
        return {
            (Phase.FORWARD, Phase.BACKWARD): 0.25,
            (Phase.BACKWARD, Phase.FORWARD): 0.5,
        }[phase, beside_phase]


def test_each_pass_of_a_pair_hides_its_exchange_behind_the_other():
    f, b = Phase.FORWARD, Phase.BACKWARD
    order = [[Slot(f, 0, 0), Slot(f, 0, 1, overlaps_next=True), Slot(b, 0, 0), Slot(b, 0, 1)]]
    program = pipeline_program("1f1b", 1, 1, 2, order=order, costs=Hides())
    assert [op.work.seconds for op in program.operations] == [F + 1, F + 0.25, B + 0.5, B + 1]


@dataclass(frozen=True)
class KeptThings(EqualPasses):
    """Costs with a router's graph and a gradient that waits."""

    graph: Memory = ()
    waiting: Memory = ()

    def router_graphs(self, run: Slice) -> Memory:
        return self.graph

    @property
    def waiting_gradient(self) -> Memory:
        return self.waiting

    def kept_inputs(self, run: Slice) -> Memory:
        return ()


class InPieces(NoDataParallel):
    """Cuts every backward into its loss, its layers and its embedding."""

    def backward_runs(self, run: Slice, *, is_first: bool, reduces: bool) -> list[Slice]:
        pieces = [Slice(each, each + 1) for each in reversed(range(run.first, run.end))]
        loss = [Slice(run.end, run.end, has_loss=True)] if run.has_loss else []
        embedding = [Slice(run.first, run.first, has_embedding=True)] if run.has_embedding else []
        return [*loss, *pieces, *embedding]


def stages_of(*runs: Slice, costs: EqualPasses, transfer_s: float = 0.0, m: int = 1) -> Program:
    """A 1F1B pipeline of such stages, its backward in pieces."""
    classes = tuple(RankClass(f"stage {rank}", rank, 1, rank) for rank in range(len(runs)))
    program = Program(classes=classes, ports={"link": 1.0})
    pipeline = Pipeline(
        order=schedule_order("1f1b", len(runs), 1, m),
        placement=schedule_info("1f1b").placement,
        chunks=1,
        runs=runs,
        blocking=False,
    )
    add_pipeline(program, pipeline, costs, lambda *_: Work(transfer_s), InPieces())
    return program


def test_the_first_piece_of_a_backward_waits_for_what_it_receives():
    """By hand: F0 0-1, F1 2-3, two pieces of B1 3-7, two of B0 8-12."""
    program = stages_of(Slice(0, 2), Slice(2, 4), costs=KeptThings(), transfer_s=1.0)
    timeline = replay(program)
    for rank, starts in ((0, [0, 8, 10]), (1, [2, 3, 5])):
        lane = program.lanes[rank, Stream.COMPUTE]
        assert timeline.operation_start_s[lane].tolist() == starts


def test_the_gradient_of_tied_weights_waits_from_the_loss_to_the_embedding():
    costs = KeptThings(saved_bytes=0.0, waiting=((Owner.GRADIENTS, 3.0),))
    whole = Slice(0, 2, has_embedding=True, has_head=True, has_loss=True)
    program = stages_of(whole, costs=costs)
    pieces = [op for op in program.operations if op.kind is Kind.BACKWARD]
    waits = [
        (
            sum(size for owner, size in op.takes if owner is Owner.GRADIENTS),
            sum(size for owner, size in op.gives if owner is Owner.GRADIENTS),
        )
        for op in pieces
    ]
    assert waits == [(0, 0), (3.0, 0), (0, 0), (0, 3.0)]


def test_a_routers_graph_stays_from_a_backward_to_the_next_forward():
    graph = ((Owner.TEMPORARIES, 5.0),)
    program = stages_of(Slice(0, 1), costs=KeptThings(saved_bytes=0.0, graph=graph), m=3)
    forwards = [op for op in program.operations if op.kind is Kind.FORWARD]
    backwards = [op for op in program.operations if op.kind is Kind.BACKWARD]
    assert [graph[0] in op.gives for op in forwards] == [False, True, True]
    assert all(graph[0] in op.takes for op in backwards)


def test_a_routers_graph_is_not_held_twice_during_the_backward_that_makes_it():
    graph = ((Owner.TEMPORARIES, 5.0),)
    costs = KeptThings(saved_bytes=0.0, working_bytes=5.0, graph=graph)
    program = stages_of(Slice(0, 1), costs=costs, m=2)
    backwards = [op for op in program.operations if op.kind is Kind.BACKWARD]
    assert [(op.takes, op.holds) for op in backwards] == [(graph, ())] * 2


def test_each_half_of_a_backward_holds_what_it_works_with():
    program = pipeline_program("zb-h1", 2, 1, 4, costs=EqualPasses(working_bytes=9.0))
    halves = [
        op for op in program.operations if op.kind in (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
    ]
    assert len(halves) == 16
    assert {op.holds for op in halves} == {((Owner.TEMPORARIES, 9.0),)}
