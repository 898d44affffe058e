"""Are orders that depend on costs decided from the job's own passes, links and slow ranks?"""

from __future__ import annotations

from itertools import pairwise

import pytest

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.engine.replay import replay
from simulator.program.build import build_program
from simulator.program.ir import Kind, Stream
from simulator.program.price.schedule_costs import pass_costs
from simulator.program.run.order import StepOrder
from simulator.results.simulation import run_step
from simulator.schedule import Phase, schedule_info, schedule_order
from simulator.schedule.written import write_order

MODEL = {"layers": 8, "hidden": 1024, "heads": 8, "ffn_hidden": 4096, "vocab": 8192}
STARVED = {"fabric": {"nic": "1 Gbit/s"}, "gpus_per_node": 1, "scale_up": {"gpus": 1}}


def job(schedule: str, *, network=None, perturbations=(), **plan) -> Job:
    """Four stages with eight microbatches."""
    cluster = {"profile": "a100-sxm-80gb", "gpus": 4, **({"network": network} if network else {})}
    return job_from_document(
        {
            "model": MODEL,
            "cluster": cluster,
            "batch": {"global": 8, "seq_len": 1024},
            "plan": {"pp": 4, "schedule": schedule, **plan},
            "perturbations": list(perturbations),
        }
    )


def order_of(a_job: Job):
    return StepOrder(a_job).slots(a_job.microbatches)


def ahead(slots) -> int:
    """Forwards before the first backward."""
    return next(i for i, slot in enumerate(slots) if slot.phase is not Phase.FORWARD)


def test_a_varuna_rank_runs_further_ahead_the_slower_its_gradients_come():
    plan = {"recompute": "full"}
    calm, starved = (
        order_of(job("varuna", **plan)),
        order_of(job("varuna", network=STARVED, **plan)),
    )
    assert ahead(starved[2]) > ahead(calm[2])


def test_varuna_on_slow_links_is_faster_than_waiting_for_its_turn():
    """Against 1F1B with sends that overlap, too: what is left is the order."""
    plan = {"recompute": "full", "overlap_p2p": True}
    steps = {
        name: run_step(job(name, network=STARVED, **plan)).step_time_s
        for name in ("varuna", "1f1b")
    }
    assert steps["varuna"] < 0.95 * steps["1f1b"]


def test_a_varuna_rank_never_idles_while_it_has_an_input():
    """With a slow GPU and a slow link in the pipeline."""
    slow = ({"gpu": 2, "slowdown": 0.5}, {"gpu": 1, "scale_up_share": 0.1})
    program = build_program(job("varuna", perturbations=slow, recompute="full", overlap_p2p=True))
    timeline, operations = replay(program), program.operations
    starts, ends = timeline.operation_start_s, timeline.operation_end_s
    gaps = 0
    for stage in range(4):
        passes = [
            index
            for index, operation in enumerate(operations)
            if operation.lanes[0] == (stage, Stream.COMPUTE)
            and operation.kind in (Kind.FORWARD, Kind.BACKWARD)
        ]
        for before, after in pairwise(passes):
            if starts[after] <= ends[before] + 1e-12:
                continue
            gaps += 1
            ready = [
                max((ends[i] for i in operations[later].after), default=0.0)
                for later in passes[passes.index(after) :]
            ]
            assert min(ready) >= starts[after] - 1e-9
    assert gaps > 4, "ranks that never wait would show nothing"


def test_slow_ranks_and_links_are_in_the_costs_of_their_stages_only():
    info = schedule_info("varuna")
    fast_host = {"base": "megatron-core", "host_work_per_launch": 1}
    sound = pass_costs(job("varuna", stack=fast_host), info)
    slow = ({"gpu": 1, "slowdown": 1.0}, {"gpu": 3, "scale_up_share": 0.5})
    slowed = pass_costs(job("varuna", stack=fast_host, perturbations=slow), info)
    for stage, factor in ((1, 2.0), (2, 1.0)):
        key = (Phase.BACKWARD, stage)
        assert slowed.seconds[key] == pytest.approx(factor * sound.seconds[key], rel=0.05)
    assert slowed.transfer_s(0, 1) == sound.transfer_s(0, 1)
    assert slowed.transfer_s(2, 3) > 1.4 * sound.transfer_s(2, 3)


def test_zb_2p_is_searched_with_the_passes_of_the_job():
    """Weight gradients are short here and hold little, which equal passes would not know."""
    plan = {"stack": "zero-bubble", "precision": "fp16"}
    own = job("zb-2p", **plan).replace({"model.heads": 32, "batch.global": 24})
    rows = write_order(schedule_order("zb-2p", 4, 1, 24)).splitlines()
    as_if_equal = own.replace({"plan.schedule": {"file": "equal", "rows": rows}})
    assert order_of(own) != order_of(as_if_equal)
    assert run_step(own).step_time_s < run_step(as_if_equal).step_time_s
