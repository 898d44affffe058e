"""Which changes make the job of the page fit, or faster?

Both are searches of :mod:`simulator.planning.changes`; here they become rows with a button.
"""

from __future__ import annotations

from typing import Any

from simulator.planning.changes.advice import way_out
from simulator.planning.changes.faster import what_ifs
from simulator.planning.changes.fitting import nearest_fit
from simulator.results.simulation import run_step
from simulator.results.verdict import LEAST_SHARE, WhatIf, verdict
from simulator.studio.controls import State, job_of
from simulator.units import format_bytes, format_seconds

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
