"""What did a real run of a job measure, and how far is the prediction from it?

A measured run is plain data: it is kept as JSON, and read where there is no torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from simulator.described.job import Job
from simulator.validate.torch_run.predict import WAITING, Predicted

SCHEMA_VERSION = 1

_KEPT = ("weights", "optimizer_states")

REST = "gradients, activations and the rest"


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
        memory_bytes: Peak and what is kept, by name; empty if not counted [B].
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


@dataclass(frozen=True)
class Pair:
    """One number, measured and predicted.

    Attributes:
        stage: Pipeline stage whose rank it is of; -1 for the whole job.
        name: Phase, or owner of memory.
        measured: In seconds or bytes; None if not measured.
        predicted: The same from the simulator.
    """

    stage: int
    name: str
    measured: float | None
    predicted: float

    @property
    def error_pct(self) -> float | None:
        """Signed error of the prediction [%]; positive where it is too large."""
        if not self.measured:
            return None
        return 100 * (self.predicted / self.measured - 1)


@dataclass(frozen=True)
class TorchReport:
    """One job, measured and predicted.

    Attributes:
        job: As torch ran it.
        measured: The run.
        predicted: The simulation.
        notes: What the reader must know.
    """

    job: Job
    measured: Measured
    predicted: Predicted
    notes: Sequence[str] = ()

    @property
    def step(self) -> Pair:
        """The step time [s]."""
        return Pair(-1, "step", self.measured.median_s, self.predicted.step_s)

    @property
    def phases(self) -> list[Pair]:
        """Time of each phase of each stage, the mean over its ranks [s]."""
        return list(self._phases())

    @property
    def memory(self) -> list[Pair]:
        """Peak memory of each stage and who holds it, the most of its ranks [B]."""
        return list(self._memory())

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, spans of the profiled step left out."""
        step = self.step
        ranks = [
            {key: value for key, value in rank.items() if key != "spans"}
            for rank in self.measured.to_dict()["ranks"]
        ]
        return {
            "schema_version": SCHEMA_VERSION,
            "job": dict(self.job.document),
            "title": self.job.title,
            "environment": dict(self.measured.environment),
            "step": _pair_to_dict(step),
            "step_s": list(self.measured.step_s),
            "spread": self.measured.spread,
            "phases_s": [_pair_to_dict(pair) for pair in self.phases],
            "memory_bytes": [_pair_to_dict(pair) for pair in self.memory],
            "expert_loads": list(self.measured.expert_loads),
            "layer_sleep_s": self.measured.layer_sleep_s,
            "ranks": ranks,
            "notes": list(self.notes),
        }

    def _by_stage(self) -> Mapping[int, list[RankMeasured]]:
        stages: dict[int, list[RankMeasured]] = {}
        for rank in self.measured.ranks:
            stages.setdefault(rank.stage, []).append(rank)
        return dict(sorted(stages.items()))

    def _phases(self) -> Iterator[Pair]:
        for stage, ranks in self._by_stage().items():
            predicted = self.predicted.phases_s[stage]
            means = {
                name: statistics.fmean(rank.phases_s.get(name, 0.0) for rank in ranks)
                for name in predicted
                if name != WAITING
            }
            for name, measured in means.items():
                yield Pair(stage, name, measured, predicted[name])
            if WAITING in predicted:
                left = self.measured.median_s - math.fsum(means.values())
                yield Pair(stage, WAITING, max(0.0, left), predicted[WAITING])

    def _memory(self) -> Iterator[Pair]:
        for stage, ranks in self._by_stage().items():
            predicted = self.predicted.memory_bytes[stage]
            most = {
                name: max(rank.memory_bytes[name] for rank in ranks)
                for name in ranks[0].memory_bytes
            }
            if self.measured.layer_sleep_s is not None:
                # Layers that sleep keep no activations, so a peak says nothing.
                yield from (Pair(stage, name, most[name], predicted[name]) for name in _KEPT)
                continue
            for name in ("peak_allocated", "peak_reserved", *_KEPT):
                if name in most or name == "peak_allocated":
                    yield Pair(stage, name, most.get(name), predicted[name])
            if "peak_allocated" in most:
                yield Pair(stage, REST, _rest(most), _rest(predicted))


def _rest(memory: Mapping[str, float]) -> float:
    return memory["peak_allocated"] - math.fsum(memory.get(name, 0.0) for name in _KEPT)


def _pair_to_dict(pair: Pair) -> dict[str, Any]:
    return asdict(pair) | {"error_pct": pair.error_pct}
