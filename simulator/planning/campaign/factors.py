"""Which factor of a campaign's answer comes from where?

One line per factor, in the order in which they are multiplied: its amount, and what it was
made from. A factor that nobody gave has no amount, and its line says which field to set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.planning.campaign.capacity import Capacity
from simulator.planning.campaign.training_run import CampaignTime, system_of
from simulator.units import (
    DAY_S,
    HOUR_S,
    J_PER_KWH,
    format_count,
    format_quantity,
    format_seconds,
    percent,
    significant,
)

_FEW = 10.0
"""Below so many of a unit, its fractions are shown."""


@dataclass(frozen=True)
class Factor:
    """One line of the answer.

    Attributes:
        amount: In ``unit``; None where it was not given or cannot be known.
        unit: For example ``GPU-h``.
        origin: What it was made from, or which field to set.
    """

    name: str
    amount: float | None
    unit: str
    origin: str


def factors(found: Capacity) -> tuple[Factor, ...]:
    """Every factor of a campaign, in the order of the calculation."""
    return (*_time(found), *_money(found), *_energy(found))


def _time(found: Capacity) -> Iterator[Factor]:
    time, batch = found.time, found.job.batch
    yield Factor("tokens", time.tokens, "tokens", "campaign.tokens")
    origin = f"{batch.global_batch} sequences of {batch.seq_len}"
    yield Factor("tokens per step", time.tokens_per_step, "tokens", origin)
    yield Factor("steps", time.steps, "steps", "tokens / tokens per step, rounded up")
    yield Factor("step time", time.step_time_s, "s", "simulated")
    yield Factor("without failures", time.work_s / DAY_S, "d", "steps x step time")
    for name, pauses_s in time.pauses_s.items():
        pause = found.job.campaign.pauses[name]
        origin = f"{format_seconds(pause.duration_s)} every {pause.every_steps:,} steps"
        yield Factor(f"pauses, {name}", pauses_s / DAY_S, "d", origin)
    share = time.goodput_share
    yield Factor("goodput", share, "", _goodput_origin(time))
    formula = "without failures / goodput"
    if share is None:
        formula = "without failures" + " + pauses" * bool(time.pauses_s) + "; goodput taken as 1"
    yield Factor("duration", time.wall_s / DAY_S, "d", formula)
    origin = "80 % prediction interval: error of the step"
    origin += " and failures" if time.goodput is not None else ""
    for name, wall_s in zip(("at least", "at most"), time.ends.interval_s, strict=True):
        yield Factor(f"duration, {name}", wall_s / DAY_S, "d", origin)
    if time.goodput is not None:
        low, high = (time.goodput.wall_percentiles_s[p] / DAY_S for p in (5, 95))
        yield Factor("duration, 5th percentile", low, "d", "failures alone, simulated campaigns")
        yield Factor("duration, 95th percentile", high, "d", "failures alone, simulated campaigns")
    yield Factor("GPU-hours", time.gpu_s / HOUR_S, "GPU-h", f"duration x {time.gpus} GPUs")


def _goodput_origin(time: CampaignTime) -> str:
    found = time.goodput
    if found is not None:
        return (
            f"{found.members} simulated campaigns, seed {found.seed}; a failure every "
            f"{format_seconds(found.mtbf_s)}, a checkpoint every {format_seconds(found.interval_s)}"
        )
    if time.goodput_share is not None:
        return "campaign.goodput"
    return _set("goodput") + ", or campaign.failures and campaign.checkpoint"


def _money(found: Capacity) -> Iterator[Factor]:
    spent, system = found.money, system_of(found.job)
    name = f"systems.{found.job.cluster.profile.name}"
    price = system.on_demand_usd_per_s
    origin = _set(f"{name}.on_demand", "USD/h")
    if price is not None:
        origin = f"GPU-hours x {format_quantity(price, 'usd_per_s')}"
    yield Factor("cost, on demand", spent.on_demand_usd, "USD", origin)
    if system.reserved is not None:
        term = format_seconds(system.reserved.term_s)
        rate = format_quantity(system.reserved.gpu_usd_per_s, "usd_per_s")
        idle = percent(spent.reserved_idle_share or 0.0, 0)
        origin = f"whole terms of {term} x GPUs x {rate}; idle {idle}"
        yield Factor("cost, reserved", spent.reserved_usd, "USD", origin)
    if system.owned is not None:
        owned = system.owned
        origin = (
            f"{format_quantity(owned.gpu_usd, 'usd')} per GPU over "
            f"{format_seconds(owned.lifetime_s)}, interest {percent(owned.interest)}, upkeep "
            f"{percent(owned.upkeep)} a year, in use {percent(owned.use, 0)}"
        )
        yield Factor("cost, owned: depreciation", spent.depreciation_usd, "USD", origin)
        tariff = found.job.campaign.site.electricity_usd_per_j
        origin = "energy x " + ("price" if tariff is None else format_quantity(tariff, "usd_per_j"))
        if spent.electricity_usd is None:
            origin = _set("site.electricity", "USD/kWh") if tariff is None else "energy is unknown"
        yield Factor("cost, owned: electricity", spent.electricity_usd, "USD", origin)
        yield Factor("cost, owned", spent.owned_usd, "USD", "depreciation + electricity")


def _energy(found: Capacity) -> Iterator[Factor]:
    drawn, site, time = found.energy, found.job.campaign.site, found.time
    power = system_of(found.job).power
    name = f"systems.{found.job.cluster.profile.name}.power"
    yield Factor("GPU busy share", time.busy_share, "", "of a step, simulated")
    is_given = power.gpu_busy_w is not None
    busy_w = power.gpu_busy_w if is_given else found.job.cluster.profile.device.allowed_power_w
    origin_of_power = (
        f"campaign.{name}.gpu_busy" if is_given else "device power of the profile, an upper bound"
    )
    rows = (
        ("energy, GPUs busy", drawn.gpu_busy_j, busy_w, origin_of_power, "gpu_busy"),
        (
            "energy, GPUs waiting",
            drawn.gpu_waiting_j,
            power.gpu_waiting_w,
            "each GPU",
            "gpu_waiting",
        ),
        ("energy, hosts", drawn.host_j, power.host_w, "each node", "host"),
        ("energy, network and storage", drawn.network_j, power.network_w, "each node", "network"),
    )
    for label, joule, watt, what, field in rows:
        origin = _set(f"{name}.{field}", "W")
        if watt is not None:
            origin = f"{format_quantity(watt, 'w')}, {what}"
        yield Factor(label, _kwh(joule), "kWh", origin)
    origin = _set("site.pue") if site.pue is None else f"PUE {site.pue:g}"
    if drawn.building_j is None and site.pue is not None:
        origin += "; a power above is unknown"
    yield Factor("energy, cooling and building", _kwh(drawn.building_j), "kWh", origin)
    yield Factor("energy", _kwh(drawn.total_j), "kWh", "sum of the five above")
    grid = site.grid_kg_per_j
    origin = _set("site.grid", "g/kWh")
    if grid is not None:
        origin = f"energy x {format_quantity(grid, 'kg_per_j')}"
    tonnes = None if drawn.co2_kg is None else drawn.co2_kg / 1000
    yield Factor("CO2 equivalent", tonnes, "t", origin)


def _set(field: str, unit: str = "") -> str:
    """How to give a missing number; ``unit`` is what to write behind it."""
    assignment = f"campaign.{field}=…"
    return "not given: --set " + (f"'{assignment} {unit}'" if unit else assignment)


def _kwh(joule: float | None) -> float | None:
    return None if joule is None else joule / J_PER_KWH


def factor_text(factor: Factor) -> str:
    """The amount as people read it."""
    amount, unit = factor.amount, factor.unit
    if amount is None:
        return "unknown"
    if unit == "":
        return percent(amount)
    if unit == "s":
        return format_seconds(amount)
    if unit in ("tokens", "steps"):
        return f"{format_count(amount)} {unit}"
    return f"{_few(amount, unit)} {unit}"


def _few(amount: float, unit: str) -> str:
    """Whole units; of a few, or of days, fractions too."""
    if 0.0 < amount < (1.0 if unit == "d" else _FEW):
        return significant(amount)
    return f"{amount:.2f}" if unit == "d" else f"{amount:,.0f}"
