"""Strategies change what they say, and nothing else; what nothing runs is a row with a reason."""

from __future__ import annotations

import pytest

from reports.make.strategies.strategies_report import PAGE, write_report
from reports.make.strategies.zero_in_pipeline_costs import zero_runs
from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.planning.compared_strategies import compare_strategies, known_strategies, on_nodes
from simulator.program.grid.stage_layers import stage_slices
from simulator.program.ir import Owner
from simulator.program.states.resident import slice_parameters, state_bytes
from simulator.results.simulation import run_step

BY_NAME = {strategy.name: strategy for strategy in known_strategies()}
TINY = {"hidden": 256, "heads": 4, "ffn_hidden": 512, "vocab": 1024}


def job_of(gpus: int = 8, *, sequences: int = 16, layers: int = 4, **plan) -> Job:
    return job_from_document(
        {
            "model": {"name": "tiny", "layers": layers, **TINY},
            "cluster": {"profile": "h100-sxm-80gb", "gpus": gpus},
            "batch": {"global": sequences, "seq_len": 256},
            "plan": {"stack": "torch", **plan},
        }
    )


def outcomes(job: Job, nodes: int) -> dict:
    (comparison,) = compare_strategies(job, [nodes])
    return {outcome.strategy.name: outcome for outcome in comparison.outcomes}


def test_every_strategy_is_a_job_that_one_could_run_alone():
    job = job_of()
    found = outcomes(job, 1)
    for name, strategy in BY_NAME.items():
        alone = run_step(strategy.applied(job))
        assert found[name].step is not None
        assert found[name].step.step_time_s == alone.step_time_s


@pytest.mark.parametrize("stack", ["megatron-core", "torch", "deepspeed"])
@pytest.mark.parametrize(("name", "zero"), [("DDP", 0), ("ZeRO-1", 1), ("ZeRO-2", 2)])
def test_a_strategy_hides_exchanges_as_the_jobs_stack_does(stack, name, zero):
    """Its own ZeRO keeps 16-bit weights, wherever the stack has them."""
    job = job_of(stack={"base": stack, "keeps_half_weights": True})
    alone = job.replace({"plan.zero": zero})
    assert BY_NAME[name].applied(job).choices.overlaps_gather == alone.choices.overlaps_gather
    assert outcomes(job, 1)[name].step.step_time_s == run_step(alone).step_time_s


def test_every_gpu_keeps_its_microbatches_on_more_nodes():
    job = job_of(8, sequences=24)
    wide = on_nodes(job, 4)
    assert (wide.cluster.gpus, wide.batch.global_batch) == (32, 96)
    assert wide.microbatches == job.microbatches == 3


def test_one_process_is_refused_on_two_nodes_with_the_reason():
    outcome = outcomes(job_of(), 2)["DP"]
    assert outcome.step is None
    assert not outcome.fits
    assert "one node only" in outcome.refusal
    assert outcome.refusal.startswith("plan.")


def test_gpu_0_is_the_fullest_of_its_process():
    assert outcomes(job_of(), 1)["DP"].fullest.role == "GPU 0"


def test_each_stage_of_zero_holds_less_than_the_one_before():
    found = outcomes(job_of(layers=16), 1)
    held = [found[name].fullest.peak_allocated_bytes for name in ("DDP", "ZeRO-1", "ZeRO-2")]
    assert held == sorted(held, reverse=True)
    assert found["ZeRO-3"].fullest.peak_allocated_bytes < held[-1]


def test_hybrid_shards_are_those_of_a_node():
    job = on_nodes(job_of(), 2)
    assert BY_NAME["HSDP"].applied(job).plan.zero_group == 8
    one, two = (outcomes(job_of(), nodes) for nodes in (1, 2))
    assert one["HSDP"].step.step_time_s == one["FSDP"].step.step_time_s
    assert two["HSDP"].fullest.peak_allocated_bytes > two["FSDP"].fullest.peak_allocated_bytes


def test_hybrid_shards_leave_room_for_tensor_parallel_ranks():
    job = on_nodes(job_of(tp=2), 2)
    assert BY_NAME["HSDP"].applied(job).plan.zero_group == 4


