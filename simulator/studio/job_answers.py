"""What does the page ask, and what does it get: the step, changes that help, copies of the job?

A question is a name and a JSON object; its answer is a JSON object: what was asked for, or
``faults`` with the words of our errors, or ``bug`` where the mistake is ours.

Numbers are for scripts, texts for people, both from the functions that write the page of
``clustersim run --html``. Changes are found by searches of :mod:`simulator.planning.changes`; here
they become rows with a button.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from simulator.api import Result, simulate
from simulator.described.job import Job, job_yaml
from simulator.errors import Fault, InputError
from simulator.exporters.deepspeed import deepspeed_config, switched_on_in_the_model
from simulator.exporters.html.run_report import (
    memory_owners,
    memory_rows,
    timeline_legend,
    waterfall,
)
from simulator.exporters.html.timeline_data import source_blocks, timeline_data
from simulator.exporters.megatron import megatron_script
from simulator.exporters.torchtitan import schedule_csv, torchtitan_config
from simulator.planning.campaign.training_run import campaign_time, energy, money
from simulator.planning.changes.advice import way_out
from simulator.planning.changes.helpful_changes import nearest_fit, what_ifs
from simulator.results.simulation import run_step
from simulator.results.views.plain_data import fit_to_dict
from simulator.results.views.verdict import LEAST_SHARE, WhatIf, verdict
from simulator.studio.controls import START, State, job_of, model_of_config
from simulator.units import HOUR_S, format_bytes, format_count, format_seconds

_MOST_ROWS = 20_000
"""Operations of the timeline; beyond it classes of ranks are left out, so that it stays quick."""


def step_answer(state: State, *, with_timeline: bool) -> dict[str, Any]:
    """The step of a state's job.

    Args:
        state: Fields of the job.
        with_timeline: Whether the page will draw its operations.

    Raises:
        InputError: The job cannot run.
    """
    job = job_of(state)
    result = simulate(job)
    return {
        "title": result.title,
        "verdict": verdict(result),
        "step_time_s": result.step_time_s,
        "step": format_seconds(result.step_time_s),
        "band": result.step_time_band_s and [format_seconds(s) for s in result.step_time_band_s],
        "mfu": result.mfu,
        "hfu": result.hfu,
        "tokens_per_s_per_gpu": result.tokens_per_s_per_gpu,
        "model_tflops_per_gpu": result.model_tflops_per_gpu,
        "bubble_fraction": result.bubble_fraction,
        **fit_to_dict(result),
        "dp": job.dp,
        "microbatches": job.microbatches,
        "memory": _memory(result),
        "breakdown": [
            {**row, "key": row["key"].value, "time": format_seconds(row["seconds"])}
            for row in waterfall(result)
        ],
        "cost": _cost(job, result),
        **(_timeline(job, result) if with_timeline else {}),
    }


def _memory(result: Result) -> dict[str, Any]:
    """Peaks by owner of the fullest ranks of each class, and of the fullest of all."""
    rows = [
        {
            "name": row["name"],
            "need_bytes": row["memory"].peak_device_bytes,
            "need": format_bytes(row["memory"].peak_device_bytes),
            "capacity": format_bytes(row["memory"].capacity_bytes),
            "is_fullest": row["memory"] is result.fullest,
            "fits": row["fits"],
            "limit_share": row["capacity_share"],
            "shares": [bar["share"] for bar in row["bars"]],
        }
        for row in memory_rows(result)
    ]
    fullest = result.fullest
    owners = memory_owners(result)
    held = [fullest.by_owner.get(owner["key"], 0.0) for owner in owners if "key" in owner]
    held.append(fullest.peak_device_bytes - fullest.peak_allocated_bytes)
    return {
        "rows": rows,
        "owners": [
            {"name": owner["name"], "color": owner["color"], "held": format_bytes(size)}
            for owner, size in zip(owners, held, strict=True)
        ],
    }


def _cost(job: Job, result: Result) -> dict[str, Any] | None:
    """Days, GPU-hours and money of the training run; None where no tokens are given.

    Ignores failures and checkpoints unless the job describes them.
    """
    if job.campaign.tokens is None or job.cluster.pools:
        return None
    time = campaign_time(job, result, members=20)
    paid = money(job, time, energy(job, time)).cheapest
    return {
        "tokens": format_count(time.tokens),
        "wall": format_seconds(time.wall_s),
        "gpu_hours": time.gpu_s / HOUR_S,
        "usd": paid and paid[1],
    }


def _timeline(job: Job, result: Result) -> dict[str, Any]:
    blocks = source_blocks(job)
    return {
        "timeline": timeline_data(result, blocks, most_rows=_MOST_ROWS),
        "sources": blocks,
        "legend": list(timeline_legend(result)),
    }


_MOST_CHANGES = 8


def fitting_changes(state: State) -> dict[str, Any]:
    """The nearest change that makes the job fit, and a faster one where there is one.

    Raises:
        InputError: The job cannot run, or runs on several kinds of GPUs.
    """
    found = nearest_fit(job_of(state))
    changes = [each for each in (found.nearest, found.faster) if each is not None]
    return {
        "said": "" if changes else " ".join(way_out(found)),
        "tried": found.tried,
        "changes": [_row(each) for each in changes],
    }


def faster_changes(state: State) -> dict[str, Any]:
    """Single changes that make the job faster, those that fit first, then the largest gain.

    Raises:
        InputError: The job cannot run.
    """
    job = job_of(state)
    tried = what_ifs(job)
    better = [each for each in tried if each.gain >= LEAST_SHARE]
    better.sort(key=lambda each: (not each.fits, -each.gain))
    return {
        "said": verdict(run_step(job), tried),
        "tried": len(tried),
        "changes": [_row(each) for each in better[:_MOST_CHANGES]],
    }


def _row(change: WhatIf) -> dict[str, Any]:
    return {
        "words": change.words,
        "fields": dict(change.changes),
        "gain": change.gain,
        "step": format_seconds(change.step_time_s),
        "memory": format_bytes(change.peak_device_bytes),
        "fits_probability": change.fits_probability,
        "fits": change.fits,
        "keeps_learning": not {"batch.global", "batch.seq_len"} & set(change.changes),
    }


def job_copy(state: State, form: str) -> str:
    """The job of a state in one of the :data:`FORMS`.

    Raises:
        InputError: There is no such format, or the framework cannot say what the job says.
    """
    if form not in FORMS:
        raise InputError.single("form", "no such format", form, f"use one of {', '.join(FORMS)}")
    return FORMS[form](job_of(state))


def _shell(job: Job) -> str:
    return f"cat > job.yaml <<'END'\n{job_yaml(job)}END\nclustersim run job.yaml\n"


def _torchtitan(job: Job) -> str:
    text = torchtitan_config(job)
    if schedule_csv(job) is not None:
        rule = "has no name in torchtitan and goes into a CSV file beside the TOML"
        hint = "copy the YAML, then run clustersim export torchtitan job.yaml --out job.toml"
        raise InputError.single("plan.schedule", rule, str(job.plan.schedule), hint)
    return text


def _deepspeed(job: Job) -> str:
    text = deepspeed_config(job)
    if switched_on_in_the_model(job):
        rule = "is switched on in the model, not in DeepSpeed's JSON"
        hint = "copy the YAML, then run clustersim export deepspeed job.yaml, which says how"
        raise InputError.single("plan.recompute", rule, job.plan.recompute, hint)
    return text


FORMS: Mapping[str, Callable[[Job], str]] = {
    "YAML": job_yaml,
    "Command line": _shell,
    "Megatron-LM": megatron_script,
    "torchtitan": _torchtitan,
    "DeepSpeed": _deepspeed,
}
"""What makes a copy of each kind."""


Asked = Mapping[str, Any]


def _state(asked: Asked) -> State:
    state = asked.get("state")
    if not isinstance(state, Mapping):
        raise InputError.single("state", "must be an object of fields")
    return state


def _step(asked: Asked) -> dict[str, Any]:
    return step_answer(_state(asked), with_timeline=asked.get("timeline", True))


_QUESTIONS: Mapping[str, Callable[[Asked], dict[str, Any]]] = {
    "step": _step,
    "fit": lambda asked: fitting_changes(_state(asked)),
    "faster": lambda asked: faster_changes(_state(asked)),
    "copy": lambda asked: {"text": job_copy(_state(asked), str(asked.get("form", "")))},
    "model": lambda asked: {"model": model_of_config(str(asked.get("text", "")))},
}

QUESTIONS = frozenset(_QUESTIONS)
"""Names of what the page may ask."""
SEARCHES = frozenset({"fit", "faster"})
"""Those that simulate many jobs."""


def answered(name: str, asked: Asked) -> bytes:
    """The answer to a question, as JSON."""
    try:
        answer = _QUESTIONS[name](asked)
    except InputError as error:
        answer = {"faults": [fault_data(fault) for fault in error.faults]}
    except RecursionError:
        return too_deep()
    except MemoryError:
        answer = {}  # what it held is free only behind this block
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        answer = {"bug": f"{type(error).__name__}: {error}"}
    if not answer:
        hint = "use fewer microbatches or stages, or clustersim run on a larger machine"
        fault = Fault("", "takes more memory than the studio has for one question", hint=hint)
        answer = {"faults": [fault_data(fault)]}
    return json.dumps(answer, separators=(",", ":"), default=str).encode()


def fault_data(fault: Fault) -> dict[str, str]:
    """A fault as the page shows it beside a control."""
    return {"path": fault.path, "rule": fault.rule, "hint": fault.hint, "text": str(fault)}


def too_deep() -> bytes:
    """The answer to a question whose values are nested deeper than Python follows."""
    fault = Fault("state", "is nested too deeply", hint="write its fields one by one")
    return json.dumps({"faults": [fault_data(fault)]}).encode()


def warm_up() -> None:
    """Load what the first answer would have to wait for."""
    answered("step", {"state": START})
