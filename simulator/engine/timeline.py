"""What ran when?

A columnar table: one numpy array per column, one row per operation *and lane* (a
transfer between two stages has a row on each side). Every metric, plot, trace and
report is a view of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.program.ir import Lane, Operation, Program, Stream

if TYPE_CHECKING:
    import pandas as pd

STREAMS = tuple(Stream)


@dataclass(frozen=True)
class Timeline:
    """Start and end of every operation of a program.

    Attributes:
        program: What was run.
        operation_start_s: Start of each operation, shape (operations,) [s].
        operation_end_s: End of each operation, shape (operations,) [s].
    """

    program: Program
    operation_start_s: NDArray[np.float64]
    operation_end_s: NDArray[np.float64]

    def __repr__(self) -> str:
        return f"Timeline({self.operation_end_s.size} operations in {self.step_time_s:.6g} s)"

    @cached_property
    def step_time_s(self) -> float:
        """When the last operation ends [s]."""
        return float(self.operation_end_s.max(initial=0.0))

    @cached_property
    def operation(self) -> NDArray[np.int64]:
        """Operation id of each row; rows are ordered by class, stream and start."""
        return np.concatenate(
            [np.asarray(self.program.lanes[lane], dtype=np.int64) for lane in self._lanes]
            or [np.empty(0, dtype=np.int64)]
        )

    @cached_property
    def rank_class(self) -> NDArray[np.int64]:
        """Class index of each row."""
        return self._lane_column(lambda lane: lane[0])

    @cached_property
    def stream(self) -> NDArray[np.int64]:
        """Index into :data:`STREAMS` of each row."""
        return self._lane_column(lambda lane: STREAMS.index(lane[1]))

    @cached_property
    def _lanes(self) -> list[Lane]:
        """The lanes in the order of the rows: by class, then by stream."""
        return sorted(self.program.lanes, key=lambda lane: (lane[0], STREAMS.index(lane[1])))

    def _lane_column(self, value: Callable[[Lane], int]) -> NDArray[np.int64]:
        values = [value(lane) for lane in self._lanes]
        counts = [len(self.program.lanes[lane]) for lane in self._lanes]
        return np.repeat(np.asarray(values, dtype=np.int64), counts)

    @property
    def start_s(self) -> NDArray[np.float64]:
        """Start of each row [s]."""
        return self.operation_start_s[self.operation]

    @property
    def end_s(self) -> NDArray[np.float64]:
        """End of each row [s]."""
        return self.operation_end_s[self.operation]

    @property
    def operations(self) -> list[Operation]:
        """The operation of each row."""
        return [self.program.operations[i] for i in self.operation]

    def to_frame(self) -> pd.DataFrame:
        """The table as pandas shows it, one row per operation and lane.

        Columns: rank_class, stage, stream, kind, category, microbatch, chunk,
        first_layer, end_layer, start_s, end_s, flop, bytes.
        """
        import pandas as pd

        stages = np.asarray([c.stage for c in self.program.classes])
        ops = self.operations
        return pd.DataFrame(
            {
                "rank_class": self.rank_class,
                "stage": stages[self.rank_class],
                "stream": [STREAMS[i].value for i in self.stream],
                "kind": [op.kind.value for op in ops],
                "category": [op.category.value for op in ops],
                "microbatch": [op.microbatch for op in ops],
                "chunk": [op.chunk for op in ops],
                "first_layer": [op.layers[0] for op in ops],
                "end_layer": [op.layers[1] for op in ops],
                "start_s": self.start_s,
                "end_s": self.end_s,
                "flop": [op.work.flop for op in ops],
                "bytes": [op.work.num_bytes for op in ops],
            }
        )
