"""What is left out of both programs, to see whether it is why they differ?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from simulator.capture.table import BlockOwner, Call, Capture, RankTable
from simulator.described.cluster.hardware import HardwareProfile
from simulator.errors import InputError

Issued = tuple[str, int, float, tuple[tuple[str, int], ...]]
"""Kind, ranks, message [B], and bytes through each port, which say where the group lies."""

NO_LAUNCHES = "launches"
SYSTEMS: Mapping[str, Callable[[HardwareProfile], dict[str, Any]]] = MappingProxyType(
    {
        NO_LAUNCHES: lambda _: {"cluster.kernels.launch": "0 s"},
        "rate over rows": lambda profile: {
            "cluster.kernels.row_efficiency": profile.kernels.memory_efficiency
        },
        "memory traffic": lambda _: {
            "cluster.device.memory_bandwidth": "1e9 GB/s",
            "cluster.kernels.memory_floor": "0 s",
            # What finding strided elements takes, which else hides behind their traffic.
            "cluster.device.boost_clock": "1e9 GHz",
        },
    }
)
"""Systems on which a cause takes no time, or the same on both sides: changes of the profile."""


@dataclass(frozen=True)
class Without:
    """What is left out.

    Attributes:
        systems: Names of :data:`SYSTEMS`.
        operators: Captured operators whose results take no memory, but for gradients; some with
            the shape of the result, such as ``mm 16384x4096``.
        together: Owners that are counted as one.
        exchanges: What is not compared of exchanges: their ``order``, or how many ``buckets``
            they come in.
    """

    systems: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = ()

    def __or__(self, other: Without) -> Without:
        names = [field.name for field in fields(self)]
        return Without(*(getattr(self, name) + getattr(other, name) for name in names))

    @classmethod
    def of(cls, document: Mapping[str, Sequence[str]]) -> Without:
        """As a file says it.

        Raises:
            InputError: Nothing is called so.
        """
        known = {field.name for field in fields(cls)}
        for name in document.keys() - known:
            raise InputError.single(f"reasons.{name}", "leaves nothing out", name)
        return cls(**{name: tuple(values) for name, values in document.items()})

    def changes(self, profile: HardwareProfile) -> dict[str, Any]:
        """Fields of the job that are changed."""
        return {name: v for each in self.systems for name, v in SYSTEMS[each](profile).items()}

    def capture(self, capture: Capture) -> Capture:
        """The captured step without the memory of some results."""
        if not self.operators:
            return capture
        return replace(capture, tables=tuple(map(self._table, capture.tables)))

    def _table(self, table: RankTable) -> RankTable:
        takes = (table.change_bytes > 0) & (table.moment > 0)
        calls = table.call[table.moment[takes] - 1]
        is_named = [self._is_left_out(table.calls[call]) for call in calls]
        passing = np.isin(table.block_owner, (BlockOwner.ACTIVATION, BlockOwner.TEMPORARY))
        left_out = table.block[takes][is_named]
        stays = ~np.isin(table.block, left_out[passing[left_out]])
        return replace(
            table,
            moment=table.moment[stays],
            block=table.block[stays],
            change_bytes=table.change_bytes[stays],
        )

    def _is_left_out(self, call: Call) -> bool:
        name = call.name.split(".")[1]
        shapes = ("x".join(map(str, result.shape)) for result in call.outputs)
        return not {name, *(f"{name} {shape}" for shape in shapes)}.isdisjoint(self.operators)

    def held(self, held: Counter[str]) -> Counter[str]:
        """Memory by owner [B]."""
        one = " and ".join(dict.fromkeys(self.together))
        found: Counter[str] = Counter()
        for name, num_bytes in held.items():
            found[one if name in self.together else name] += num_bytes
        return found

    def issued(self, issued: Mapping[str, Sequence[Issued]]) -> Mapping[str, Sequence[Issued]]:
        """Exchanges of each degree."""
        if "buckets" in self.exchanges:
            sums: Counter[tuple[str, int]] = Counter()
            for kind, ranks, num_bytes, _ in (
                each for all_of in issued.values() for each in all_of
            ):
                sums[kind, ranks] += round(num_bytes)
            return {"all": [(*key, sums[key], ()) for key in sorted(sums)]}
        if "order" in self.exchanges:
            return {degree: sorted(each) for degree, each in issued.items()}
        return issued


NOTHING = Without()
