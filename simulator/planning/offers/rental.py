"""What do all offers together say, and how is it shown?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.exporters.html.answer_tables import AnswerPage, Table, cells, columns
from simulator.planning.offers.choice import (
    DEFAULT_LATE_RISK,
    KG_PER_T,
    KWH_PER_MWH,
    SAFEST,
    Choice,
    choose,
    name_of,
    one_offer_for_all,
    success_probability,
)
from simulator.planning.offers.offer_results import OfferResult, evaluate
from simulator.planning.offers.offers_file import load_offers, offers_file
from simulator.results.fit_probability import DEFAULT_RISK
from simulator.units import DAY_S, chance, format_seconds, percent

if TYPE_CHECKING:
    import pandas as pd


ROW_TEXTS = ("offer",)
_NUMBERS = (
    "GPUs", "step time", "MFU", "fits", "starts after", "done after", "80 % interval",
    "late", "USD", "MWh", "t CO2e",
)  # fmt: skip
_MAY_LACK = ("starts after", "MWh", "t CO2e")
"""Columns that are left out where no row has any."""
LAST_ROW_TEXTS = ("plan",)


def numbers_of(rows: list[OfferResult]) -> tuple[str, ...]:
    """Columns of numbers that any of the rows can fill."""
    has = (
        any(row.start_s for row in rows),
        any(row.energy_kwh is not None for row in rows),
        any(row.co2_kg for row in rows),
    )
    lacking = [name for name, there in zip(_MAY_LACK, has, strict=True) if not there]
    return tuple(name for name in _NUMBERS if name not in lacking)


def row_cells(row: OfferResult, numbers: tuple[str, ...]) -> list[str]:
    """A row of the table: the offer, the numbers that are asked for, and the plan or a reason."""
    if not row.runs:
        return [row.offer, str(row.gpus), *[""] * (len(numbers) - 1), row.reason]
    low, high = (each / DAY_S for each in row.done_interval_s)
    known = {
        "GPUs": str(row.gpus),
        "step time": format_seconds(row.step_time_s),
        "MFU": percent(row.mfu, 0),
        "fits": chance(row.fits_probability),
        "starts after": f"{row.start_s / DAY_S:.1f} d",
        "done after": f"{row.done_s / DAY_S:.1f} d",
        "80 % interval": f"{low:.1f} to {high:.1f} d",
        "late": "" if row.late_probability is None else chance(row.late_probability),
        "USD": "unknown" if row.usd is None else f"{row.usd:,.0f}",
        "MWh": "unknown" if row.energy_kwh is None else f"{row.energy_kwh / KWH_PER_MWH:,.1f}",
        "t CO2e": "unknown" if row.co2_kg is None else f"{row.co2_kg / KG_PER_T:,.1f}",
    }
    return [row.offer, *(known[name] for name in numbers), row.plan]


def answer_lines(choice: Choice) -> list[str]:
    """Each named answer in one line."""
    return [
        f"{name}: {'none' if row is None else name_of(row)}{_why_safest(name, row)}"
        for name, row in choice.answers.items()
    ]


def _why_safest(name: str, row: OfferResult | None) -> str:
    """What the safest is chosen by, which no column shows."""
    if name != SAFEST or row is None:
        return ""
    what = "to fit" if row.late_probability is None else "to fit and to be in time"
    return f" ({chance(success_probability(row))} likely {what})"


@dataclass(frozen=True)
class Rental:
    """Offers side by side, and which to rent.

    Attributes:
        rows: Every workload on every offer with every number of GPUs.
        choices: What to rent, by workload.
        late_risk: Accepted probability of missing a deadline.
    """

    rows: tuple[OfferResult, ...]
    choices: tuple[Choice, ...]
    late_risk: float

    def to_frame(self) -> pd.DataFrame:
        """One row for each workload, offer and number of GPUs; units are in the names."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """Rows, answers and reasons as plain data."""
        return {
            "late_risk": self.late_risk,
            "rows": [asdict(row) for row in self.rows],
            "choices": [
                {
                    "workload": choice.workload,
                    "answers": {
                        name: None if row is None else {"offer": row.offer, "gpus": row.gpus}
                        for name, row in choice.answers.items()
                    },
                    "why": list(choice.sentences),
                }
                for choice in self.choices
            ],
            "one_offer_for_all": self.for_all_text or None,
        }

    @property
    def for_all_text(self) -> str:
        """The one offer for all workloads in a sentence; empty where there is none."""
        found = one_offer_for_all(self.rows, self.late_risk)
        if found is None:
            return ""
        offer, taken = found
        usd = math.fsum(row.usd or 0.0 for row in taken.values())
        sizes = ", ".join(f"{name} on {row.gpus} GPUs" for name, row in taken.items())
        return f"One offer for all: {offer} ({sizes}; {usd:,.0f} USD, each rented by itself)."

    def _repr_html_(self) -> str:
        """What a notebook shows: the table of each workload, and what to rent."""
        from simulator.exporters.html.answer_page import answer_view

        numbers = numbers_of(list(self.rows))
        heads = [*columns(ROW_TEXTS, numbers), *columns(LAST_ROW_TEXTS)]
        tables = [
            Table(
                choice.workload,
                "; ".join(answer_lines(choice)),
                heads,
                [
                    cells(row_cells(row, numbers))
                    for row in self.rows
                    if row.workload == choice.workload
                ],
            )
            for choice in self.choices
        ]
        sentences = [choice.sentences[0] for choice in self.choices]
        return answer_view(AnswerPage("Which offer to rent", sentences, tables))

    def plot(self, path: str | Path) -> Path:
        """Draw when runs are done, against their deadlines, and what they cost."""
        from simulator.plots.offer_intervals import OfferBar, build_offers_figure
        from simulator.plots.style import save

        panels = []
        for choice in self.choices:
            rows = [row for row in self.rows if row.workload == choice.workload and row.runs]
            bars = [
                OfferBar(
                    f"{row.offer}, {row.gpus} GPUs",
                    row.done_s / DAY_S,
                    row.done_interval_s[0] / DAY_S,
                    row.done_interval_s[1] / DAY_S,
                    "price unknown" if row.usd is None else f"{row.usd:,.0f} USD",
                    row is choice.best,
                )
                for row in rows
            ]
            deadline_s = next((row.deadline_s for row in rows), None)
            panels.append((choice.workload, deadline_s and deadline_s / DAY_S, bars))
        save(build_offers_figure("Which offer to rent", panels), path)
        return Path(path)

    def write_html(self, path: str | Path) -> Path:
        """Write one HTML page that needs no network."""
        from simulator.exporters.html.page import write_page

        numbers = numbers_of(list(self.rows))
        context = {
            "title": "Which offer to rent",
            "texts": ROW_TEXTS,
            "numbers": numbers,
            "last_texts": LAST_ROW_TEXTS,
            "workloads": [self._section(choice, numbers) for choice in self.choices],
            "for_all": self.for_all_text,
        }
        write_page(path, "offers.html", context)
        return Path(path)

    def _section(self, choice: Choice, numbers: tuple[str, ...]) -> Mapping[str, Any]:
        rows = [row for row in self.rows if row.workload == choice.workload]
        deadline_s = next((row.deadline_s for row in rows if row.deadline_s), None)
        longest_s = max([row.done_interval_s[1] for row in rows] + [deadline_s or 0.0, 1.0])
        return {
            "name": choice.workload,
            "answers": answer_lines(choice),
            "sentences": choice.sentences,
            "longest_d": longest_s / DAY_S,
            "deadline": None if deadline_s is None else deadline_s / longest_s,
            "rows": [
                {
                    "cells": row_cells(row, numbers),
                    "is_best": row is choice.best,
                    "start": row.done_interval_s[0] / longest_s,
                    "share": (row.done_interval_s[1] - row.done_interval_s[0]) / longest_s,
                }
                for row in rows
            ],
        }


def rent(
    offers: str | Path | Mapping[str, Any],
    *,
    risk: float = DEFAULT_RISK,
    late_risk: float = DEFAULT_LATE_RISK,
    members: int = 200,
    seed: int = 0,
    workers: int = 1,
    table: str | Path | None = None,
    on_row: Callable[[OfferResult, int], None] | None = None,
) -> Rental:
    """Compare offers of GPUs; each workload runs with its fastest plan on each offer.

    Args:
        offers: A file of offers and workloads, or its content as a dictionary.
        risk: Largest accepted probability of running out of memory.
        late_risk: Accepted probability of missing a deadline.
        members: Number of campaigns with failures to simulate.
        seed: Random seed of the failures.
        workers: Number of processes of this machine that search for plans.
        table: File that the caller will write the table to. Finished rows are kept in a journal
            beside it, from which the same comparison continues.
        on_row: Called with each new row, and how many rows there will be.

    Raises:
        InputError: The file is wrong, or the journal belongs to other offers.
    """
    file = None if isinstance(offers, Mapping) else offers_file(Path(offers))
    rows = evaluate(
        load_offers(offers), file, risk=risk, members=members, seed=seed, workers=workers,
        table=None if table is None else Path(table), on_row=on_row,
    )  # fmt: skip
    return Rental(tuple(rows), tuple(choose(rows, late_risk)), late_risk)
