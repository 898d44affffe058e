"""What is the whole training run, and what does the world around it charge and break?

A job is one step. Its campaign says how many tokens are trained on, what the GPUs cost, what
power they draw, how often something fails and how the run is saved. Nothing here has an
invented default: a factor that is left out stays open in the answer. All systems that a
campaign is planned for are listed by the name of their profile, so that the same file serves
a comparison::

    campaign:
      tokens: 15T
      systems:
        h100-sxm-80gb: {on_demand: 3 USD/h, power: {gpu_waiting: 300 W, host: 2 kW}}
      site: {pue: 1.2, grid: 57 g/kWh}
      failures: {gpu: {mtbf: 50000 h}, detection: 1 min, restart: 5 min}
      checkpoint: {storage: 100 GB/s}
      pauses: {evaluation: {every_steps: 1000, duration: 5 min}}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from simulator.described.base import (
    Bytes,
    BytesPerSecond,
    Count,
    CountOrZero,
    Flag,
    Fraction,
    KilogramsPerJoule,
    LongSeconds,
    Spec,
    Usd,
    UsdPerJoule,
    UsdPerSecond,
    Watts,
)

CheckpointMode = Literal["synchronous", "asynchronous", "in-memory"]

_COUNT = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?(?:e\+?[0-9]{1,2})?)\s*([kMBT]?)\s*")
_FACTOR = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def _tokens(given: object) -> int:
    if type(given) is int and given > 0:
        return given
    if type(given) is float and given.is_integer() and given > 0:  # 1.5e+13, as YAML reads it
        return int(given)
    match = _COUNT.fullmatch(given) if isinstance(given, str) else None
    tokens = round(float(match[1]) * _FACTOR[match[2]]) if match else 0
    if tokens < 1:
        raise ValueError("must be a number of tokens such as 300B or 15T")
    return tokens


Tokens = Annotated[
    int,
    BeforeValidator(_tokens),
    PlainSerializer(lambda value: value, return_type=int),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}),
]
_Interest = Annotated[float, Field(ge=0, le=1)]
_Pue = Annotated[float, Field(ge=1, allow_inf_nan=False)]
_Use = Annotated[float, Field(gt=0, le=1)]
_Span = Annotated[LongSeconds, Field(gt=0)]


class Reserved(Spec):
    """GPUs that are taken for a whole term, whether they work or not."""

    gpu_usd_per_s: UsdPerSecond
    """Price of one GPU."""
    term_s: _Span
    """The term; a longer campaign takes the whole number of terms that covers it."""


class Owned(Spec):
    """GPUs that are bought and written off."""

    gpu_usd: Usd
    """Price of one GPU with its share of node, network, storage and building."""
    lifetime_s: _Span
    """Time over which it is written off."""
    interest: _Interest = 0.0
    """Yearly interest on the money; 0 writes it off in equal parts."""
    upkeep: _Interest = 0.0
    """Share of the price that maintenance and staff cost each year."""
    use: _Use = 1.0
    """Share of its lifetime in which somebody trains on it."""


class Power(Spec):
    """What one node draws."""

    gpu_busy_w: Watts | None = None
    """One GPU that computes; by default the device power of its profile, a data sheet's most."""
    gpu_waiting_w: Watts | None = None
    """One GPU that waits for others, for data or for a repair."""
    host_w: Watts | None = None
    """Processors, memory, fans and network cards of one node."""
    network_w: Watts | None = None
    """One node's share of switches and storage."""


class System(Spec):
    """What the GPUs of one hardware profile cost and draw."""

    on_demand_usd_per_s: UsdPerSecond | None = None
    """Price of one GPU, paid while the campaign runs."""
    reserved: Reserved | None = None
    """Price of GPUs taken for a term; by default open."""
    owned: Owned | None = None
    """Price of GPUs that are bought; by default open."""
    power: Power = Power()


class Site(Spec):
    """The building and the grid."""

    pue: _Pue | None = None
    """Energy of the whole building over that of the computers in it."""
    grid_kg_per_j: KilogramsPerJoule | None = None
    """CO2 equivalent of the electricity."""
    electricity_usd_per_j: UsdPerJoule | None = None
    """Price of the electricity; only owned GPUs pay it extra."""


