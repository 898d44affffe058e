"""When a device waits for the host that launches its kernels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.described.load import job_from_document
from simulator.program.grid.stage_layers import stage_slices
from simulator.program.ir import Category
from simulator.program.price.host_pace import (
    SLOW_HOST,
    Launched,
    eager_layer_s,
    launched_ahead,
    unpredicted_wait_s,
    waiting_s,
)
from simulator.program.price.layer_time import PassTime
from simulator.program.price.stage_cost import StageCosts
from simulator.program.price.update_time import optimizer_work
from simulator.program.states.resident import ParameterCount
from simulator.schedule.slots import Phase
from tests.jobs import SIXTEEN_BIT_TORCH, network_profile, small_job, small_model

LAYER, HEAD = Launched(3, 1.0, 2.0), Launched(1, 10.0, 1.0)


def units(*counts: tuple[int, int]) -> list[tuple[Launched, int]]:
    """Units that are there so often, with so many launches."""
    return [(Launched(times, 1.0, 2.0), launches) for times, launches in counts]


def test_a_long_kernel_behind_short_ones_hides_none_of_their_launches():
    """Three layers take 6 s, because of the host, and the head 10 s more."""
    assert waiting_s([LAYER, HEAD]) == 3.0


def test_launches_hide_behind_a_long_kernel_in_front_of_them():
    """While the device computes the head for 10 s, the host has launched all by 7 s."""
    assert waiting_s([HEAD, LAYER]) == 0.0


def test_what_is_ahead_is_used_up():
    """The head puts the host 9 s ahead; twelve layers take 12 s longer to launch than to run."""
    assert waiting_s([HEAD, LAYER._replace(times=12)]) == 3.0


def test_a_host_that_waits_for_the_device_after_each_layer_is_never_ahead():
    assert waiting_s([HEAD, LAYER], launches_ahead=False) == 3.0


def test_a_host_is_1024_launches_ahead_of_a_device_that_waits():
    """All three of 300 fit; of those before them, one of 100."""
    assert launched_ahead(units((3, 300), (9, 100), (9, 25))) == [3, 1, 0]


def test_hosts_that_wait_for_each_other_are_ahead_of_a_slower_device_only():
    """Eight of 100 launches fit into 1,024; a device as fast as its host has none before it."""
    for device_s, ahead in ((1.0, [0]), (2.0, [0]), (2.1, [8])):
        unit = Launched(8, device_s, 2.0), 100
        assert launched_ahead([unit], hosts_wait=True) == ahead
        assert launched_ahead([unit]) == [8]


@pytest.mark.parametrize(
    ("stack", "times"),
    [
        ({"records_streams": True}, 9),
        ({"records_streams": True, "exchange_check": "1 us"}, 0),
        ({"records_streams": False}, 0),
        ({"records_sums": True}, 0),
    ],
)
def test_what_tensor_parallel_ranks_add_up_lingers_until_the_device_is_past_it(stack, times):
    """The embedding's sum, and two of each of the four layers."""
    stack = {**SIXTEEN_BIT_TORCH, **stack}
    job = small_job(small_model(layers=4), gpus=2, tp=2, sequence_parallel=True, stack=stack)
    sum_bytes = 2 * job.batch.seq_len * job.model.hidden
    lingers = StageCosts(job).forward(stage_slices(job, 1)[0]).lingers
    assert [size for _, size in lingers] == times * [sum_bytes]


@pytest.mark.parametrize("fact", ["records_streams", "records_sums"])
def test_sums_that_are_not_scattered_linger_too_but_for_the_first_layers_input(fact):
    """Two of each of the four layers (pytorch/pytorch#124260)."""
    stack = {"base": "torch", fact: True}
    job = small_job(small_model(layers=4), gpus=2, tp=2, sequence_parallel=False, stack=stack)
    sum_bytes = 2 * job.batch.seq_len * job.model.hidden
    lingers = StageCosts(job).forward(stage_slices(job, 1)[0]).lingers
    assert [size for _, size in lingers] == 8 * [sum_bytes]


@pytest.mark.parametrize(("overlaps", "lingers"), [(True, True), (False, False)])
def test_hosts_of_stages_that_compare_collectives_start_each_pass_with_their_device(
    overlaps, lingers
):
    """A device of long sequences is slower than hosts that compare in no time."""
    stack = {"base": "torch", "records_streams": True, "exchange_check": "0.001 ns"}
    job = small_job(
        small_model(layers=4), gpus=4, tp=2, pp=2, sequence_parallel=True, stack=stack,
        seq_len=65536, overlap_p2p=overlaps,
    )  # fmt: skip
    first, _ = stage_slices(job, 2)
    assert bool(StageCosts(job).forward(first).lingers) is lingers


