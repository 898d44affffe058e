"""What is said of plans beside the fastest: the job's own, and those that may truly be faster.

And what is said where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulator.described.job import Job, options_text
from simulator.errors import InputError
from simulator.units import chance, format_bytes, format_seconds, percent

if TYPE_CHECKING:
    from simulator.planning.changes.helpful_changes import FitSearch
    from simulator.planning.search.search import PlanChoice
    from simulator.results.step import StepResult

_WORTH_MEASURING = 0.25
"""Plans that are at least as likely to be faster are named."""
_MOST_RIVALS = 3


def faster_probabilities(job: Job, choices: Sequence[PlanChoice]) -> list[float | None]:
    """How likely each plan trains faster than the first; None of the first, or if nobody knows.

    Plans of other numbers of GPUs are held against each other by the tokens per second of all.
    """
    from simulator.results.ratio_error import compared_step, gain_error

    jobs = [job.replace(each.changes) for each in choices]
    pairs = [*zip(jobs, choices, strict=True)]
    steps = [compared_step(own, each.step_time_s, each.breakdown_s) for own, each in pairs]
    rates = [own.batch.global_batch / each.step_time_s for own, each in pairs]
    first = steps[0] if steps else None
    return [
        gain_error(first, step, rate / rates[0] - 1).faster_probability
        if first and step and number
        else None
        for number, (step, rate) in enumerate(zip(steps, rates, strict=True))
    ]


def rivals_text(odds: Sequence[float | None]) -> str:
    """A sentence on the plans that are worth a measurement beside the first; empty without any."""
    known = [(likely or 0.0, number) for number, likely in enumerate(odds, start=1)]
    rivals = [each for each in known if each[0] >= _WORTH_MEASURING]
    likeliest = sorted(rivals, key=lambda each: (-each[0], each[1]))[:_MOST_RIVALS]
    if not likeliest:
        return ""
    (first_odds, first), *others = likeliest
    named = [f"plan {first} ({percent(first_odds, 0)} likely to be faster)"]
    named += [f"plan {number} ({percent(likely, 0)})" for likely, number in others]
    texts = " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
    return f"Worth measuring beside plan 1: {texts}."


def how_it_shards(job: Job, changes: Mapping[str, Any]) -> list[str]:
    """A sentence on the wrapper that a recommended plan needs, where its ZeRO stage needs one."""
    from simulator.exporters.megatron import sharded_by_megatron_fsdp

    sentence = sharded_by_megatron_fsdp(job.replace(changes))
    return [sentence] if sentence else []


def own_plan_text(own: StepResult, best: PlanChoice, risk: float, name: str) -> str:
    """How the step of a job's own plan compares with that of the best, which has a name."""
    behind = longer(own.step_time_s - best.step_time_s)
    text = f"The job's own plan takes {format_seconds(own.step_time_s)}, {behind} than {name}"
    odds = own.fits_probability
    if odds >= 1 - risk:
        return f"{text}."
    return f"{text}, and is {percent(odds, 0)} likely to fit; {percent(1 - risk, 0)} are asked."


def longer(seconds: float) -> str:
    """A difference of two times: ``1.15 s longer``."""
    return f"{format_seconds(abs(seconds))} {'longer' if seconds >= 0 else 'less'}"


def no_valid_plan_text(job: Job, vary: Mapping[str, Sequence[Any]]) -> str:
    """That no combination is a valid plan, with the rules that the first asked values break."""
    first = {path: values[0] for path, values in vary.items()}
    text = "No combination is a valid plan."
    try:
        job.replace(first)
    except InputError as error:
        # A rule that names an asked field says most; others may be kept by other degrees.
        own = [fault for fault in error.faults if fault.path in first] or error.faults
        faults = "".join(f"\n  {fault}" for fault in own)
        return f"{text} Rules that {options_text(first)} breaks:{faults}"
    return text


def nothing_fits_text(
    job: Job, smallest: Mapping[str, Any], nearest: FitSearch | None, risk: float
) -> str:
    """Why no valid plan fits, and what would.

    Args:
        job: The job that was searched.
        smallest: The plan that needs least memory.
        nearest: The nearest change that would make it fit.
        risk: Largest accepted probability of running out of memory.
    """
    from simulator.results.simulation import run_step

    odds = run_step(job.replace(smallest), "replay").fits_probability
    text = (
        f"No plan fits. The plan that needs the least memory is {chance(odds)} likely to fit, "
        f"and {percent(1 - risk, 0)} are asked: {options_text(smallest)}"
    )
    if nearest is None or nearest.nearest is None:
        return f"{text}\nNone of its simulated changes fits either."
    way_out = nearest.nearest
    options = options_text({**smallest, **way_out.changes})
    return (
        f"{text}\nThe nearest change that fits: {options}\n"
        f"With it, a step takes {format_seconds(way_out.step_time_s)} "
        f"and the fullest GPU holds {format_bytes(way_out.peak_device_bytes)}."
    )
