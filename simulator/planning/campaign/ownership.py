"""What do the GPUs of a campaign cost: on demand, reserved for a term, or owned?

- **on demand**: GPU time times its price.
- **reserved**: whole terms of all GPUs, whether they work or not.
- **owned**: the part of the yearly cost that falls on the campaign, and its electricity. The
  yearly cost is the annuity that pays price and interest back over the lifetime, and upkeep;
  years in which the GPUs stand idle are paid by those in which they work.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from simulator.described.campaign import Owned
from simulator.described.job import Job
from simulator.planning.campaign.energy import Energy, system_of
from simulator.planning.campaign.training_run import CampaignTime
from simulator.units import DAY_S

YEAR_S = 365.25 * DAY_S
"""A year [s]."""


@dataclass(frozen=True)
class Money:
    """What a campaign costs, by way of paying; None where a price is missing.

    Attributes:
        on_demand_usd: Rented while it runs [USD].
        reserved_usd: Rented for whole terms [USD].
        reserved_idle_share: Share of those terms in which the campaign does not run.
        depreciation_usd: Its part of owned GPUs, without electricity [USD].
        electricity_usd: Its electricity, where GPUs are owned [USD].
        owned_usd: Both [USD].
    """

    on_demand_usd: float | None
    reserved_usd: float | None
    reserved_idle_share: float | None
    depreciation_usd: float | None
    electricity_usd: float | None
    owned_usd: float | None

    @property
    def cheapest(self) -> tuple[str, float] | None:
        """The cheapest way of paying whose prices are known, and its sum [USD]."""
        ways = {
            "on demand": self.on_demand_usd,
            "reserved": self.reserved_usd,
            "owned": self.owned_usd,
        }
        known = [(usd, way) for way, usd in ways.items() if usd is not None]
        return (min(known)[1], min(known)[0]) if known else None


def money(job: Job, time: CampaignTime, energy: Energy) -> Money:
    """What a job's campaign costs."""
    system, price = system_of(job), job.campaign.site.electricity_usd_per_j
    on_demand_usd = reserved_usd = idle_share = depreciation_usd = None
    if system.on_demand_usd_per_s is not None:
        on_demand_usd = time.gpu_s * system.on_demand_usd_per_s
    if system.reserved is not None:
        paid_s = ceil(time.wall_s / system.reserved.term_s) * system.reserved.term_s
        reserved_usd = paid_s * time.gpus * system.reserved.gpu_usd_per_s
        idle_share = 1 - time.wall_s / paid_s
    if system.owned is not None:
        depreciation_usd = time.gpu_s * owned_usd_per_s(system.owned)
    electricity_usd = owned_usd = None
    if energy.total_j is not None and price is not None:
        electricity_usd = energy.total_j * price
    if depreciation_usd is not None and electricity_usd is not None:
        owned_usd = depreciation_usd + electricity_usd
    return Money(
        on_demand_usd=on_demand_usd,
        reserved_usd=reserved_usd,
        reserved_idle_share=idle_share,
        depreciation_usd=depreciation_usd,
        electricity_usd=electricity_usd,
        owned_usd=owned_usd,
    )


def annuity(price: float, interest: float, years: float) -> float:
    """Yearly payment that pays a price and its interest back over some years.

    With interest 0 equal parts. Source: present value of an annuity, any textbook of finance.
    """
    if interest == 0:
        return price / years
    present: float = (1 - (1 + interest) ** -years) / interest
    return price / present


def owned_usd_per_s(owned: Owned) -> float:
    """What one owned GPU costs while it is used, without electricity [USD/s]."""
    yearly = annuity(owned.gpu_usd, owned.interest, owned.lifetime_s / YEAR_S)
    return (yearly + owned.upkeep * owned.gpu_usd) / YEAR_S / owned.use