pieces = st.builds(
    Launched, st.integers(1, 4), st.floats(0, 10).map(round), st.floats(0, 10).map(round)
)


@given(st.lists(pieces, max_size=6))
def test_a_pass_ends_when_kernels_start_after_their_launches_and_after_each_other(queue):
    launched = ended = 0.0
    for piece in queue:
        for _ in range(piece.times):
            begun, launched = launched, launched + piece.host_s
            ended = max(max(ended, begun) + piece.device_s, launched)
    busy = sum(piece.times * piece.device_s for piece in queue)
    assert busy + waiting_s(queue) == pytest.approx(ended)


def launch_bound(**plan):
    """A stage whose layers wait for the host, and whose head, over a vast vocabulary, does not."""
    profile = network_profile()
    kernels = profile.kernels.model_copy(update={"launch_s": 2e-4})
    model = small_model(layers=4, vocab=4_000_000)
    return small_job(model, profile=profile.model_copy(update={"kernels": kernels}), **plan)


def test_the_head_of_a_launch_bound_model_comes_on_top_of_its_layers():
    costs = StageCosts(launch_bound(stack="torch"))
    (run,) = stage_slices(costs.job, 1)
    layers = costs.work(run._replace(has_head=False, has_loss=False), Phase.FORWARD)
    end = costs.work(run._replace(first=run.end, has_embedding=False), Phase.FORWARD)
    assert any(part.category is Category.HOST for part in layers.parts)
    assert not any(part.category is Category.HOST for part in end.parts)
    together = costs.work(run, Phase.FORWARD)
    assert together.seconds == pytest.approx(layers.seconds + end.seconds)


@pytest.mark.parametrize("ahead", [True, False])
def test_the_head_hides_launches_of_the_backward_behind_it_where_the_host_may_be_ahead(ahead):
    stack = {"base": "torch", "launches_ahead": ahead}
    costs = StageCosts(launch_bound(stack=stack))
    (run,) = stage_slices(costs.job, 1)
    layers = costs.work(run._replace(has_head=False, has_loss=False), Phase.BACKWARD)
    end = costs.work(run._replace(first=run.end, has_embedding=False), Phase.BACKWARD)
    apart_s, together_s = layers.seconds + end.seconds, costs.work(run, Phase.BACKWARD).seconds
    launches_s = sum(p.seconds for p in layers.parts if p.category is Category.HOST)
    assert apart_s - together_s == pytest.approx(launches_s if ahead else 0.0)
    assert launches_s > 0


def test_a_collective_is_launched_by_as_much_python_as_a_kernel():
    alone, shared = (
        StageCosts(launch_bound(stack=SIXTEEN_BIT_TORCH, tp=tp, gpus=2)) for tp in (1, 2)
    )
    run = stage_slices(alone.job, 1)[0]._replace(
        has_embedding=False, has_head=False, has_loss=False
    )
    longer_s = [
        shared.work(run, phase).seconds - alone.work(run, phase).seconds
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    ]
    issued = [len(shared.work(run, phase).collectives) for phase in (Phase.FORWARD, Phase.BACKWARD)]
    assert issued[0] > 0
    launch_s = shared.job.cluster.profile.kernels.launch_s
    per_launch_s = launch_s * shared.job.plan.stack.host_work_per_launch
    assert longer_s == pytest.approx([count * per_launch_s for count in issued])


def test_hosts_that_compare_their_collectives_spend_the_check_once_per_further_rank():
    check = {"base": "torch", "exchange_check": "1 ms"}
    plain, checked = (
        StageCosts(launch_bound(stack=stack, tp=4, gpus=4)) for stack in ("torch", check)
    )
    run = stage_slices(plain.job, 1)[0]._replace(
        has_embedding=False, has_head=False, has_loss=False
    )
    before, after = (costs.work(run, Phase.FORWARD) for costs in (plain, checked))
    checks_s = len(before.collectives) * 3 * 1e-3
    assert after.seconds - before.seconds == pytest.approx(checks_s)


@pytest.mark.parametrize(("host_s", "waits_s"), [(1.0, 5.0), (0.25, 0.0)])
def test_an_update_is_eight_launches_that_a_slow_host_makes_it_wait_for(host_s, waits_s):
    """On the device it takes 3 s: 34 bytes per parameter at 1 GB/s."""
    job = small_job(zero=0)
    parameters = ParameterCount((3.0 - 1e-6) * 1e9 / 34)
    work = optimizer_work(job, parameters, [], host_s)
    assert work.seconds == pytest.approx(3.0 + waits_s)
    host = sum(part.seconds for part in work.parts if part.category is Category.HOST)
    assert host == pytest.approx(waits_s)


