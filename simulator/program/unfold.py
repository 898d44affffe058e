"""What does each rank do where ranks of one stage differ, or everybody is to be seen?

The folded program has one class of ranks per stage. Here the places of a stage are split
into kinds that behave alike (:mod:`simulator.program.refine`), the same in every stage,
because a rank passes activations to the rank at its own place in the next one. Each
operation is then run by every group of ranks that its scope joins: once per different
group, on the lanes of every class in it. Whoever waited for the folded operation waits
for those that have a rank in one pipeline with it.

Ignores: where inside a pass a group waits for its slowest rank; all of them count as busy
until the pass is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simulator.errors import UnsupportedError
from simulator.program.causes import Causes
from simulator.program.conditions import (
    SOUND,
    Condition,
    RankConditions,
    rank_conditions,
    slowed,
    with_slow_links,
    worst,
)
from simulator.program.ir import Lane, Operation, Program, RankClass, Scope, Work
from simulator.program.refine import Colours, refined
from simulator.program.scopes import Labels, scope_labels
from simulator.spec.job import Job

_MOST_OPERATIONS = 2_000_000
"""More would take minutes and gigabytes: about 0.1 ms and 1 KB each."""

_Cell = tuple[int, ...]
"""Kinds that run an operation as one, in order."""


def unfold(job: Job, folded_program: Callable[[Job], Program], *, each_rank: bool) -> Program:
    """The program with as many classes per stage as its ranks differ.

    Args:
        job: With its perturbations.
        folded_program: The program with one class per stage, whatever the perturbations.
        each_rank: Whether every rank becomes a class of its own.

    Raises:
        UnsupportedError: There are too many operations to simulate.
    """
    folded = folded_program(job)
    conditions = rank_conditions(job)
    if not each_rank and not conditions.perturbed.any():
        return folded
    labels = scope_labels(job)
    if each_rank:
        kinds = np.arange(conditions.number.shape[1])
    else:
        kinds = refined(_columns(conditions), list(labels.values()))
    costs = _Costs(job, folded_program, folded)
    unfolding = _Unfolding(folded, conditions, labels, kinds, costs)
    if unfolding.num_operations > _MOST_OPERATIONS:
        raise UnsupportedError.single(
            "unfolded" if each_rank else "perturbations",
            f"leaves {len(unfolding.places) * len(folded.classes):,} kinds of ranks with "
            f"{unfolding.num_operations:,} operations; at most {_MOST_OPERATIONS:,} are simulated",
            hint="take fewer GPUs" if each_rank else "perturb fewer GPUs, or take fewer",
        )
    return unfolding.program()


def _columns(conditions: RankConditions) -> Colours:
    """Colour of each place: the conditions of its ranks in all stages."""
    return np.unique(conditions.number, axis=1, return_inverse=True)[1].reshape(-1)


@dataclass
class _Costs:
    """What operations cost in each condition; programs with slow links are built once."""

    job: Job
    folded_program: Callable[[Job], Program]
    folded: Program
    _programs: dict[Condition, Program] = field(default_factory=dict)
    _works: dict[tuple[int, Condition], Work] = field(default_factory=dict)

    def work(self, index: int, condition: Condition) -> Work:
        """Cost of an operation of the folded program; equal ones share their work."""
        known = self.folded.operations[index].work
        if condition == SOUND:
            return known
        key = (id(known), condition)
        if key not in self._works:
            links = replace(condition, slowdown=0.0)
            work = self._program(links).operations[index].work
            self._works[key] = slowed(work, condition.slowdown)
        return self._works[key]

    def _program(self, links: Condition) -> Program:
        if links == SOUND:
            return self.folded
        if links not in self._programs:
            self._programs[links] = self.folded_program(with_slow_links(self.job, links))
        return self._programs[links]


class _Unfolding:
    """One folded program on its way to more classes."""

    def __init__(
        self,
        folded: Program,
        conditions: RankConditions,
        labels: Mapping[Scope, Labels],
        kinds: Colours,
        costs: _Costs,
    ) -> None:
        self.folded = folded
        self.conditions = conditions
        self.costs = costs
        order = np.argsort(kinds, kind="stable")
        self.places = np.split(order, np.cumsum(np.bincount(kinds))[:-1])
        """Places of each kind, ascending."""
        self.causes = Causes(conditions, labels)
        self.cells = {scope: _cells(kinds, self.places, its) for scope, its in labels.items()}
        self.cell_of = {scope: _cell_of_kind(cells) for scope, cells in self.cells.items()}
        self._conditions: dict[tuple[tuple[int, ...], _Cell], Condition] = {}

    @property
    def num_operations(self) -> int:
        """How many operations the program has."""
        return sum(len(self.cells[operation.scope]) for operation in self.folded.operations)

    def program(self) -> Program:
        """The program with one class per stage and kind."""
        program = Program(
            classes=tuple(
                self._rank_class(stage, kind)
                for stage in range(len(self.folded.classes))
                for kind in range(len(self.places))
            ),
            ports=dict(self.folded.ports),
            sm_count=self.folded.sm_count,
            expandable_segments=self.folded.expandable_segments,
            communicator_bytes=self.folded.communicator_bytes,
            preallocated=self.folded.preallocated,
        )
        instances = [
            [program.add(self._instance(index, cell)) for cell in self.cells[operation.scope]]
            for index, operation in enumerate(self.folded.operations)
        ]
        for operation, own in zip(self.folded.operations, instances, strict=True):
            for cell, new in zip(self.cells[operation.scope], own, strict=True):
                program.operations[new].after = self._after(operation, cell, instances)
        return program

    def _rank_class(self, stage: int, kind: int) -> RankClass:
        whole, places = self.folded.classes[stage], self.places[kind]
        ranks = tuple(self.conditions.ranks[stage, places].tolist())
        place = int(places[0])
        return RankClass(
            name=f"rank {ranks[0]}",
            stage=whole.stage,
            count=len(ranks),
            first_rank=ranks[0],
            resident=whole.resident,
            host=whole.host,
            nvme=whole.nvme,
            ranks=ranks,
            cause=self.causes.text(stage, place),
            port_shares=self.conditions.of(stage, place).port_shares,
        )

    def _instance(self, index: int, cell: _Cell) -> Operation:
        operation = self.folded.operations[index]
        kinds = len(self.places)
        lanes: tuple[Lane, ...] = tuple(
            (stage * kinds + kind, stream) for stage, stream in operation.lanes for kind in cell
        )
        stages = tuple(stage for stage, _ in operation.lanes)
        work = self.costs.work(index, self._condition(stages, cell))
        return replace(operation, lanes=lanes, work=work, after=())

    def _condition(self, stages: tuple[int, ...], cell: _Cell) -> Condition:
        key = (stages, cell)
        if key not in self._conditions:
            self._conditions[key] = worst(
                self.conditions.of(stage, int(self.places[kind][0]))
                for stage in stages
                for kind in cell
            )
        return self._conditions[key]

    def _after(
        self, operation: Operation, cell: _Cell, instances: Sequence[Sequence[int]]
    ) -> tuple[int, ...]:
        found: dict[int, None] = {}
        for before in operation.after:
            cell_of = self.cell_of[self.folded.operations[before].scope]
            for kind in cell:
                found[instances[before][cell_of[kind]]] = None
        return tuple(found)


def _cells(kinds: Colours, places: Sequence[Labels], labels: Labels) -> list[_Cell]:
    """The different groups of a scope, as the kinds in them, in order of their first kind.

    Every kind is in one of them only, because kinds agree with groups.
    """
    members: dict[int, set[int]] = {}
    for label, kind in zip(labels.tolist(), kinds.tolist(), strict=True):
        members.setdefault(label, set()).add(kind)
    cells = {tuple(sorted(members[int(labels[its[0]])])): None for its in places}
    return list(cells)


def _cell_of_kind(cells: Sequence[_Cell]) -> list[int]:
    """Index of the cell of each kind."""
    by_kind = {kind: number for number, cell in enumerate(cells) for kind in cell}
    return [by_kind[kind] for kind in range(len(by_kind))]
