"""How far is the prediction of a job from what torch measured?"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.described.job import Job
from simulator.validate.torch_run.measured import Measured, RankMeasured
from simulator.validate.torch_run.predict import WAITING, Predicted

SCHEMA_VERSION = 1
_KEPT = ("weights", "optimizer_states")
REST = "gradients, activations and the rest"


@dataclass(frozen=True)
class Pair:
    """One number, measured and predicted.

    Attributes:
        stage: Pipeline stage whose rank it is of; -1 for the whole job.
        name: Phase, or owner of memory.
        measured: In seconds or bytes; None where nobody measured it.
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
                left = self.measured.median_s - sum(means.values())
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
    return memory["peak_allocated"] - sum(memory.get(name, 0.0) for name in _KEPT)


def _pair_to_dict(pair: Pair) -> dict[str, Any]:
    return {
        "stage": pair.stage,
        "name": pair.name,
        "measured": pair.measured,
        "predicted": pair.predicted,
        "error_pct": pair.error_pct,
    }
