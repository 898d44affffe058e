"""What does each rank do where ranks of one stage differ, or everybody is to be seen?

The folded program has one class of ranks per stage. Here the places of a stage are split
into kinds of equal behaviour, the same in every stage, because a rank passes activations to the
rank at its own place in the next one. Each operation is then run by every group of ranks that its
scope joins: once per different group, on the lanes of every class in it. Whoever waited for the
folded operation waits for those that have a rank in one pipeline with it.

Colour refinement (1-dimensional Weisfeiler-Leman) on a hypergraph finds which places behave in the
same way: places begin with the colour of what is known of them and split as long as two of one
colour are in groups of different colours. What is left equal has the same past whatever happens.

Where some ranks of a group hold busier experts than others, each kind of rank runs a pass by
itself: all begin together, and the others wait at the end for the busiest.

Ignores: where inside a pass a group waits for its slowest rank; all of them count as busy
until the pass is over.
Source: Berkholz, Bonsma and Grohe, Tight lower and upper bounds for the complexity of
canonical colour refinement (arXiv 1509.08251).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.errors import UnsupportedError
from simulator.program.grid.expert_tokens import ExpertShare
from simulator.program.grid.rank_groups import Labels, scope_labels
from simulator.program.ir import Lane, Operation, Program, RankClass, Scope, Work
from simulator.program.unlike.causes import Causes, ExpertRoles, expert_roles, waiting
from simulator.program.unlike.conditions import (
    SOUND,
    Condition,
    RankConditions,
    rank_conditions,
    slowed,
    with_slow_links,
    worst,
)

Colours = NDArray[np.int64]
"""A number per place, shape (places,)."""


def refined(colours: Colours, partitions: Sequence[Colours]) -> Colours:
    """The coarsest colours, at least as fine as the given ones, that groups agree with.

    Two places of one colour are then in groups with the same colours in the same numbers.
    Colours are numbered by their first place.

    Args:
        colours: What distinguishes places from the start, shape (places,).
        partitions: Groups of places, as labels of shape (places,) each.
    """
    colours = _numbered(colours)
    while True:
        finer = colours
        for labels in partitions:
            finer = _numbered(np.stack([finer, _group_colours(finer, labels)], axis=1))
        if finer.max(initial=0) == colours.max(initial=0):
            return colours
        colours = finer


def _group_colours(colours: Colours, labels: Colours) -> Colours:
    """A number per place that says which colours its group has, and how many of each."""
    order = np.lexsort((colours, labels))
    _, group = np.unique(labels, return_inverse=True)
    sorted_colours = colours[order]
    bounds = np.cumsum(np.bincount(group))[:-1]
    known: dict[bytes, int] = {}
    numbers = [
        known.setdefault(members.tobytes(), len(known))
        for members in np.split(sorted_colours, bounds)
    ]
    return np.asarray(numbers, dtype=np.int64)[group]


def _numbered(rows: NDArray[np.int64]) -> Colours:
    """Equal rows get equal numbers, in order of their first appearance."""
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


_MOST_OPERATIONS = 2_000_000
"""More would take minutes and gigabytes: about 0.1 ms and 1 KB each."""

_Cell = tuple[int, ...]
"""Kinds that run an operation as one, in order."""

FoldedProgram = Callable[[Job, ExpertShare | None], Program]
"""The program with one class per stage of a job, whatever its perturbations, as ranks run it
whose experts receive a share."""


def unfold(job: Job, folded_program: FoldedProgram, *, each_rank: bool) -> Program:
    """The program with as many classes per stage as its ranks differ.

    Args:
        job: With its perturbations and the load of its experts.
        folded_program: How to build it with one class per stage.
        each_rank: Whether every rank becomes a class of its own.

    Raises:
        UnsupportedError: There are too many operations to simulate.
    """
    conditions, roles = rank_conditions(job), expert_roles(job)
    folded = folded_program(job, roles.shares[0])
    is_perturbed = bool(conditions.perturbed.any())
    if not (each_rank or is_perturbed or roles.differ):
        return folded
    labels = scope_labels(job)
    if each_rank:
        kinds = np.arange(conditions.number.shape[1])
    else:
        kinds = refined(_columns(conditions, roles), list(labels.values()))
    costs = _Costs(job, folded_program, {(SOUND, roles.shares[0]): folded})
    unfolding = _Unfolding(folded, conditions, roles, labels, kinds, costs)
    if unfolding.num_operations > _MOST_OPERATIONS:
        raise UnsupportedError.single(
            "unfolded" if each_rank else "perturbations" if is_perturbed else "plan.expert_load",
            f"needs {len(unfolding.places) * len(folded.classes):,} classes of ranks with "
            f"{unfolding.num_operations:,} operations; at most {_MOST_OPERATIONS:,} are simulated",
            hint="use fewer GPUs" if each_rank else "perturb fewer GPUs, or use fewer",
        )
    only_roles_differ = not (each_rank or is_perturbed) and len(unfolding.places) == 2
    return unfolding.program(named_by_rank=not only_roles_differ)


def _columns(conditions: RankConditions, roles: ExpertRoles) -> Colours:
    """Colour of each place: the conditions of its ranks in all stages, and their role."""
    known = np.concatenate([conditions.number, roles.role[None]])
    return np.unique(known, axis=1, return_inverse=True)[1].reshape(-1)


class _Variant(NamedTuple):
    """What operations cost in one condition.

    Attributes:
        operations: Of the folded program where all ranks have such links and experts.
        slowdown: By what share computing takes longer.
        works: Works that do, by the identity of those that do not.
    """

    operations: Sequence[Operation]
    slowdown: float
    works: dict[int, Work]

    def work(self, index: int) -> Work:
        """Of one operation; equal ones share theirs."""
        work = self.operations[index].work
        if not self.slowdown:
            return work
        found = self.works.get(id(work))
        if found is None:
            found = self.works[id(work)] = slowed(work, self.slowdown)
        return found


class _Part(NamedTuple):
    """Kinds of ranks that run operations as one.

    Attributes:
        kinds: Which.
        lanes: Theirs.
        variants: What operations cost them, for each pool; the slowest of them counts.
    """

    kinds: Sequence[int]
    lanes: tuple[Lane, ...]
    variants: Sequence[_Variant]

    def operation(self, index: int) -> tuple[Operation, Work]:
        """An operation of the folded program, and what it costs these ranks."""
        if len(self.variants) == 1:
            return self.variants[0].operations[index], self.variants[0].work(index)
        costs = [(each.operations[index], each.work(index)) for each in self.variants]
        return max(costs, key=lambda cost: cost[1].seconds)


class _Group(NamedTuple):
    """A cell on the lanes of some stages.

    Attributes:
        whole: All of it, at the cost of its first role.
        parts: Its kinds of each role.
    """

    whole: _Part
    parts: Sequence[_Part]


@dataclass
class _Costs:
    """What operations cost in each condition; programs with slow links are built once."""

    job: Job
    folded_program: FoldedProgram
    _programs: dict[tuple[Condition, ExpertShare | None], Program]
    _variants: dict[tuple[Condition, ExpertShare | None], _Variant] = field(default_factory=dict)

    def variant(self, condition: Condition, share: ExpertShare | None) -> _Variant:
        """What operations cost ranks in a condition whose experts receive a share."""
        key = (condition, share)
        if key not in self._variants:
            links = replace(condition, slowdown=0.0)
            operations = self.program(links, share).operations
            self._variants[key] = _Variant(operations, condition.slowdown, {})
        return self._variants[key]

    def program(self, links: Condition, share: ExpertShare | None) -> Program:
        """The folded program where all ranks have such links and receive such a share."""
        key = (links, share)
        if key not in self._programs:
            job = self.job if links == SOUND else with_slow_links(self.job, links)
            self._programs[key] = self.folded_program(job, share)
        return self._programs[key]


class _Unfolding:
    """One folded program on its way to more classes."""

    def __init__(
        self,
        folded: Program,
        conditions: RankConditions,
        roles: ExpertRoles,
        labels: Mapping[Scope, Labels],
        kinds: Colours,
        costs: _Costs,
    ) -> None:
        self.folded = folded
        self.conditions = conditions
        self.roles = roles
        self.costs = costs
        order = np.argsort(kinds, kind="stable")
        self.places = np.split(order, np.cumsum(np.bincount(kinds))[:-1])
        """Places of each kind, ascending."""
        self.causes = Causes(conditions, labels)
        self.cells = {scope: _cells(kinds, self.places, its) for scope, its in labels.items()}
        self._groups: dict[tuple[tuple[Lane, ...], Scope], list[_Group]] = {}

    @property
    def num_operations(self) -> int:
        """How many operations the program has, without those that wait."""
        return sum(len(self.cells[operation.scope]) for operation in self.folded.operations)

    def program(self, *, named_by_rank: bool) -> Program:
        """The program with one class per stage and kind."""
        program = replace(
            self.folded,
            classes=tuple(
                self._rank_class(stage, kind, named_by_rank=named_by_rank)
                for stage in range(len(self.folded.classes))
                for kind in range(len(self.places))
            ),
            operations=[],
            lanes={},
            ports={**self.folded.ports, **self.conditions.ports_bytes_per_s},
        )
        starts: list[tuple[int, Operation, Sequence[int]]] = []
        ends: list[dict[int, int]] = []
        for index, operation in enumerate(self.folded.operations):
            ended: dict[int, int] = {}
            for group in self._groups_of(operation):
                for start, end, members in _add(program, index, group):
                    starts.append((start, operation, group.whole.kinds))
                    ended |= dict.fromkeys(members, end)
            ends.append(ended)
        # Only now, because a pass may wait for operations that come later in the list.
        for start, operation, cell in starts:
            added = program.operations[start]
            waits_for = {ends[before][kind]: None for before in operation.after for kind in cell}
            added.after = tuple(
                waits_for | dict.fromkeys(added.after) if added.after else waits_for
            )
        return program

    def _rank_class(self, stage: int, kind: int, *, named_by_rank: bool) -> RankClass:
        places = self.places[kind]
        share = self.roles.shares[self.roles.role[places[0]]]
        whole = self.costs.program(SOUND, share).classes[stage]
        ranks = tuple(self.conditions.ranks[stage, places].tolist())
        place = int(places[0])
        role = "cold" if self.roles.role[place] else "hot"
        profile = self.conditions.profile(stage, place)
        causes = [self.causes.text(stage, place), self.roles.cause(place)]
        return RankClass(
            name=f"rank {ranks[0]}" if named_by_rank else f"{whole.name} {role}",
            stage=whole.stage,
            count=len(ranks),
            first_rank=ranks[0],
            resident=whole.resident,
            loading=whole.loading,
            starting=whole.starting,
            first_states=whole.first_states,
            host=whole.host,
            nvme=whole.nvme,
            ranks=ranks,
            cause="; ".join(cause for cause in causes if cause),
            port_shares=self.conditions.port_shares(stage, place),
            role=profile.name if profile else "",
            device=profile.device if profile else None,
        )

    def _groups_of(self, operation: Operation) -> list[_Group]:
        """Who runs an operation, each group as one."""
        key = operation.lanes, operation.scope
        if key not in self._groups:
            cells = self.cells[operation.scope]
            self._groups[key] = [self._group(operation.lanes, cell) for cell in cells]
        return self._groups[key]

    def _group(self, lanes: Sequence[Lane], cell: _Cell) -> _Group:
        conditions = worst(
            self.conditions.of(stage, int(self.places[kind][0]))
            for stage, _ in lanes
            for kind in cell
        )
        members: dict[int, list[int]] = {}
        for kind in cell:
            members.setdefault(int(self.roles.role[self.places[kind][0]]), []).append(kind)
        parts = [
            _Part(
                kinds,
                self._lanes(lanes, kinds),
                [self.costs.variant(each, self.roles.shares[role]) for each in conditions],
            )
            for role, kinds in members.items()
        ]
        return _Group(_Part(cell, self._lanes(lanes, cell), parts[0].variants), parts)

    def _lanes(self, lanes: Sequence[Lane], kinds: Sequence[int]) -> tuple[Lane, ...]:
        number = len(self.places)
        return tuple((stage * number + kind, stream) for stage, stream in lanes for kind in kinds)


def _add(program: Program, index: int, group: _Group) -> Iterator[tuple[int, int, Sequence[int]]]:
    """Append what a group does for an operation.

    Gives the index of its first and its last operation with the kinds that run them: all
    of the group as one, or those of each role, if they do not do the same.
    """
    parts = group.parts
    before: tuple[int, ...] = ()
    costs = [part.operation(index) for part in parts]
    if len(parts) > 1:
        if all(_does_the_same(costs[0], other) for other in costs[1:]):
            parts, costs = [group.whole], costs[:1]
        else:
            # Whoever exchanges tokens begins together, as one operation on all lanes would.
            lanes = program.lanes
            before = tuple([lanes[lane][-1] for lane in group.whole.lanes if lane in lanes])
    longest_s = max(work.seconds for _, work in costs)
    for part, (operation, work) in zip(parts, costs, strict=True):
        end = start = program.add(operation.elsewhere(part.lanes, work, before))
        wait_s = longest_s - work.seconds
        if wait_s > 0:
            end = program.add(waiting(operation, part.lanes, start, wait_s))
        yield start, end, part.kinds


def _cells(kinds: Colours, places: Sequence[Labels], labels: Labels) -> list[_Cell]:
    """The different groups of a scope, as the kinds in them, in order of their first kind.

    Every kind is in one of them only, because kinds agree with groups.
    """
    members: dict[int, set[int]] = {}
    for label, kind in zip(labels.tolist(), kinds.tolist(), strict=True):
        members.setdefault(label, set()).add(kind)
    cells = {tuple(sorted(members[int(labels[its[0]])])): None for its in places}
    return list(cells)


def _does_the_same(one_cost: tuple[Operation, Work], other_cost: tuple[Operation, Work]) -> bool:
    (one, work), (other, other_work) = one_cost, other_cost
    return (
        work.parts == other_work.parts
        and work.seconds == other_work.seconds
        and (one.takes, one.gives, one.holds, one.turns)
        == (other.takes, other.gives, other.holds, other.turns)
        and (one.frees, one.leaves, one.lingers) == (other.frees, other.leaves, other.lingers)
        and one.by_unit == other.by_unit
    )
