"""Train a job for real, simulate it, and say how far they differ."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from simulator.described.job import Job
from simulator.errors import InputError
from simulator.ranks.launch import loopback, on_shaped_links, run_ranks, shaped_network
from simulator.ranks.world import (
    AskedBackend,
    Backend,
    check_world_size,
    chosen_backend,
    launched_ranks,
    own_world,
)
from simulator.validate.torch_run.measure import measure
from simulator.validate.torch_run.predict import predict
from simulator.validate.torch_run.run_comparison import Measured, TorchReport
from simulator.validate.torch_run.supported_plan import (
    as_torch_runs_it,
    check_can_sleep,
    check_strategies,
)


def validate_torch(
    job: Job,
    *,
    backend: AskedBackend = "auto",
    steps: int = 10,
    rank: int = 0,
    link_bytes_per_s: float | None = None,
    layer_sleep_s: float | None = None,
    trace: Path | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> TorchReport | None:
    """The job measured and predicted; None on all ranks of torchrun but the first.

    Args:
        job: What to train; its profile is what the prediction rests on.
        backend: What carries messages between ranks.
        steps: Steps to time, after the warm-up.
        rank: Which rank to be under the fake backend.
        link_bytes_per_s: Rate of a real network made between the ranks on this machine; None
            is whatever joins them.
        layer_sleep_s: How long each layer sleeps in forward, and twice that in backward [s]:
            what is left is communication, overlap and bubbles. Layers compute as well only where
            they exchange activations.
        trace: Where rank 0 leaves its profile of one step (.json or .json.gz); None is nowhere.
        on_step: Called after each timed step.

    Raises:
        InputError: The world is not the job's, a backend or a format is missing.
        UnsupportedError: The plan asks for what torch's own strategies do not do.
    """
    if link_bytes_per_s is not None:
        backend, job = _on_links(backend, job, link_bytes_per_s)
    gpus, launched = job.cluster.gpus, launched_ranks()
    chosen = chosen_backend(backend, gpus, launched)
    if chosen != "fake":
        check_world_size(gpus, launched)
    world = own_world(chosen, gpus, rank)
    check_strategies(job, world)
    if layer_sleep_s is not None:
        check_can_sleep(job)
    as_run = as_torch_runs_it(job, world)
    task = partial(
        measure_rank, as_run.job, chosen, steps, rank, layer_sleep_s=layer_sleep_s, trace=trace
    )
    measured: Measured | None
    if chosen == "fake" or gpus == 1 or launched is not None:
        measured = task(on_step)
    elif link_bytes_per_s is not None:
        with shaped_network(gpus, link_bytes_per_s) as place:
            measured = run_ranks(task, place, on_step)
        link = {"link": f"{8 * link_bytes_per_s / 1e6:g} Mbit/s"}
        measured = replace(measured, environment={**measured.environment, **link})
    else:
        measured = run_ranks(task, loopback(gpus), on_step)
    if measured is None:
        return None
    alone = measured.ranks[0].stage if chosen == "fake" else None
    notes = list(as_run.notes)
    cores = os.cpu_count() or 1
    if chosen == "gloo" and gpus > cores and launched is None:
        notes.append(f"{gpus} ranks share {cores} cores, so they wait for each other")
    as_routed = as_run.job
    if measured.expert_loads:
        loads = list(measured.expert_loads)
        as_routed = as_run.job.replace({"plan.expert_load": {"loads": loads}})
        most = max(loads) / statistics.fmean(loads)
        notes.append(f"the busiest expert received {most:.2f} times the mean, as predicted")
    predicted = predict(as_routed, alone=alone, layer_sleep_s=layer_sleep_s)
    return TorchReport(as_routed, measured, predicted, notes)


def measure_rank(
    job: Job,
    backend: Backend,
    steps: int,
    rank: int,
    on_step: Callable[[], None],
    *,
    layer_sleep_s: float | None = None,
    trace: Path | None = None,
) -> Measured | None:
    """Be the rank that this process was started as; rank 0 gets the numbers of all.

    Args:
        job: As torch runs it.
        backend: What carries messages.
        steps: Steps to time.
        rank: Which rank to be where the others are not there.
        on_step: Called after each timed step.
        layer_sleep_s: How long each layer sleeps in forward instead of computing [s].
        trace: Where rank 0 leaves its profile; None is nowhere.
    """
    own = rank if backend == "fake" else int(os.environ.get("RANK", "0"))
    world = own_world(backend, job.cluster.gpus, own)
    return measure(job, world, steps, layer_sleep_s=layer_sleep_s, trace=trace, on_step=on_step)


def _on_links(backend: AskedBackend, job: Job, link_bytes_per_s: float) -> tuple[AskedBackend, Job]:
    """Shaped links carry gloo between processes that are started here."""
    if backend not in {"auto", "gloo"}:
        rule = "sends nothing over shaped links"
        raise InputError.single("--backend", rule, backend, "use --backend gloo")
    if launched_ranks() is not None:
        rule = "starts the ranks itself, each in its own network namespace"
        raise InputError.single("--shaped", rule, hint="run it without torchrun")
    if job.cluster.gpus == 1:
        rule = "needs ranks that communicate"
        raise InputError.single("--shaped", rule, hint="set cluster.gpus=2 or more")
    return "gloo", on_shaped_links(job, link_bytes_per_s)