def waits_s(**plan) -> float:
    costs = StageCosts(launch_bound(**plan))
    (run,) = stage_slices(costs.job, 1)
    both = [costs.work(run, phase) for phase in (Phase.FORWARD, Phase.BACKWARD)]
    return sum(p.seconds for work in both for p in work.parts if p.category is Category.HOST)


def test_whole_passes_that_are_graphs_wait_for_no_launch():
    assert waits_s(stack="torch") > 0
    assert waits_s(stack="torch", cuda_graphs="full") == 0


TRANSFORMER_ENGINE = {"base": "megatron-core", "grouped_experts": True}


def host_s_of_a_layer(model: dict[str, object], **plan: object) -> float:
    """Forward and backward on a host that takes 5 us for a bare launch.

    Exchanges count as kernels, and products of single experts as the Python of two bare launches.
    """
    plan = {**plan, "stack": {**TRANSFORMER_ENGINE, "host_work_per_call": 2.0}}
    cluster = {"profile": "h100-sxm-80gb", "gpus": 8, "kernels": {"launch": "5 us"}}
    batch = {"global": 8, "micro": 1, "seq_len": 4096}
    job = {"model": model, "cluster": cluster, "batch": batch, "plan": plan}
    costs = StageCosts(job_from_document(job))
    times = costs.units.of(costs.units.layers[-1]).times
    launched = times.launched
    passes = (launched.forward, launched.backward_input, launched.backward_weight)
    launches = sum(each.kernels + each.exchanges for each in passes)
    in_loops_s = sum(each.calls for each in passes) * 2.0 * 5e-6
    launched_s = launches * costs.host_s_per_kernel * times.host_work
    return launched_s + in_loops_s + sum(times.python_s)


def test_layers_of_experts_keep_a_host_as_long_as_those_of_megatron_core_do():
    """Timed on a processor, 8.5 and 5.6 ms without launches, with 4 us for each launch."""
    latent = {"base": "moonlight-16b-a3b"}
    experts = {"count": 64, "top_k": 6, "ffn_hidden": 768}
    grouped = {"base": "qwen3-30b-a3b", "experts": experts}
    split = {"tp": 2, "ep": 8, "sequence_parallel": True}
    host_s = [host_s_of_a_layer(model, **split) for model in (latent, grouped)]
    assert host_s == pytest.approx([8.5e-3 + 263 * 4e-6, 5.6e-3 + 143 * 4e-6], rel=0.01)


def counted(direction: str, **plan: object) -> PassTime:
    """What the host launches for a layer of 8 experts in one direction."""
    model = small_model(vocab=8, layers=1, experts={"count": 8, "top_k": 2, "ffn_hidden": 128})
    stack = {**TRANSFORMER_ENGINE, **plan.pop("facts", {})}
    costs = StageCosts(small_job(model, stack=stack, **plan))
    return getattr(costs.units.of(costs.units.layers[0]).times.launched, direction)


@pytest.mark.parametrize("direction", ["forward", "backward_input", "backward_weight"])
def test_a_library_launches_the_products_of_all_experts_where_it_is_asked_for_one(direction):
    alone = counted(direction, facts={"calls_each_expert": False})
    looped = counted(direction)
    assert alone.calls == 0
    assert looped.calls == 2 * 8
    assert looped.kernels == alone.kernels


def test_a_layer_of_experts_takes_its_host_python_that_forward_takes_again_where_it_is_repeated():
    def python_s(phase: Phase, **plan: object) -> float:
        def waited_s(work: float) -> float:
            facts = {**TRANSFORMER_ENGINE, "host_work_per_expert_layer": work}
            model = small_model(
                vocab=8, layers=1, experts={"count": 8, "top_k": 2, "ffn_hidden": 128}
            )
            profile = network_profile()
            kernels = profile.kernels.model_copy(update={"launch_s": 1.0})
            slow = profile.model_copy(update={"kernels": kernels})
            costs = StageCosts(small_job(model, profile=slow, stack=facts, **plan))
            (run,) = stage_slices(costs.job, 1)
            return costs.work(run, phase).seconds

        return waited_s(100.0) - waited_s(0.0)

    assert python_s(Phase.FORWARD) == pytest.approx(75.0)
    assert python_s(Phase.BACKWARD) == pytest.approx(25.0)
    assert python_s(Phase.BACKWARD, recompute="full") == pytest.approx(75.0 + 25.0)


