"""Which kinds of layers are there, and what is a layer of each kind made of?

A new part of a layer is a file that describes it (:mod:`simulator.program.layer.layer_part`), and
a line here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from simulator.described.model import Model
from simulator.described.plan.plan import Plan
from simulator.errors import InputError
from simulator.program.layer.attention_parts import ATTENTION, LATENT_ATTENTION
from simulator.program.layer.block import Block, Shape
from simulator.program.layer.experts import EXPERTS
from simulator.program.layer.layer_part import LayerKind, LayerPart
from simulator.program.layer.mamba2 import MAMBA2
from simulator.program.layer.mlp import DENSE_MLP, NO_MLP
from simulator.program.layer.pieces import Layer
from simulator.program.layer.tensors import ParameterGroup, ParameterTensor, norm_tensors

MIXERS: Mapping[str, LayerPart] = {
    "mamba2": MAMBA2,
    "latent_attention": LATENT_ATTENTION,
    "attention": ATTENTION,
}
"""Parts in which tokens see each other; a layer has the first that is in it."""

MLPS: Mapping[str, LayerPart] = {"experts": EXPERTS, "dense": DENSE_MLP, "none": NO_MLP}
"""Parts that compute each token alone; a layer has the first that is in it."""

_NORMS_BEFORE = 2
"""Norms before the mixer and before the MLP; any more stand behind them."""


@lru_cache(maxsize=4096)
def layer_kind(model: Model, layer_index: int) -> LayerKind:
    """Kind of one layer, counted from 0."""
    mixer, mlp = (
        next(name for name, part in parts.items() if part.is_in(model, layer_index))
        for parts in (MIXERS, MLPS)
    )
    return LayerKind(mixer, mlp, model.window(layer_index))


@lru_cache(maxsize=16)
def layer_kinds(model: Model) -> tuple[LayerKind, ...]:
    """Kind of every layer, so that costs are computed once per distinct kind."""
    return tuple(layer_kind(model, index) for index in range(model.layers))


def model_parts(model: Model) -> tuple[LayerPart, ...]:
    """The parts that some layer has, each once."""
    kinds = layer_kinds(model)
    return tuple(dict.fromkeys(part for kind in kinds for part in layer_parts(kind)))


def layer_parts(kind: LayerKind) -> tuple[LayerPart, LayerPart]:
    """The mixer and the MLP of a kind."""
    return MIXERS[kind.mixer], MLPS[kind.mlp]


@lru_cache(maxsize=4096)
def layer_tensors(model: Model, layer_index: int) -> tuple[ParameterTensor, ...]:
    """Tensors of one layer, counted from 0, in the order in which forward uses them.

    A norm, the mixer, the norms between the two, the MLP, and a norm behind it.
    """
    mixer, mlp = layer_parts(layer_kind(model, layer_index))
    # Half of a layer's norms are the MLP's.
    count = -(-model.norms_per_layer // 2) if mlp is NO_MLP else model.norms_per_layer

    def norms(first: int, end: int) -> Iterator[ParameterTensor]:
        for number in range(first, min(end, count)):
            yield from norm_tensors(model, f"norm.{number}", ParameterGroup.DENSE)

    mixing = (replace(each, in_mixer=True) for each in mixer.tensors(model))
    return (*norms(0, 1), *mixing, *norms(1, 3), *mlp.tensors(model), *norms(3, 4))


def model_layer(model: Model, kind: LayerKind, plan: Plan, shape: Shape) -> Layer:
    """The pieces and saved activations of one layer, as one device would run it.

    Where attention and MLP run in parallel they share the residual at the end, and the
    norm if the model has one per layer. Their reductions over tensor-parallel ranks, which
    some frameworks merge, stay two.

    Raises:
        InputError: The plan has a strategy without a rule for a part of the layer.
    """
    mixer, mlp = layer_parts(kind)
    faults = [fault for part in (mixer, mlp) for fault in part.unruled(model, plan)]
    if faults:
        raise InputError(faults)
    block = Block(model, plan, shape)
    block.context = (mixer.context, mlp.context)
    block.norm("attention_norm", "norm.0")
    mixer.add(block, kind.window)
    if model.norms_per_layer > _NORMS_BEFORE:
        block.norm("attention_post_norm", "norm.2")
    if not model.parallel_block:
        block.residual("attention_residual")
    if mlp is NO_MLP:
        return block.layer()
    block.start_mlp()
    mlp.add(block, kind.window)
    if model.norms_per_layer > _NORMS_BEFORE + 1:
        block.norm("mlp_post_norm", "norm.3")
    block.residual("mlp_residual")
    return block.layer()
