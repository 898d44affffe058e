"""When do many variants of one step end, that differ in how long operations take?

The longest path of :mod:`simulator.engine.replay`, over arrays: one order of the operations, and
for each a duration per pipeline and sample. A pipeline is a set of ranks, one or more at each
stage, that run every pass together. Pipelines do the same operations with durations of their own
and wait for each other only in operations whose scope joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.engine.dependencies import deadlock_error, dependencies
from simulator.program.ir import Program, Scope

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

Durations = Callable[[int], Floats]
"""How long an operation takes, by its index [s]: an array of shape (pipelines, samples), or one
that broadcasts to it."""


@dataclass(frozen=True)
class ReplayOrder:
    """Operations in an order in which all that one waits for comes before it.

    Attributes:
        operations: Their indices.
        waits_for: What each waits for, in that order.
        lets_go: Whose ends nobody waits for any more once it is done, in that order.
    """

    operations: tuple[int, ...]
    waits_for: tuple[tuple[int, ...], ...]
    lets_go: tuple[tuple[int, ...], ...]


def replay_order(program: Program) -> ReplayOrder:
    """The order in which a program's operations are replayed.

    Raises:
        DeadlockError: Operations wait for each other in a circle.
    """
    counts, followers = dependencies(program)
    before: list[list[int]] = [[] for _ in counts]
    ready = [index for index, count in enumerate(counts) if not count]
    order = []
    while ready:
        index = ready.pop()
        order.append(index)
        for follower in followers[index]:
            before[follower].append(index)
            counts[follower] -= 1
            if not counts[follower]:
                ready.append(follower)
    if len(order) < len(counts):
        raise deadlock_error(program, [index for index, count in enumerate(counts) if count])
    waits_for = tuple(tuple(dict.fromkeys(before[index])) for index in order)
    last_use = dict.fromkeys(range(len(counts)), -1)
    for place, index in enumerate(order):
        last_use[index] = place
        last_use.update(dict.fromkeys(waits_for[place], place))
    lets_go: list[list[int]] = [[] for _ in order]
    for index, place in last_use.items():
        lets_go[place].append(index)
    return ReplayOrder(tuple(order), waits_for, tuple(map(tuple, lets_go)))


class Pipelines:
    """Which pipelines wait for each other.

    Args:
        labels: By scope, a label per pipeline: those with equal ones run it as one operation.
            Scopes that are left out join none.
        shape: Pipelines and samples.
    """

    def __init__(self, labels: Mapping[Scope, Labels], shape: tuple[int, int]) -> None:
        self.shape = shape
        self._groups = {scope: _Group.of(each) for scope, each in labels.items()}

    def joins(self, scope: Scope) -> bool:
        """Whether any pipelines run operations of a scope as one."""
        return scope in self._groups

    def slowest(self, values: Floats, scope: Scope) -> Floats:
        """Largest value among those that run an operation of a scope as one.

        Args:
            values: Of shape (pipelines, samples).
            scope: One that joins some.

        Returns:
            An array of that shape, or of one row for all pipelines.
        """
        group = self._groups[scope]
        return values.max(axis=0, keepdims=True) if group.is_all else group.largest(values)


class _Group(NamedTuple):
    """Pipelines by the group that they are in.

    Attributes:
        number: Of the group of each, shape (pipelines,).
        order: Pipelines by their group.
        firsts: Where each group begins in that order.
    """

    number: Labels
    order: Labels
    firsts: Labels

    @classmethod
    def of(cls, labels: Labels) -> _Group:
        _, number = np.unique(labels, return_inverse=True)
        order = np.argsort(number, kind="stable")
        return cls(number, order, np.searchsorted(number[order], np.arange(number.max() + 1)))

    @property
    def is_all(self) -> bool:
        return len(self.firsts) == 1

    def largest(self, values: Floats) -> Floats:
        found: Floats = np.maximum.reduceat(values[self.order], self.firsts)[self.number]
        return found


def sampled_replay(
    program: Program, order: ReplayOrder, pipelines: Pipelines, durations: Durations
) -> Floats:
    """When each pipeline of each sample is done [s], shape (pipelines, samples).

    Args:
        program: With one class of ranks per stage.
        order: Of its operations.
        pipelines: Which wait for each other.
        durations: Asked once for each operation, in order.
    """
    ends: dict[int, Floats] = {}
    done = np.zeros(pipelines.shape)
    steps = zip(order.operations, order.waits_for, order.lets_go, strict=True)
    for index, waits_for, lets_go in steps:
        scope = program.operations[index].scope
        end = _latest([ends[other] for other in waits_for], pipelines.shape)
        seconds = durations(index)
        if pipelines.joins(scope):
            whole = np.broadcast_to(seconds, pipelines.shape)
            end[:] = pipelines.slowest(end, scope) + pipelines.slowest(whole, scope)
        else:
            end += seconds
        np.maximum(done, end, out=done)
        ends[index] = end
        for other in lets_go:
            del ends[other]
    return done


def _latest(ends: Sequence[Floats], shape: tuple[int, int]) -> Floats:
    """The last of some ends, in a new array; the start of the step where there are none."""
    if not ends:
        return np.zeros(shape)
    if len(ends) == 1:
        return ends[0].copy()
    latest: Floats = np.maximum(ends[0], ends[1])
    for other in ends[2:]:
        np.maximum(latest, other, out=latest)
    return latest
