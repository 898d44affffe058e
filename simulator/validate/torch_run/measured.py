"""What does a real run of a job say, once it is over?

Plain data: it is kept as JSON, and read where there is no torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class TracedSpan(NamedTuple):
    """Something that ran in the profiled step.

    Attributes:
        kind: A phase, or a kind of communication.
        is_communication: Whether it is the latter.
        microbatch: Of which microbatch; -1 where unknown.
        chunk: In which of the rank's model chunks.
        start_s, end_s: Since the step began on this rank [s].
    """

    kind: str
    is_communication: bool
    microbatch: int
    chunk: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class RankMeasured:
    """What one rank saw.

    Attributes:
        rank: Its number.
        stage: Its pipeline stage.
        phases_s: Median time of each phase over the steps [s].
        memory_bytes: Peak and what is kept, by name; empty where nobody counts [B].
        spans: What ran when in one profiled step.
    """

    rank: int
    stage: int
    phases_s: Mapping[str, float]
    memory_bytes: Mapping[str, float]
    spans: Sequence[TracedSpan] = ()


@dataclass(frozen=True)
class Measured:
    """A job trained for real.

    Attributes:
        step_s: Time of every counted step, its slowest rank [s].
        ranks: One entry per rank that was run.
        environment: What it ran on, by name.
        expert_loads: Copies of tokens that each expert got, over all layers; empty where no
            experts were spread over ranks.
        layer_sleep_s: How long each layer slept in forward instead of computing [s]; None
            where layers computed.
    """

    step_s: Sequence[float]
    ranks: Sequence[RankMeasured]
    environment: Mapping[str, str] = field(default_factory=dict)
    expert_loads: Sequence[float] = ()
    layer_sleep_s: float | None = None

    @property
    def median_s(self) -> float:
        """The step time to compare with [s]."""
        return statistics.median(self.step_s)

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles over the median."""
        if len(self.step_s) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.step_s, n=4, method="inclusive")
        return (high - low) / 2 / self.median_s

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Measured:
        """From plain data."""
        ranks = [
            RankMeasured(**{**rank, "spans": [TracedSpan(*span) for span in rank["spans"]]})
            for rank in document["ranks"]
        ]
        return cls(
            document["step_s"],
            ranks,
            document["environment"],
            document.get("expert_loads", ()),
            document.get("layer_sleep_s"),
        )
