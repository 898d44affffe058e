"""How do rows of offers read, in a table on screen and on a page?"""

from __future__ import annotations

from simulator.planning.offers.choice import KG_PER_T, KWH_PER_MWH, Choice, name_of
from simulator.planning.offers.offer_results import OfferResult
from simulator.units import DAY_S, format_seconds

TEXTS = ("offer",)
_NUMBERS = ("GPUs", "step time", "MFU", "fits", "done after", "80 % interval", "late", "USD")
_MORE_NUMBERS = ("MWh", "t CO2e")
"""Columns that are left out where no row has any."""
LAST_TEXTS = ("plan",)


def numbers_of(rows: list[OfferResult]) -> tuple[str, ...]:
    """Columns of numbers that any of the rows can fill."""
    has = (any(row.energy_kwh is not None for row in rows), any(row.co2_kg for row in rows))
    return (*_NUMBERS, *(name for name, there in zip(_MORE_NUMBERS, has, strict=True) if there))


def cells(row: OfferResult, numbers: tuple[str, ...]) -> list[str]:
    """A row of the table: the offer, the numbers that are asked for, and the plan or a reason."""
    if not row.runs:
        return [row.offer, str(row.gpus), *[""] * (len(numbers) - 1), row.reason]
    low, high = (each / DAY_S for each in row.done_interval_s)
    known = {
        "GPUs": str(row.gpus),
        "step time": format_seconds(row.step_time_s),
        "MFU": f"{100 * row.mfu:.0f} %",
        "fits": f"{100 * row.fits_probability:.1f} %",
        "done after": f"{row.done_s / DAY_S:.1f} d",
        "80 % interval": f"{low:.1f} to {high:.1f} d",
        "late": "" if row.late_probability is None else f"{100 * row.late_probability:.1f} %",
        "USD": "unknown" if row.usd is None else f"{row.usd:,.0f}",
        "MWh": "unknown" if row.energy_kwh is None else f"{row.energy_kwh / KWH_PER_MWH:,.1f}",
        "t CO2e": "unknown" if row.co2_kg is None else f"{row.co2_kg / KG_PER_T:,.1f}",
    }
    return [row.offer, *(known[name] for name in numbers), row.plan]


def answer_lines(choice: Choice) -> list[str]:
    """Each named answer in one line."""
    return [
        f"{name}: {'none' if row is None else name_of(row)}" for name, row in choice.answers.items()
    ]
