"""What does an uneven load of experts cost, in a sentence?"""

from __future__ import annotations

from simulator.described.job import Job
from simulator.program.grid.expert_tokens import busiest_share
from simulator.program.ir import Stream
from simulator.program.unlike.busy_experts import WAIT
from simulator.results.step import StepResult
from simulator.units import format_bytes, format_seconds


def expert_load_sentence(result: StepResult, job: Job) -> str:
    """Who waits for whom, how long, and where memory peaks; empty where the load is even."""
    share = busiest_share(job)
    if share is None:
        return ""
    hottest = f"The busiest expert receives {max(share.loads):.2f} times its share"
    if job.plan.ep == 1:
        return f"{hottest}, but every rank holds all experts, so nobody waits."
    classes = result.timeline.program.classes
    waits_s = {index: _wait_s(result, index) for index in range(len(classes))}
    waiting = max(waits_s, key=lambda index: waits_s[index])
    stage = classes[waiting].stage
    beside = [index for index, rank_class in enumerate(classes) if rank_class.stage == stage]
    busiest = min(beside, key=lambda index: waits_s[index])
    wait_s = waits_s[waiting]
    share_of_step = f"{100 * wait_s / result.step_time_s:.1f} %"
    peaks = [result.memory[index].peak_allocated_bytes for index in (busiest, waiting)]
    return (
        f"{hottest} and its rank {share.busiest:.2f} times the mean of all ranks: of every "
        f"{job.plan.ep} ranks that share the experts, {job.plan.ep - 1} wait for it "
        f"{format_seconds(wait_s)} of a step of {format_seconds(result.step_time_s)} "
        f"({share_of_step}, stage {stage}), and memory peaks on it "
        f"at {format_bytes(peaks[0])}, on the others at {format_bytes(peaks[1])}."
    )


def _wait_s(result: StepResult, rank_class: int) -> float:
    program = result.timeline.program
    lane = program.lanes.get((rank_class, Stream.COMPUTE), [])
    parts = (part for index in lane for part in program.operations[index].work.parts)
    return sum(part.seconds for part in parts if part.name == WAIT)
