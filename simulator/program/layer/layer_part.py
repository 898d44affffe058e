"""What must be known of a part of a layer, so that any plan can run it or is refused?

A layer is a part that mixes tokens (attention), and an MLP. One description of a part gives its
tensors, its pieces with what they save, and its FLOP. It also says which strategies have a rule
for it; what it does not say is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from simulator.described.model import Model
from simulator.described.plan.plan import Plan
from simulator.described.plan.plan_fields import Recompute
from simulator.errors import Fault
from simulator.program.layer.block import Block
from simulator.program.layer.pieces import ContextRules, ContextSplit, Piece
from simulator.program.layer.tensors import ParameterTensor


class LayerKind(NamedTuple):
    """What distinguishes the layers of one model; equal kinds cost the same.

    Attributes:
        mixer, mlp: Names of its parts in the registry.
        window: Tokens the layer attends to at most; 0 is all.
    """

    mixer: str = "attention"
    mlp: str = "dense"
    window: int = 0


def _no_flop(_model: Model, _keys: int) -> float:
    return 0.0


@dataclass(frozen=True, eq=False)
class LayerPart:
    """One part of a layer.

    Attributes:
        title: What messages call a layer with it.
        is_in: Whether the layer of a model at an index, from 0, has it.
        tensors: Its parameters, in the order in which forward uses them.
        add: Appends its pieces and what they save; gets the window of the layer.
        flop: Forward operations per token beside products with weights [FLOP], by model and
            number of tokens that one attends to.
        tensor_sizes: What ``plan.tp`` has to divide where its ranks are in a line, by the
            model's field; None is no rule.
        on_grid: Whether it may lie on a 2D, 2.5D or 3D grid of tensor-parallel ranks.
        context: Its rule for each method of context parallelism.
        no_context: Why it has none, where it has none, for messages.
        recompute: Policies of recomputation that it has a rule for.
    """

    title: str
    is_in: Callable[[Model, int], bool]
    tensors: Callable[[Model], Iterable[ParameterTensor]]
    add: Callable[[Block, int], None]
    flop: Callable[[Model, int], float] = _no_flop
    tensor_sizes: Callable[[Model], Mapping[str, int]] | None = None
    on_grid: bool = False
    context: ContextRules = field(default_factory=dict)
    no_context: str = ""
    recompute: frozenset[Recompute] = frozenset()

    def unruled(self, model: Model, plan: Plan) -> Iterator[Fault]:
        """The fields of a plan whose strategies have no rule for this part."""
        rule = f"has no rule for {self.title} layers"
        if plan.tp > 1 and self.tensor_sizes is None:
            yield Fault("plan.tp", rule, plan.tp, "use plan.tp: 1")
        if plan.tensor_grid is not None and not self.on_grid:
            yield Fault("plan.tp_method", rule, plan.tp_method, "use 1d")
        if plan.cp > 1 and plan.cp_method not in self.context:
            hint = " or ".join([*self.context, "plan.cp: 1"])
            why = f": {self.no_context}" if self.no_context else ""
            yield Fault("plan.cp_method", rule + why, plan.cp_method, f"use {hint}")
        if plan.recompute not in {"none", *self.recompute}:
            hint = " or ".join(["none", *sorted(self.recompute)])
            yield Fault("plan.recompute", rule, plan.recompute, f"use {hint}")
        if plan.tensor_grid is not None or self.tensor_sizes is None:
            return
        for name, size in self.tensor_sizes(model).items():
            if size % plan.tp:
                rule = f"must divide the {size} {name} of {self.title} layers"
                yield Fault("plan.tp", rule, plan.tp)


def _unchanged(piece: Piece, _split: ContextSplit) -> Iterator[Piece]:
    yield piece


TOKEN_WISE: ContextRules = MappingProxyType(
    dict.fromkeys(("ring", "all_to_all", "all_gather", "all_to_all+ring"), _unchanged)
)
"""The rules of a part that computes each token alone: ranks with other tokens change nothing."""

ALL_RECOMPUTE: frozenset[Recompute] = frozenset({"selective", "full"})
"""Every policy of recomputation."""