class Failure(Spec):
    """How often one part of the cluster fails."""

    mtbf_s: _Span
    """Mean time between failures of one such part; they come independently."""
    repair_s: LongSeconds = 0.0
    """How long its node is away; with 0 it is back with the restart."""


class Preemption(Spec):
    """How often a spot node is taken away."""

    mtbf_s: _Span
    """Mean time until one node is taken away."""
    away_s: LongSeconds
    """How long it takes to get another."""
    notice_s: LongSeconds = 0.0
    """Warning before it goes; a checkpoint that is done by then loses nothing."""


class Failures(Spec):
    """What fails, and what happens then."""

    node: Failure | None = None
    """One host, with what is not said of its parts."""
    gpu: Failure | None = None
    """One GPU; its node goes with it."""
    link: Failure | None = None
    """One network card with its cable and switch port."""
    preemption: Preemption | None = None
    """Spot nodes that are taken away."""
    detection_s: LongSeconds
    """Until somebody or something notices that the job stands."""
    restart_s: LongSeconds
    """Until all processes run again, without reading the checkpoint."""
    warm_up_s: LongSeconds = 0.0
    """Time that slow first steps lose after a restart."""
    spare_nodes: CountOrZero = 0
    """Nodes that wait to replace a broken one."""
    elastic: Flag = False
    """Whether the job goes on with fewer data-parallel ranks while nodes are missing."""

    @model_validator(mode="after")
    def _something_fails(self) -> Self:
        if not (self.node or self.gpu or self.link or self.preemption):
            raise ValueError(
                "needs at least one cause of failure; give the mtbf of node, gpu, "
                "link or preemption"
            )
        return self


class Checkpoint(Spec):
    """How the run is saved."""

    mode: CheckpointMode = "synchronous"
    """Training stands while it is written; or goes on once each GPU has copied its share to
    its host; or the share is copied to another node's memory and nothing is written."""
    storage_bytes_per_s: BytesPerSecond | None = None
    """Rate at which the whole cluster writes to storage."""
    read_bytes_per_s: BytesPerSecond | None = None
    """Rate at which it reads; by default as it writes."""
    size_bytes: Bytes | None = None
    """One checkpoint; by default weights, master weights and optimizer states."""
    interval_s: Annotated[LongSeconds, Field(gt=0)] | None = None
    """Training between two of them; by default the best of those that were simulated."""
    interference: Fraction = 0.0
    """Share by which training slows while one is written beside it."""

    @model_validator(mode="after")
    def _fields_suit_the_mode(self) -> Self:
        in_memory = self.mode == "in-memory"
        if not in_memory and not self.storage_bytes_per_s:
            raise ValueError("needs the bandwidth of storage; give storage, such as 100 GB/s")
        if in_memory and (self.storage_bytes_per_s or self.read_bytes_per_s):
            raise ValueError("an in-memory checkpoint uses no storage; remove storage and read")
        if self.mode == "synchronous" and self.interference:
            raise ValueError(
                "synchronous checkpoints do not interfere with training; remove interference"
            )
        return self


class Pause(Spec):
    """Training stands again and again: for an evaluation, or for data that are late."""

    every_steps: Count
    """Steps between two of them."""
    duration_s: _Span
    """How long one takes."""


class Campaign(Spec):
    """A whole training run."""

    tokens: Tokens | None = None
    """Tokens to train on, such as 15T."""
    systems: Mapping[str, System] = Field(default_factory=dict)
    """Prices and power by the name of the hardware profile."""
    site: Site = Site()
    failures: Failures | None = None
    """By default nothing fails, and the goodput stays open."""
    checkpoint: Checkpoint | None = None
    """By default none is written."""
    pauses: Mapping[str, Pause] = Field(default_factory=dict)
    """What training stands for at regular steps, by any name; its GPUs count as waiting."""
    goodput: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the time that goes into steps that count, where it is known."""

    @model_validator(mode="after")
    def _goodput_is_given_or_simulated(self) -> Self:
        causes = {"failures": self.failures is not None, "pauses": bool(self.pauses)}
        for name, is_given in causes.items():
            if self.goodput is not None and is_given:
                raise ValueError(
                    f"has both goodput and {name}; remove goodput, which follows from the {name}"
                )
        return self
