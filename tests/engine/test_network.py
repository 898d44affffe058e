"""Shared ports: who gets how much, and when is everything through?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.fluid_network import FluidNetwork, Port, max_min_rates
from simulator.engine.instant import Clock
from simulator.program.ir import Traffic

UP: Port = (0, "scale_up", "out")
OUT: Port = (0, "fabric", "out")
GB = 1e9


def arrivals(flows: Sequence[tuple[float, float, Traffic, Sequence[int]]]) -> list[float]:
    """When each (start, seconds alone, traffic, classes) is through, on ports of 1 GB/s."""
    env = Clock()
    network = FluidNetwork(env, {"scale_up": GB, "fabric": GB})
    ended = [0.0] * len(flows)

    def run(index, start_s, seconds, traffic, classes):
        yield env.timeout(start_s)
        through = env.event()
        network.transfer(network.route(seconds, traffic, classes, classes), through.succeed)
        yield through
        ended[index] = env.now

    for index, flow in enumerate(flows):
        env.process(run(index, *flow))
    env.run()
    return ended


def up(gigabytes: float, latency_s: float = 0.0) -> Traffic:
    return Traffic({"scale_up": gigabytes * GB}, latency_s)


def test_a_flow_alone_runs_at_full_speed():
    assert max_min_rates([{UP: 0.3}]) == [1.0]


def test_two_equal_flows_get_half_of_their_port_each():
    assert max_min_rates([{UP: 1.0}, {UP: 1.0}]) == [0.5, 0.5]


def test_a_flow_that_needs_less_than_its_share_leaves_the_rest_to_the_others():
    assert max_min_rates([{UP: 0.2}, {UP: 1.0}]) == pytest.approx([1.0, 0.8])


def test_flows_on_different_ports_do_not_meet():
    assert max_min_rates([{UP: 1.0}, {OUT: 1.0}, {(1, "scale_up", "out"): 1.0}]) == [1.0, 1.0, 1.0]


def test_three_flows_over_two_ports_share_as_worked_out_by_hand():
    """A crosses both ports, B and C only the first, D only the second.

    The first port gives a third to each of A, B and C; A leaves two thirds to D.
    """
    rates = max_min_rates([{UP: 1.0, OUT: 1.0}, {UP: 1.0}, {UP: 1.0}, {OUT: 1.0}])
    assert rates == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3])


def test_a_flow_that_barely_loads_one_full_port_does_not_take_all_of_another():
    """The first two load UP lightly and need all of OUT, where the last one is, too."""
    loads = [{UP: 0.3, OUT: 1.0}, {UP: 0.3, OUT: 1.0}, {UP: 1.0}, {UP: 1.0}, {OUT: 1.0}]
    rates = max_min_rates(loads)
    # OUT fills first: three thirds. UP is left with 1 - 2 x 0.3 / 3 = 0.8 for two flows.
    assert rates == pytest.approx([1 / 3, 1 / 3, 0.4, 0.4, 1 / 3])


LOADS = st.lists(
    st.dictionaries(
        st.sampled_from([UP, OUT, (1, "scale_up", "out"), (0, "scale_up", "in")]),
        st.floats(0.01, 1.0),
        min_size=1,
    ),
    min_size=1,
    max_size=8,
)


@given(LOADS)
def test_no_port_ever_carries_more_than_its_capacity_and_no_flow_starves(loads):
    rates = max_min_rates(loads)
    assert all(0 < rate <= 1 for rate in rates)
    for port in {port for load in loads for port in load}:
        carried = sum(rate * load.get(port, 0.0) for rate, load in zip(rates, loads, strict=True))
        assert carried <= 1 + 1e-9


@given(LOADS)
def test_a_flow_is_slowed_only_by_a_full_port_of_its_own(loads):
    rates = max_min_rates(loads)
    for rate, load in zip(rates, loads, strict=True):
        carried = {
            port: sum(r * other.get(port, 0.0) for r, other in zip(rates, loads, strict=True))
            for port in load
        }
        assert rate == 1.0 or max(carried.values()) == pytest.approx(1.0)


@given(LOADS, st.randoms(use_true_random=False))
def test_rates_do_not_depend_on_the_order_of_the_flows(loads, random):
    order = list(range(len(loads)))
    random.shuffle(order)
    rates, shuffled = max_min_rates(loads), max_min_rates([loads[i] for i in order])
    assert shuffled == pytest.approx([rates[i] for i in order])


def test_a_transfer_alone_takes_its_own_time_latency_included():
    assert arrivals([(1.0, 2.5, up(2.0, latency_s=0.5), [0])]) == [pytest.approx(3.5)]


def test_two_transfers_of_one_second_take_two_together():
    assert arrivals([(0.0, 1.0, up(1.0), [0]), (0.0, 1.0, up(1.0), [0])]) == [2.0, 2.0]


def test_rates_change_when_a_transfer_starts_and_ends():
    """Alone for 1 s, shared for 2 s, and then 1 s alone again."""
    assert arrivals([(0.0, 3.0, up(3.0), [0]), (1.0, 1.0, up(1.0), [0])]) == [
        pytest.approx(4.0),
        pytest.approx(3.0),
    ]


def test_latency_is_waited_out_before_bytes_meet_others():
    """The second flow's bytes come when the first one's are through."""
    flows = [(0.0, 1.0, up(1.0), [0]), (0.0, 2.0, up(1.0, latency_s=1.0), [0])]
    assert arrivals(flows) == pytest.approx([1.0, 2.0])


def test_bytes_load_their_port_while_they_flow_not_while_latency_is_waited_out():
    """Each takes 0.5 s and then all of the port for 1 s: together 0.5 s and 2 s."""
    flow = (0.0, 1.5, up(1.0, latency_s=0.5), [0])
    assert arrivals([flow, flow]) == pytest.approx([2.5, 2.5])


def test_latency_that_is_waited_out_on_an_idle_port_leaves_it_to_who_comes_meanwhile():
    """The second comes at 1 and is through at 3; the bytes of the first flow from 5 to 6."""
    flows = [(0.0, 6.0, up(1.0, latency_s=5.0), [0]), (1.0, 2.0, up(2.0), [0])]
    assert arrivals(flows) == pytest.approx([6.0, 3.0])


def test_bytes_that_follow_latency_share_with_who_came_meanwhile_and_is_there_still():
    """The second has 1 s left at 5, when the bytes of the first begin: both take 2 s."""
    flows = [(0.0, 6.0, up(1.0, latency_s=5.0), [0]), (4.0, 2.0, up(2.0), [0])]
    assert arrivals(flows) == pytest.approx([7.0, 7.0])


def test_a_transfer_that_is_all_latency_takes_that_and_nobodys_share():
    """Its bytes are too few to count: the other one has the port for itself."""
    flows = [(0.0, 0.5, up(1e-9, latency_s=0.5), [0]), (0.0, 1.0, up(1.0), [0])]
    assert arrivals(flows) == pytest.approx([0.5, 1.0])


def test_a_collective_over_two_classes_loads_the_ports_of_both():
    """Class 1 is in both, 0 and 2 in one each."""
    flows = [(0.0, 1.0, up(1.0), [0, 1]), (0.0, 1.0, up(1.0), [1, 2])]
    assert arrivals(flows) == pytest.approx([2.0, 2.0])


def test_ports_that_nobody_limits_cost_nothing_extra():
    traffic = Traffic({"elsewhere": 5 * GB})
    assert arrivals([(0.0, 1.0, traffic, [0]), (0.0, 1.0, traffic, [0])]) == [1.0, 1.0]


@given(
    st.lists(
        st.tuples(st.floats(0, 2), st.floats(0.01, 2), st.floats(0.01, 1), st.integers(0, 1)),
        min_size=1,
        max_size=6,
    )
)
def test_sharing_never_speeds_a_transfer_up_and_never_wastes_the_port(drawn):
    flows = [
        (start, seconds, up(seconds * load), [rank_class])
        for start, seconds, load, rank_class in drawn
    ]
    ended = arrivals(flows)
    for end, (start, seconds, _, _) in zip(ended, flows, strict=True):
        assert end >= (start + seconds) * (1 - 1e-9)
    serial = max(start for start, *_ in flows) + sum(seconds for _, seconds, *_ in flows)
    assert max(ended) <= serial * (1 + 1e-9)


def test_opposite_transfers_of_a_pair_with_one_connection_take_turns():
    """Each alone takes a second; another pair is not slowed."""
    env = Clock()
    network = FluidNetwork(env, {"fabric": GB, "pair": GB})
    traffic = Traffic({"fabric": GB, "pair": GB})
    ended: dict[tuple[int, int], float] = {}
    for source, target in ((0, 1), (1, 0), (2, 3)):

        def through(pair: tuple[int, int] = (source, target)) -> None:
            ended[pair] = env.now

        network.transfer(network.route(1.0, traffic, [source], [target]), through)
    env.run()
    assert ended == {(0, 1): 2.0, (1, 0): 2.0, (2, 3): 1.0}
