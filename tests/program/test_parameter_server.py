"""Hosts that hold the parameters: what passes a worker's port and what passes theirs."""

from __future__ import annotations

import pytest

from simulator.described.job import Job
from simulator.described.variation import Perturbation
from simulator.engine.replay import replay
from simulator.errors import InputError
from simulator.program.build import build_program
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Kind, Owner, Stream
from simulator.program.states.parameter_server import server_count, server_rates
from simulator.program.states.resident import slice_parameters
from simulator.results.simulation import run_step
from simulator.results.traffic import class_traffic
from tests.jobs import (
    GPUS_PER_NODE,
    SIXTEEN_BIT_TORCH,
    free_latency_profile,
    network_profile,
    small_job,
)
from tests.unfolded import check_unfolds

WEIGHT, GRADIENT = 2.0, 4.0
"""Bytes per parameter that are pulled and pushed in bf16 with the stack ``torch``."""

PORT_BYTES_PER_S = 1e9
"""A worker's share of the cards of its node, in the profile of these tests."""


def job_of(workers: int, *, microbatches: int = 1, **fields) -> Job:
    plan = {"zero": 0, "stack": SIXTEEN_BIT_TORCH, "data_parallel": "parameter-server", **fields}
    plan.setdefault("profile", free_latency_profile())
    return small_job(gpus=workers, global_batch=workers * microbatches, **plan)


def parameters(job: Job) -> float:
    return slice_parameters(job, Slice(0, 4, has_embedding=True, has_head=True)).total


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("n", [1, 2, 8])
def test_every_worker_pushes_its_gradients_and_pulls_the_weights_once_per_step(n, m, overlap):
    job = job_of(n, microbatches=m, overlap_grad_reduce=overlap, overlap_param_gather=overlap)
    (traffic,) = class_traffic(build_program(job))
    moved = {total.kind: total.port_bytes["fabric"] for total in traffic.totals}
    held = parameters(job)
    assert moved == pytest.approx({Kind.REDUCE: held * GRADIENT, Kind.BROADCAST: held * WEIGHT})
    assert traffic.port_bytes["server"] == pytest.approx(held * (GRADIENT + WEIGHT))


@pytest.mark.parametrize(("n", "servers"), [(4, 1), (8, 2), (16, 4), (16, 1), (16, 8)])
def test_servers_carry_every_worker_s_bytes_at_the_rate_of_all_their_cards(n, servers):
    """N models through the ports of s nodes, or one through that of each worker."""
    job = job_of(n, parameter_servers=servers, overlap_grad_reduce=False)
    (push,) = [op for op in build_program(job).operations if op.kind is Kind.REDUCE]
    pushed = parameters(job) * GRADIENT
    through_servers_s = n * pushed / (servers * GPUS_PER_NODE * PORT_BYTES_PER_S)
    through_worker_s = pushed / PORT_BYTES_PER_S
    latency_s = job.cluster.profile.network.fabric.bulk_latency_s
    expected_s = latency_s + max(through_servers_s, through_worker_s)
    assert push.work.seconds == pytest.approx(expected_s)


def test_by_default_there_is_one_server_per_node_which_is_as_wide_as_its_workers():
    assert [server_count(job_of(n)) for n in (1, 4, 8, 16)] == [1, 1, 2, 4]
    assert server_rates(job_of(16)).pull_bytes_per_s == pytest.approx(PORT_BYTES_PER_S)


def test_two_workers_move_what_a_ring_of_two_moves():
    """2 (n - 1) / n = 1 model there and one back, in one format."""
    server, ring = (
        job_of(2, precision="fp32", attention="unfused", data_parallel=kind)
        for kind in ("parameter-server", "ddp")
    )
    moved = class_traffic(build_program(server))[0].port_bytes["fabric"] / 2
    assert moved == pytest.approx(class_traffic(build_program(ring))[0].port_bytes["scale_up"])


def test_a_server_takes_in_no_more_than_its_memory_can_add_up():
    """Four bytes of memory traffic for one that arrives, at 46 % of 410 GB/s."""
    fast = network_profile(fabric={"nic": "1 TB/s"})
    rates = server_rates(job_of(4, profile=fast))
    assert rates.push_bytes_per_s == pytest.approx(0.46 * 410e9 / 4 / 4)
    assert rates.pull_bytes_per_s == pytest.approx(0.46 * 410e9 / 4)


def test_workers_hold_no_optimizer_states():
    job = job_of(4)
    (memory,) = run_step(job).memory
    assert memory.owner_bytes[Owner.WEIGHTS][0] == pytest.approx(parameters(job) * WEIGHT)
    assert max(memory.owner_bytes[Owner.GRADIENTS]) == pytest.approx(parameters(job) * GRADIENT)
    assert not {Owner.OPTIMIZER_STATES, Owner.MASTER_WEIGHTS} & set(memory.owner_bytes)


def test_pushes_follow_the_buckets_and_servers_update_after_the_last():
    stack = {"base": "torch", "bucket": "1 B", "first_bucket": "0 B"}
    program = build_program(job_of(4, stack=stack))
    timeline = replay(program)
    pushes = [i for i, op in enumerate(program.operations) if op.kind is Kind.REDUCE]
    assert [program.operations[i].layers for i in pushes] == [
        (4, 4), (3, 4), (2, 3), (1, 2), (0, 1), (0, 0),
    ]  # fmt: skip
    (update,) = [i for i, op in enumerate(program.operations) if op.kind is Kind.OPTIMIZER]
    assert timeline.operation_start_s[update] >= max(timeline.operation_end_s[pushes])
    last = program.operations[program.lanes[0, Stream.COMPUTE][-1]]
    assert last.kind is Kind.BROADCAST


@pytest.mark.parametrize(
    "perturbations",
    [[{"gpu": 0, "slowdown": 0.5}], [{"node": 1, "nic_share": 0.5}, {"gpu": 2, "slowdown": 1.0}]],
)
def test_folded_and_unfolded_runs_give_every_worker_the_same_timeline(perturbations):
    job = job_of(8, microbatches=2, profile=network_profile()).model_copy(
        update={"perturbations": tuple(Perturbation(**each) for each in perturbations)}
    )
    check_unfolds(job)


def test_a_slow_gpu_does_not_slow_the_servers():
    slow = (Perturbation(gpu=0, slowdown=1.0),)
    job = job_of(4)
    updates = [
        [op.work.seconds for op in build_program(each).operations if op.kind is Kind.OPTIMIZER]
        for each in (job, job.model_copy(update={"perturbations": slow}))
    ]
    assert set(updates[0]) == set(updates[1])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tp": 2}, "plan.tp"),
        ({"zero": 3}, "plan.zero"),
        ({"stack": "deepspeed", "offload": {"optimizer": "cpu"}}, "plan.offload"),
        ({"data_parallel": "ddp", "parameter_servers": 2}, "plan.parameter_servers"),
        ({"profile": network_profile(fabric={"nics_per_node": 0})}, "network cards"),
    ],
)
def test_what_servers_cannot_do_is_refused(changes, field):
    with pytest.raises(InputError, match=field):
        job_of(4, **changes)
