"""How many floating-point operations does training need, by which convention?

MFU counts what the model needs: six per matrix parameter and token, and attention over
the *whole* sequence, masked half included (PaLM, arXiv 2204.02311, appendix B). HFU adds
what recomputation repeats. Norms, activations and embedding lookups are left out.
"""

from __future__ import annotations

from simulator.cost.parameters import ParameterGroup, ParameterTensor, layer_kinds, layer_tensors
from simulator.spec.model import Model
from simulator.spec.plan import Recompute

_FORWARD_AND_BACKWARD = 3
"""Backward needs twice the products of forward."""


def model_flop_per_token(model: Model, seq_len: int) -> float:
    """FLOP that one token of training needs, forward and backward: 6 N + 12 l a d s."""
    forward = _layers_forward(model, seq_len) + _head_forward(model)
    return _FORWARD_AND_BACKWARD * forward


def hardware_flop_per_token(model: Model, seq_len: int, recompute: Recompute) -> float:
    """FLOP that one token of training executes, recomputation included."""
    repeated = {
        "none": 0.0,
        "selective": _attention_forward(model, seq_len),
        "full": _layers_forward(model, seq_len),
    }[recompute]
    return model_flop_per_token(model, seq_len) + repeated


def _layers_forward(model: Model, seq_len: int) -> float:
    kinds = layer_kinds(model)
    matrices = sum(
        kinds.count(kind) * _active_matrix_numel(model, layer_tensors(model, kinds.index(kind)))
        for kind in dict.fromkeys(kinds)
    )
    return 2.0 * matrices + _attention_forward(model, seq_len)


def _active_matrix_numel(model: Model, tensors: tuple[ParameterTensor, ...]) -> float:
    """Elements of the matrices that one token is multiplied with."""
    total = 0.0
    for tensor in tensors:
        if len(tensor.shape) < 2 or tensor.name.endswith((".bias", ".norm")):
            continue
        active = 1.0
        if tensor.group is ParameterGroup.EXPERT and model.experts:
            active = model.experts.top_k / model.experts.count
        total += tensor.numel * active
    return total


def _attention_forward(model: Model, seq_len: int) -> float:
    latent = model.latent_attention
    dims = 2 * model.head_dim
    if latent:
        dims = latent.qk_nope_head_dim + latent.qk_rope_head_dim + latent.v_head_dim
    return 2.0 * model.layers * model.heads * dims * seq_len


def _head_forward(model: Model) -> float:
    return 2.0 * model.vocab * model.hidden
