"""How far off is the time of a product beside a collective, on the half of pairs not fitted?

Mist measured both alone and together, on V100 and A100, on NVLink and between nodes. What each
takes alone is a line through its rows of one kind; together, the product goes on with what the
collective leaves of the device (:mod:`simulator.cost.interference`).

Rows with copies to or from the host are left out: those of the V100s come from pageable memory and
block what they lie beside.
"""

from __future__ import annotations

import csv
import gzip
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar

from simulator.cost.collectives.collective_time import reachable_link_share
from simulator.cost.interference import rate_beside, taken_share
from simulator.described.cluster.common import shipped_common
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.network import Fabric
from simulator.described.load import load_profile

PROFILES: Mapping[str, str] = {
    "a100-sxm4-40gb": "a100-sxm-40gb",
    "v100-sxm2-16gb": "dgx1-v100-32gb",
}
"""Profile of each GPU of the table."""

NICS: Mapping[str, int] = {"a100-sxm4-40gb": 4, "v100-sxm2-16gb": 1}
"""NICs per node of what was measured: AWS P4d and P3."""

_Row = Mapping[str, str]
_PARTS = ("gemm_n", "collective_mb", "h2d_mb", "d2h_mb")


@dataclass(frozen=True, slots=True)
class Pair:
    """A product and a collective, measured together.

    Attributes:
        id: Name of the row.
        gpu: GPU as the table spells it.
        inside: Whether the collective stays on the links of a node.
        product_s, collective_s: What each takes alone [s].
        together_s: What both take [s].
        sm_count: Multiprocessors that the collective holds.
        link_bytes_per_s: What passes its links [B/s].
    """

    id: str
    gpu: str
    inside: bool
    product_s: float
    collective_s: float
    together_s: float
    sm_count: float
    link_bytes_per_s: float

    def predicted_s(self, accesses: float) -> float:
        """Both together, at so many accesses of memory per byte on the links [s]."""
        profile = load_profile(PROFILES[self.gpu])
        common = profile.common.model_copy(update={"memory_accesses_per_link_byte": accesses})
        taken = taken_share(self.sm_count, self.link_bytes_per_s, profile.device, common)
        rate = rate_beside(taken, common)
        done_s = self.collective_s * rate
        if done_s >= self.product_s:
            return max(self.collective_s, self.product_s / rate)
        return self.collective_s + self.product_s - done_s

    def error(self, accesses: float) -> float:
        """Predicted over measured time less 1."""
        return self.predicted_s(accesses) / self.together_s - 1


def pairs(path: Path) -> list[Pair]:
    """All products beside a collective, without copies, of a table."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    product_s = _alone(rows, "gemm_n", lambda row: (row["gpu"], row["nodes"]))
    collective_s = _alone(rows, "collective_mb", _group)
    return [
        _pair(row, product_s(row), collective_s(row))
        for row in rows
        if _present(row) == ("gemm_n", "collective_mb")
    ]


def _present(row: _Row) -> tuple[str, ...]:
    return tuple(part for part in _PARTS if float(row[part]))


def _group(row: _Row) -> tuple[str, ...]:
    return tuple(row[name] for name in ("gpu", "nodes", "intra_group", "inter_group"))


def _alone(
    rows: Iterable[_Row], part: str, key: Callable[[_Row], tuple[str, ...]]
) -> Callable[[_Row], float]:
    """Seconds of a part alone, by the line through all rows of one kind that have no other."""
    points: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for row in rows:
        if _present(row) == (part,):
            point = float(row[part]), float(row["latency_ms"]) * 1e-3
            points.setdefault(key(row), []).append(point)
    lines = {}
    for kind, found in points.items():
        size, seconds = np.array(found).T
        design = np.stack([np.ones_like(size), size], axis=1) / seconds[:, None]
        lines[kind] = np.linalg.lstsq(design, np.ones_like(seconds), rcond=None)[0]

    def seconds_of(row: _Row) -> float:
        fixed, slope = lines[key(row)]
        return float(max(fixed, 0.0) + slope * float(row[part]))

    return seconds_of


def _pair(row: _Row, product_s: float, collective_s: float) -> Pair:
    profile, inside = load_profile(PROFILES[row["gpu"]]), row["nodes"] == "1"
    ranks = int(row["intra_group"]) * int(row["inter_group"])
    moved_bytes = float(row["collective_mb"]) * 1e6 * (ranks - 1) / ranks
    held = _sm_count(row, profile, inside)
    rate = moved_bytes / collective_s
    together_s = float(row["latency_ms"]) * 1e-3
    return Pair(row["id"], row["gpu"], inside, product_s, collective_s, together_s, held, rate)


def _sm_count(row: _Row, profile: HardwareProfile, inside: bool) -> float:
    network = profile.network
    if inside:
        share = reachable_link_share(network.scale_up, int(row["intra_group"]))
        return network.scale_up.sm_count * share
    measured: Fabric = network.fabric.model_copy(update={"nics_per_node": NICS[row["gpu"]]})
    return network.model_copy(update={"fabric": measured}).fabric_sm_count


def halves(all_pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """The half that is fitted, rows of even numbers, and the other."""
    is_even = [int(pair.id.rpartition("-")[2]) % 2 == 0 for pair in all_pairs]
    fitted = [pair for pair, even in zip(all_pairs, is_even, strict=True) if even]
    return fitted, [pair for pair in all_pairs if pair not in fitted]


def fitted_accesses(fitted: Sequence[Pair]) -> float:
    """Accesses of memory per byte that leave the least mean error on pairs inside a node."""
    inside = [pair for pair in fitted if pair.inside]
    found = minimize_scalar(
        lambda accesses: statistics.mean(abs(pair.error(accesses)) for pair in inside),
        bounds=(0.0, 6.0),
        method="bounded",
    )
    return float(found.x)


if __name__ == "__main__":
    half, other = halves(pairs(Path(sys.argv[1])))
    shipped = shipped_common().memory_accesses_per_link_byte
    sys.stdout.write(f"fitted to {len(half)} pairs: {fitted_accesses(half):.3g}\n")
    for name, some in (("fitted", half), ("other", other)):
        for inside in (True, False):
            errors = [abs(pair.error(shipped)) for pair in some if pair.inside is inside]
            place = "inside a node" if inside else "between nodes"
            text = f"{statistics.median(errors):.1%} of {len(errors)}"
            sys.stdout.write(f"{name} half, {place}: median {text}\n")
