"""What did simulating changes of a job give, ready to be shown?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LEAST_SHARE = 0.0005
"""A smaller share of a step reads as 0.0 %: a change that gains it is no advice."""


@dataclass(frozen=True)
class WhatIf:
    """One change of a job and what simulating it gave.

    Attributes:
        words: What is changed, such as ``raising microbatches from 8 to 16``.
        changes: New values by dotted path, ready for :meth:`Job.replace`.
        gain: Share by which it trains more tokens per second; negative where fewer.
        step_time_s: Step of the changed job, without contention [s].
        peak_device_bytes: What its fullest GPU holds [B].
        fits: Whether that is within the device's memory.
    """

    words: str
    changes: Mapping[str, object]
    gain: float
    step_time_s: float
    peak_device_bytes: float
    fits: bool


@dataclass(frozen=True)
class Influence:
    """How much one number of the hardware profile decides.

    Attributes:
        path: The number, as the profile's file writes it.
        slower_share: How much longer the step is where the number is a tenth worse.
        kind: Where the number comes from, such as ``fitted``.
        reference: Document, table or measurement.
    """

    path: str
    slower_share: float
    kind: str
    reference: str


@dataclass(frozen=True)
class Advice:
    """What a person asks after the numbers of a step.

    Attributes:
        verdict: One sentence: what binds the step, what it loses, what would help.
        misfit: Why the job does not fit and what would; empty where it fits.
        what_ifs: Single changes that make a difference, the largest gain first.
        influences: Numbers of the profile that the step rests on, the weightiest first.
    """

    verdict: str
    misfit: str = ""
    what_ifs: tuple[WhatIf, ...] = ()
    influences: tuple[Influence, ...] = ()
