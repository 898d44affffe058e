"""Which offer to rent, and why this one?

Three answers for each workload, and a sentence for each offer that was not taken. In time is a run
that is late with a probability of no more than is accepted; where there is no deadline, every run
is in time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from simulator.planning.offers.offer_results import OfferResult
from simulator.units import DAY_S, chance, counted, percent

KWH_PER_MWH = KG_PER_T = 1000.0

DEFAULT_LATE_RISK = 0.1
"""Probability of missing the deadline that is accepted. Then the 80 % interval ends before it."""
CHEAPEST, SAFEST, FEWEST = "cheapest", "safest", "fewest GPUs for the deadline"

_ALIKE = 0.01
"""Probabilities, and shares of money, that differ by less are called the same."""
_WORTH_SAYING = 0.02
"""Shares of a step that are said."""


@dataclass(frozen=True)
class Choice:
    """What to rent for one workload.

    Attributes:
        answers: The offer by the question it answers; None where no offer does.
        best: The one that is recommended: the cheapest in time, or without prices the one with the
            fewest GPUs in time; None where none is in time.
        sentences: Why this one, and why not the others.
    """

    workload: str
    answers: dict[str, OfferResult | None]
    best: OfferResult | None
    sentences: tuple[str, ...]


def choose(rows: Sequence[OfferResult], late_risk: float = DEFAULT_LATE_RISK) -> list[Choice]:
    """What to rent for each workload, in the order of the rows."""
    names = list(dict.fromkeys(row.workload for row in rows))
    return [_choice([row for row in rows if row.workload == name], late_risk) for name in names]


def _choice(rows: Sequence[OfferResult], late_risk: float) -> Choice:
    running = [row for row in rows if row.runs]
    in_time = [row for row in running if _late(row) <= late_risk]
    priced = [row for row in in_time if row.usd is not None]
    answers: dict[str, OfferResult | None] = {}
    if any(row.deadline_s is not None for row in rows):
        answers[FEWEST] = min(
            in_time, key=lambda row: (row.gpus, _usd(row), row.done_s), default=None
        )
    if any(row.usd is not None for row in running):
        answers[CHEAPEST] = min(priced, key=lambda row: (_usd(row), row.done_s), default=None)
    answers[SAFEST] = min(running, key=_danger, default=None)
    best = min(in_time, key=lambda row: (_usd(row), row.gpus, row.done_s), default=None)
    sentences = tuple(_sentences(rows, best, late_risk))
    return Choice(rows[0].workload, answers, best, sentences)


def success_probability(row: OfferResult) -> float:
    """That a run neither runs out of memory nor is late, the two taken as independent, 0 to 1."""
    return row.fits_probability * (1 - _late(row))


def _danger(row: OfferResult) -> tuple[float, float, float]:
    """What the safest has least of; of those about as safe the cheapest comes first."""
    return -round(success_probability(row) / _ALIKE), _usd(row), row.done_s


def _late(row: OfferResult) -> float:
    return row.late_probability or 0.0


def _usd(row: OfferResult) -> float:
    return inf if row.usd is None else row.usd


def _sentences(
    rows: Sequence[OfferResult], best: OfferResult | None, late_risk: float
) -> Iterator[str]:
    if best is None:
        yield _nothing_suits(rows, late_risk)
        return
    yield _what_it_gives(best)
    alike = [row for row in rows if row.offer == best.offer and row is not best]
    yield from (_other_size(row, best, late_risk) for row in alike)
    for offer in dict.fromkeys(row.offer for row in rows):
        if offer != best.offer:
            yield _other_offer([row for row in rows if row.offer == offer], best, late_risk)
    if best.goodput is None:
        yield "No failures were given, so the days contain none."
    missing = [
        words
        for words, amount in (
            ("energy (power, site.pue)", best.energy_kwh),
            ("CO2 (site.grid)", best.co2_kg),
        )
        if amount is None
    ]
    if missing:
        yield f"Not given, so unknown: {' and '.join(missing)}."
    if any(" + " in row.system for row in rows):
        yield (
            "No run on GPUs of several kinds is published. The interval of such an offer is that "
            "of its kind with the larger error. Its plan is the fastest of those that are fastest "
            "on each kind alone."
        )


def name_of(row: OfferResult) -> str:
    """Offer and number of GPUs."""
    return f"{row.offer} with {counted(row.gpus, 'GPU')}"


def _days_text(seconds: float) -> str:
    """Days as people say them ("12.3 days")."""
    days = seconds / DAY_S
    return f"{days:.0f} days" if days >= 100 else f"{days:.1f} days"


def _what_it_gives(row: OfferResult) -> str:
    low, high = (_days_text(each).removesuffix(" days") for each in row.done_interval_s)
    text = f"{name_of(row)} finishes after {_days_text(row.done_s)} (80 % interval {low} to {high})"
    if row.deadline_s is not None:
        text += (
            f", and misses the deadline of {_days_text(row.deadline_s)} with a probability of "
            f"{chance(_late(row))}"
        )
    if row.usd is not None:
        text += f"; it costs {row.usd:,.0f} USD"
    if row.energy_kwh is not None:
        text += f" and takes {row.energy_kwh / KWH_PER_MWH:,.1f} MWh"
        if row.co2_kg is not None:
            text += f", {row.co2_kg / KG_PER_T:,.1f} t CO2e"
    return text + "."


def _other_size(row: OfferResult, best: OfferResult, late_risk: float) -> str:
    start = f"With {row.gpus} GPUs it"
    if not row.runs:
        return f"{start} cannot run: {row.reason}."
    if _late(row) > late_risk:
        return f"{start} misses the deadline with a probability of {chance(_late(row))}."
    takes = f"{start} would finish after {_days_text(row.done_s)}"
    if row.usd is None or best.usd is None:
        return takes + "."
    return f"{takes} and cost {_more_or_less(row.usd / best.usd - 1)}."


def _other_offer(rows: Sequence[OfferResult], best: OfferResult, late_risk: float) -> str:
    running = [row for row in rows if row.runs]
    if not running:
        return f"{rows[0].offer} cannot run it: {rows[0].reason}."
    in_time = [row for row in running if _late(row) <= late_risk]
    if not in_time:
        nearest = min(running, key=_late)
        when = f" (finishes after {_days_text(nearest.done_s)}"
        start = (
            f", of which {_days_text(nearest.start_s)} until it starts" if nearest.start_s else ""
        )
        return (
            f"{name_of(nearest)} misses the deadline with a probability of "
            f"{chance(_late(nearest))}{when}{start})."
        )
    row = min(in_time, key=lambda each: (_usd(each), each.gpus))
    if row.usd is None or best.usd is None:
        return f"{name_of(row)} finishes after {_days_text(row.done_s)}; {_speed_text(row, best)}."
    cost = _more_or_less(row.usd / best.usd - 1)
    return f"{name_of(row)} costs {cost}: {_price_text(row, best)}{_speed_text(row, best)}."


def _price_text(row: OfferResult, best: OfferResult) -> str:
    if not row.gpu_usd_per_h or not best.gpu_usd_per_h:
        return ""
    text = f"a GPU-hour costs {_more_or_less(row.gpu_usd_per_h / best.gpu_usd_per_h - 1)}, "
    paid_s = row.paid_s or 0.0
    if paid_s > row.wall_s * (1 + _ALIKE):
        text += (
            f"the shortest rental is {_days_text(paid_s)} for a run of {_days_text(row.wall_s)}, "
        )
    return text + "and "


def _speed_text(row: OfferResult, best: OfferResult) -> str:
    ratio = row.tokens_per_s_per_gpu / best.tokens_per_s_per_gpu - 1
    speed = "as many tokens" if abs(ratio) < _ALIKE else f"{_share(ratio)} {_fewer(ratio)} tokens"
    text = f"a GPU trains {speed} per second"
    cause, share = max(_lost(row).items(), key=lambda item: item[1], default=("", 0.0))
    if share >= _WORTH_SAYING:
        text += (
            f" (most that it loses is {cause.replace('_', ' ')}, {100 * share:.0f} % of its step)"
        )
    return text


def _lost(row: OfferResult) -> dict[str, float]:
    """Shares of a step that are no computing, by cause."""
    computing = {"forward", "backward", "optimizer"}
    return {
        cause: seconds / row.step_time_s
        for cause, seconds in row.breakdown_s.items()
        if cause not in computing
    }


def _more_or_less(ratio: float) -> str:
    if abs(ratio) < _ALIKE:
        return "the same"
    return f"{_share(ratio)} {'more' if ratio > 0 else 'less'}"


def _share(ratio: float) -> str:
    return f"{100 * abs(ratio):.0f} %"


def _fewer(ratio: float) -> str:
    return "more" if ratio > 0 else "fewer"


def _nothing_suits(rows: Sequence[OfferResult], late_risk: float) -> str:
    running = [row for row in rows if row.runs]
    if not running:
        return f"No offer can run it. {name_of(rows[0])}: {rows[0].reason}."
    nearest = min(running, key=_late)
    return (
        f"No offer meets the deadline with a probability of {percent(1 - late_risk, 0)}. "
        f"The nearest is {name_of(nearest)}, which finishes after {_days_text(nearest.done_s)}; "
        f"it misses the deadline with a probability of {chance(_late(nearest))}."
    )


def one_offer_for_all(
    rows: Sequence[OfferResult], late_risk: float
) -> tuple[str, dict[str, OfferResult]] | None:
    """The offer on which all workloads are in time for the least money in all, each run by itself.

    Returns:
        Its name, and what to rent of it by workload; None where there is one workload only, or
        where no offer suits all of them with a price.
    """
    workloads = list(dict.fromkeys(row.workload for row in rows))
    if len(workloads) == 1:
        return None
    candidates = {}
    for offer in dict.fromkeys(row.offer for row in rows):
        taken = {
            row.workload: row
            for row in sorted(rows, key=_usd, reverse=True)
            if row.offer == offer and row.runs and row.usd is not None and _late(row) <= late_risk
        }
        if len(taken) == len(workloads):
            candidates[offer] = taken
    totals = {offer: math.fsum(map(_usd, taken.values())) for offer, taken in candidates.items()}
    best = min(totals, key=totals.__getitem__, default=None)
    return None if best is None else (best, candidates[best])
