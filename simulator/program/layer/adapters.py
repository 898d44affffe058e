"""Which parameters of a layer are trained, and which does a plan add to adapt frozen ones?

An adapter of a matrix (outputs, inputs) is a product *down* (rank, inputs) and one *up* (outputs,
rank) beside it. Matrices that a stack multiplies with at once, query, key and value or gate and up,
share what goes down: the adapter is of the product. DoRA learns a size for every output, too.

Tensor-parallel ranks divide an adapter as they divide its matrix: of a column product up, of a row
product down; the narrow rest every rank holds whole. Every routed expert has adapters of its own.
IA3 learns a factor for every output of a matrix; where it leads out of a feed-forward network, for
every input.

A prefix is a parameter of every layer: peft keeps those of all in one embedding.

Source: peft, ``tuners/prefix_tuning/model.py``, ``tuners/lora/layer.py`` and
``tuners/ia3/layer.py``; Megatron-Bridge, ``peft/lora.py`` and
``ParallelLinearAdapter`` of ``peft/utils.py``, whose down product ranks divide, too, where its
matrix is cut by columns (ignored: it is narrow).
Ignores: copies of modules that peft trains in full (``modules_to_save``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

from simulator.cost.kernel_time import output_bytes
from simulator.cost.rates import FULL_BYTES
from simulator.described.job import Job
from simulator.described.model import Model
from simulator.described.plan.plan import Plan
from simulator.described.plan.plan_blocks import ALL_MATRICES, Lora
from simulator.errors import Fault
from simulator.program.layer.layer_kinds import layer_tensors
from simulator.program.layer.model_ends import embedding_tensors, head_tensors, multi_token_tensors
from simulator.program.layer.tensors import (
    ParameterGroup,
    ParameterTensor,
    TensorRole,
    TensorSplit,
)

_PRODUCTS = (
    ("attention.query", "attention.key", "attention.value"),
    ("mlp.gate", "mlp.up"),
    ("shared_expert.gate", "shared_expert.up"),
    ("experts.gate", "experts.up"),
)
"""Matrices that a stack with fused projections multiplies with at once."""
_LATENT_PRODUCT = ("attention.key", "attention.value")
"""Matrices that every stack multiplies with at once where attention has latents."""
_READ_FP8 = ("fp8", "mxfp8")


@dataclass(frozen=True)
class Adapter:
    """The adapter of one product.

    Attributes:
        name: That of its first matrix.
        matrices: What it adapts; they have the same inputs.
        rank: Columns between its two products; 0 where it only has factors.
        has_sizes: Whether it learns the size of every output.
    """

    name: str
    matrices: tuple[ParameterTensor, ...]
    rank: int
    has_sizes: bool

    @property
    def inputs(self) -> int:
        """Columns of its input."""
        return matrix_sides(self.matrices[0])[1]

    @property
    def outputs(self) -> int:
        """Columns of its output."""
        return sum(matrix_sides(matrix)[0] for matrix in self.matrices)

    @property
    def scales_inputs(self) -> bool:
        """Whether it has factors of its inputs."""
        return not self.rank and self.name.endswith(".down")

    def tensors(self) -> Iterator[ParameterTensor]:
        """Its parameters."""
        if not self.rank:
            for matrix in self.matrices:
                factors = _down(matrix, 1) if self.scales_inputs else _up(matrix, 1)
                name = f"{matrix.name}.adapter_factors"
                yield replace(factors, name=name, role=TensorRole.BIAS)
            return
        yield _down(self.matrices[0], self.rank)
        for matrix in self.matrices:
            yield _up(matrix, self.rank)
            if self.has_sizes:
                role, name = TensorRole.BIAS, f"{matrix.name}.adapter_size"
                sizes = replace(_up(matrix, 1), name=name, role=role)
                yield sizes


def matrix_sides(matrix: ParameterTensor) -> tuple[int, int]:
    """Outputs and inputs of a matrix; those of one expert where it is of routed ones."""
    shape = matrix.shape[1:] if matrix.is_routed else matrix.shape
    sides = math.prod(shape[:-1]), shape[-1]
    return sides[::-1] if _inputs_first(matrix) else sides


def _inputs_first(matrix: ParameterTensor) -> bool:
    return matrix.inputs_first or matrix.name == "experts.down"


def _down(matrix: ParameterTensor, rank: int) -> ParameterTensor:
    shape: tuple[int, ...] = (rank, matrix_sides(matrix)[1])
    split = TensorSplit.REPLICATED
    if _inputs_first(matrix):
        shape, split = (*matrix.shape[:-1], rank), matrix.split
    elif matrix.is_routed:
        shape, split = (matrix.shape[0], *shape), TensorSplit.EXPERT_REPLICATED
    return replace(matrix, name=f"{matrix.name}.adapter_down", shape=shape, split=split)


def _up(matrix: ParameterTensor, rank: int) -> ParameterTensor:
    shape: tuple[int, ...] = (*matrix.shape[:-1], rank)
    split = matrix.split
    if _inputs_first(matrix):
        shape, split = (matrix_sides(matrix)[0], rank), TensorSplit.REPLICATED
        if matrix.is_routed:
            shape, split = (matrix.shape[0], *shape), TensorSplit.EXPERT_REPLICATED
    name = f"{matrix.name}.adapter_up"
    return replace(matrix, name=name, shape=shape, split=split, inputs_first=False)


def training_faults(model: Model, plan: Plan) -> Iterator[Fault]:
    """What a plan freezes or adapts that the model does not have, or where nothing is trained."""
    if not plan.frozen_patterns:
        return
    held = {
        f"layers.{index}.{tensor.name}": tensor
        for index in range(model.layers)
        for tensor in held_tensors(model, plan, index)
    }
    ends = (*embedding_tensors(model), *head_tensors(model), *multi_token_tensors(model))
    held |= {tensor.name: tensor for tensor in frozen(ends, plan)}
    misnamed = list(_lora_faults(plan.lora, plan.precision, held)) if plan.lora is not None else []
    for pattern in plan.frozen_patterns:
        if not any(fnmatchcase(name, pattern) for name in held):
            hint = "the model has " + ", ".join(sorted({_any_layer(name) for name in held}))
            misnamed.append(Fault("plan.frozen", "no parameter has this name", pattern, hint))
    yield from misnamed
    if not misnamed and all(tensor.is_frozen for tensor in held.values()):
        rule = "leaves nothing to train"
        yield Fault("plan.frozen", rule, list(plan.frozen_patterns), "freeze fewer")


def _lora_faults(
    lora: Lora, precision: str, held: Mapping[str, ParameterTensor]
) -> Iterator[Fault]:
    matrices = {name: each for name, each in held.items() if name.startswith("layers.")}
    known = {name.rpartition(".")[2] for name, each in matrices.items() if adaptable(each)}
    known = {name for name in known if not name.startswith("adapter_")}
    yield from _kind_faults(lora)
    if lora.base_precision == "fp8" and precision not in _READ_FP8:
        rule, hint = "is read by 8-bit products only", "set plan.precision=fp8"
        yield Fault("plan.lora.base_precision", rule, lora.base_precision, hint)
    for target in lora.targets:
        if target not in {ALL_MATRICES, *known}:
            hint = f"the model's layers have {', '.join(sorted(known))}, or all for all of them"
            yield Fault("plan.lora.targets", "no matrix has this name", target, hint)
    is_trained = any(
        adaptable(each) and not each.is_frozen and ".adapter_" not in name
        for name, each in matrices.items()
    )
    if lora.is_quantised and is_trained:
        rule = "applies to frozen matrices only, but plan.frozen leaves some trainable"
        hint = "add layers.* to plan.frozen, or remove it"
        yield Fault("plan.lora.base_precision", rule, lora.base_precision, hint)


def _kind_faults(lora: Lora) -> Iterator[Fault]:
    """IA3 has neither rank nor dropout; all others have a rank."""
    if lora.kind != "ia3":
        if lora.rank is None:
            yield Fault(
                "plan.lora.rank", f"is needed by {lora.kind}", None, "set plan.lora.rank=16"
            )
        return
    for name, given in (("rank", lora.rank), ("dropout", lora.dropout)):
        if given:
            yield Fault(f"plan.lora.{name}", "is not part of ia3", given, "remove it")


def _any_layer(name: str) -> str:
    return re.sub(r"^(layers|multi_token)\.\d+\.", r"\1.*.", name)


def adapters(model: Model, plan: Plan, layer_index: int) -> tuple[Adapter, ...]:
    """The adapters of one layer, counted from 0; none where the plan has none."""
    if plan.lora is None:
        return ()
    found: dict[str, list[ParameterTensor]] = {}
    for matrix in layer_tensors(model, layer_index):
        if _is_target(matrix, plan.lora):
            found.setdefault(_product(matrix.name, model, plan), []).append(matrix)
    rank, has_sizes = plan.lora.rank or 0, plan.lora.kind == "dora"
    return tuple(Adapter(each[0].name, tuple(each), rank, has_sizes) for each in found.values())


def adaptable(matrix: ParameterTensor) -> bool:
    """Whether a tensor is a matrix of a layer, which may have an adapter and be quantised."""
    in_layer = matrix.group in (ParameterGroup.DENSE, ParameterGroup.EXPERT)
    return in_layer and matrix.role is TensorRole.MATRIX and len(matrix.shape) > 1


def _is_target(matrix: ParameterTensor, lora: Lora) -> bool:
    name = matrix.name.rpartition(".")[2]
    return adaptable(matrix) and (ALL_MATRICES in lora.targets or name in lora.targets)


def _product(name: str, model: Model, plan: Plan) -> str:
    """The product that a matrix is multiplied in, by its first matrix."""
    of_attention = _PRODUCTS[0] if model.latent_attention is None else _LATENT_PRODUCT
    fused = [of_attention, *_PRODUCTS[1:]] if plan.stack.fused_projections else []
    if model.latent_attention is not None:
        fused.append(_LATENT_PRODUCT)
    return next((names[0] for names in fused if name in names), name)


def casts_inputs(job: Job) -> bool:
    """Whether adapters are fp32 beside 16-bit weights, so that each casts its input."""
    lora, casts = job.plan.lora, job.plan.stack.casts_adapter_inputs
    if casts == "unquantised":
        casts = lora is None or not lora.is_quantised
    return casts and output_bytes(job.plan.precision) < FULL_BYTES


def computes_in_fp32(job: Job) -> bool:
    """Whether adapters are fp32 and no autocast makes their products 16-bit."""
    return casts_inputs(job) and not job.choices.keeps_master_weights


def held_tensors(model: Model, plan: Plan, layer_index: int) -> tuple[ParameterTensor, ...]:
    """Tensors of one layer, counted from 0, with its adapters; frozen ones say so."""
    tensors = layer_tensors(model, layer_index)
    if not plan.frozen_patterns:
        return tensors
    added = (each for adapter in adapters(model, plan, layer_index) for each in adapter.tensors())
    held = (*frozen(tensors, plan, f"layers.{layer_index}."), *added)
    return (*held, _prefix(model, plan.prefix_tokens)) if plan.prefix_tokens else held


def _prefix(model: Model, tokens: int) -> ParameterTensor:
    """Keys and values of one layer that stand before every sequence."""
    shape = (2 * model.kv_heads * model.head_dim, tokens)
    return ParameterTensor(
        "attention.prefix", shape, split=TensorSplit.TENSOR, role=TensorRole.BIAS
    )


def frozen(
    tensors: tuple[ParameterTensor, ...], plan: Plan, prefix: str = ""
) -> tuple[ParameterTensor, ...]:
    """The same tensors; those that the plan freezes say so.

    Args:
        tensors: Of a layer, or of an end of the model.
        plan: The plan.
        prefix: What stands before their names in patterns.
    """
    if not plan.frozen_patterns:
        return tensors
    names = tuple(tensor.name for tensor in tensors)
    is_frozen = _frozen_names(plan.frozen_patterns, names, prefix)
    return tuple(replace(each, is_frozen=each.name in is_frozen) for each in tensors)


def frozen_in_layer(model: Model, plan: Plan, layer_index: int) -> frozenset[str]:
    """Names of those tensors of one layer, counted from 0, that the plan freezes."""
    if not plan.frozen_patterns:
        return frozenset()
    names = tuple(tensor.name for tensor in layer_tensors(model, layer_index))
    return _frozen_names(plan.frozen_patterns, names, f"layers.{layer_index}.")


def trains_in_layer(model: Model, plan: Plan, layer_index: int) -> bool:
    """Whether one layer, counted from 0, has anything to train."""
    return not all(tensor.is_frozen for tensor in held_tensors(model, plan, layer_index))


@lru_cache
def _frozen_names(patterns: tuple[str, ...], names: tuple[str, ...], prefix: str) -> frozenset[str]:
    return frozenset(
        name for name in names if any(fnmatchcase(prefix + name, pattern) for pattern in patterns)
    )