def test_offloading_leaves_no_optimizer_on_the_gpu_and_infinity_no_weights():
    found = outcomes(job_of(layers=16), 1)
    for name, away in {
        "Offload": {Owner.OPTIMIZER_STATES, Owner.MASTER_WEIGHTS},
        "Infinity": {Owner.OPTIMIZER_STATES, Owner.MASTER_WEIGHTS, Owner.WEIGHTS},
    }.items():
        assert not away & set(found[name].fullest.by_owner)
        assert found[name].step.host is not None
    assert found["ZeRO-2"].step.host is None


def test_infinity_takes_drives_where_a_node_has_them_and_else_its_memory():
    strategy = BY_NAME["Infinity"]
    assert strategy.applied(job_of()).plan.offload.parameters == "cpu"
    drives = {"size": "30 TB", "read": "20 GB/s", "write": "10 GB/s"}
    job = job_of().replace({"cluster.host.nvme": drives})
    assert strategy.applied(job).plan.offload.parameters == "nvme"


def test_what_a_job_says_for_its_own_strategy_is_left_aside():
    own = job_of(16, sequences=32, zero=3, zero_group=8, reshard_after_forward=False)
    assert all(outcome.step for name, outcome in outcomes(own, 2).items() if name != "DP")
    away = job_of(16, sequences=32, zero=3, offload={"optimizer": "cpu", "parameters": "cpu"})
    assert outcomes(away, 2)["ZeRO-3"].step.host is None
    servers = job_of(16, sequences=32, data_parallel="parameter-server", zero=0)
    assert all(outcome.step for name, outcome in outcomes(servers, 2).items() if name != "DP")


def test_a_job_of_one_process_is_compared_on_more_nodes_too():
    job = job_of(data_parallel="data-parallel", zero=0)
    assert outcomes(job, 2)["DDP"].step is not None


def test_servers_of_the_job_are_kept():
    few, many = (
        job_of(16, sequences=32, data_parallel="parameter-server", zero=0, parameter_servers=n)
        for n in (1, 4)
    )
    times = [outcomes(job, 2)["PS"].step.step_time_s for job in (few, many)]
    assert times[0] > times[1]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_traffic_of_zero_in_a_pipeline_grows_with_microbatches_as_theory_says(zero):
    """(n - 1)/n of 2 R, R + W, m R + W, R + (m + 1) W, of the largest stage.

    Under ZeRO 3 torch reduces a stage once and keeps what a backward gathers for the next forward.

    On H100 the switch adds whole gradients up, so ZeRO 0 is left out there.
    """
    stack = {"base": "torchtitan", "pads_shards": False, "sharding_units": "layers"}
    job = job_of(8, pp=2, stack=stack)
    n, per = 4, state_bytes(job)
    largest = max(slice_parameters(job, run).total for run in stage_slices(job, 2))
    runs = [run for run in zero_runs(job, [2, 8]) if run.zero == zero]
    gather, reduce = per.gathered, per.reduced
    for run in runs:
        m = run.microbatches
        theory = {
            1: reduce + gather,
            2: m * reduce + gather,
            3: reduce + (m + 1) * gather,
        }.get(zero)
        if theory is None:
            assert run.moved_bytes == runs[0].moved_bytes
        else:
            assert run.moved_bytes == pytest.approx(largest * theory * (n - 1) / n)


def test_a_number_of_nodes_that_divides_nothing_is_refused():
    with pytest.raises(InputError, match=r"cluster\.gpus"):
        compare_strategies(job_of(24, sequences=48, tp=1, pp=3, zero=1), [1])


def test_the_number_of_nodes_that_a_job_does_not_run_on_is_said():
    with pytest.raises(InputError) as raised:
        compare_strategies(job_of(16, tp=4, pp=4), [2, 1])
    (fault,) = raised.value.faults
    assert fault.rule.startswith("on 1 node (8 GPUs) ")
    assert fault.hint.endswith("or compare other numbers of nodes")


@pytest.mark.slow
def test_the_report_has_every_strategy_and_every_picture_that_it_shows(tmp_path):
    written = list(write_report(job_of(), tmp_path))
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert all(path.stat().st_size for path in written)
    for path in written[:-1]:
        assert f"]({path.name})" in page
    for name in BY_NAME:
        assert page.count(f"| {name} |") == 4


def test_a_job_on_part_of_a_node_is_compared_on_its_own_gpus():
    (comparison,) = compare_strategies(job_of(4), [1])
    assert comparison.job.cluster.gpus == 4
    assert on_nodes(job_of(4), 2).cluster.gpus == 16