def test_a_dense_layer_keeps_a_host_as_long_as_one_of_megatron_core_does():
    """Timed as those of experts are: 2.1 ms without its 30 launches, of 4 us each."""
    llama = {"base": "llama3-8b"}
    assert host_s_of_a_layer(llama) == pytest.approx(2.1e-3 + 30 * 4e-6, rel=0.01)


def test_a_host_spends_more_on_each_launch_of_layers_without_experts_alone():
    """Twice as much per launch is as long again, and nothing where all layers have experts."""

    def more_s(**fields: object) -> float:
        model, facts = small_model(vocab=8, **fields), {"base": "torch", "host_work_per_launch": 20}
        profile = network_profile()
        kernels = profile.kernels.model_copy(update={"launch_s": 1e-3})
        slow = profile.model_copy(update={"kernels": kernels})
        once, twice = (
            StageCosts(small_job(model, profile=slow, stack={**facts, "dense_host_work": work}))
            for work in (1, 2)
        )
        (run,) = stage_slices(once.job, 1)
        return twice.work(run, Phase.FORWARD).seconds - once.work(run, Phase.FORWARD).seconds

    experts = {"count": 4, "top_k": 2, "ffn_hidden": 128}
    assert more_s(layers=2) > 0
    assert more_s(layers=4) == pytest.approx(2 * more_s(layers=2))
    assert more_s(layers=4, experts=experts) == 0


def test_a_layer_that_is_a_graph_is_one_launch_each_way():
    costs = StageCosts(launch_bound(stack="torch", cuda_graphs="layer"))
    run = stage_slices(costs.job, 1)[0]._replace(
        has_embedding=False, has_head=False, has_loss=False
    )
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        work = costs.work(run, phase)
        launches = [part.repeats for part in work.parts if part.category is Category.HOST]
        # Backward without recomputation is two passes: of inputs and of weights.
        assert launches == [4 if phase is Phase.FORWARD else 8]


def test_graphs_of_layers_leave_out_experts_without_a_capacity():
    experts = {"count": 4, "top_k": 2, "ffn_hidden": 128}

    def launches(**more) -> float:
        model = small_model(layers=1, experts={**experts, **more.pop("experts", {})})
        costs = StageCosts(small_job(model, stack="megatron-core", **more))
        kind = costs.units.layers[0]
        return costs.units.of(kind).times.launched.forward.kernels

    assert launches(cuda_graphs="layer", experts={"capacity_factor": 1.0}) == 0
    assert 0 < launches(cuda_graphs="layer") < launches(cuda_graphs="router") < launches()
    assert launches(cuda_graphs="full") == 0


def test_units_of_a_graph_that_need_no_launch_are_all_launched_ahead():
    assert launched_ahead(units((3, 0), (5, 300))) == [3, 3]


def test_layers_wait_for_what_their_device_time_does_not_hide_as_own_runs_say():
    hidden_s = SLOW_HOST * eager_layer_s()
    for hidden, waited_s in ((0.0, 30.0), (4.0, 18.0), (20.0, 0.0)):
        queue = [Launched(2, hidden * hidden_s / 2, 1.0)]
        assert unpredicted_wait_s(3.0, 10.0, queue) == pytest.approx(waited_s)


def test_a_collective_takes_the_host_what_the_stack_says_in_every_layer():
    """However much more kernels of layers without experts take it. Two all_reduces go forward."""

    def host_s(**facts: float) -> float:
        stack = {"base": "torch", "host_work_per_launch": 20, **facts}
        profile = network_profile()
        kernels = profile.kernels.model_copy(update={"launch_s": 1e-3})
        slow = profile.model_copy(update={"kernels": kernels})
        costs = StageCosts(
            small_job(small_model(layers=1, vocab=8), profile=slow, tp=2, gpus=2, stack=stack)
        )
        (run,) = stage_slices(costs.job, 1)
        layer = run._replace(has_embedding=False, has_head=False, has_loss=False)
        return costs.work(layer, Phase.FORWARD).seconds

    def exchanges_s(**facts: float) -> float:
        return host_s(host_work_per_exchange=50.0, **facts) - host_s(
            host_work_per_exchange=30.0, **facts
        )

    assert exchanges_s() == pytest.approx(2 * 20 * 1e-3)
    assert exchanges_s(dense_host_work=2.0) == pytest.approx(exchanges_s())
