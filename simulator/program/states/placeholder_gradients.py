"""What do gradients that nobody reads take?

Where a product adds its weight's gradient to the kept one by itself, autograd still asks for a
tensor of the weight's shape, so that hooks run. Transformer Engine hands out one that stays, for
each shape and number format (``get_dummy_wgrad`` of ``pytorch/module/base.py``, NVIDIA/
TransformerEngine#1651, version 2.3 of 2025); before, each came from the allocator and was free
again at once. Experts of one layer share theirs. The head is Megatron-Core's own, which makes a
new one each time (``gradient_accumulation_fusion`` of ``tensor_parallel/layers.py``); where its
matrix is the embedding's, too, that one waits for the lookup's
(:class:`~simulator.program.states.gathered_memory.TiedGradient`). Router and embedding have none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from simulator.cost.kernel_time import output_bytes
from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Memory, Owner
from simulator.program.layer.layer_kinds import layer_kind, layer_tensors
from simulator.program.layer.model_ends import head_tensors
from simulator.program.layer.tensors import ParameterGroup, ParameterTensor, TensorRole
from simulator.program.states.resident import padded_vocab, tensor_parameters

_OF_ONE_PRODUCT = {"query": "inputs", "key": "inputs", "value": "inputs", "gate": "up"}
"""Matrices that share their input, by the last word of their name."""
_GROUPS = (ParameterGroup.DENSE, ParameterGroup.EXPERT)


def placeholder_gradient_bytes(job: Job, runs: Iterable[Slice]) -> float:
    """What stays allocated on one rank in place of gradients, for its runs of layers [B]."""
    if not job.choices.keeps_placeholder_gradients:
        return 0.0
    shapes = {shape for run in runs for shape in _shapes(job, run)}
    return output_bytes(job.plan.precision) * math.fsum(rows * columns for rows, columns in shapes)


def head_placeholder(job: Job) -> Memory:
    """What stands for the gradient of the output matrix while its backward runs."""
    if not job.choices.keeps_placeholder_gradients or job.model.tied_embeddings:
        return ()
    tensors = head_tensors(job.model, padded_vocab(job))
    matrices = (tensor for tensor in tensors if tensor.role is TensorRole.MATRIX)
    numel = math.fsum(tensor_parameters(job, tensor).total for tensor in matrices)
    return ((Owner.PLACEHOLDER_GRADIENTS, output_bytes(job.plan.precision) * numel),)


def _shapes(job: Job, run: Slice) -> Iterator[tuple[float, float]]:
    """Outputs and inputs of every product with weights, as one rank holds them."""
    kinds = {layer_kind(job.model, index): index for index in range(run.first, run.end)}
    for index in kinds.values():
        outputs: dict[tuple[str, float], float] = defaultdict(float)
        for tensor in layer_tensors(job.model, index):
            if tensor.role is TensorRole.MATRIX and tensor.group in _GROUPS:
                kept = tensor.shape[-1]
                split = _numel(job, tensor) / kept
                if tensor.inputs_first or tensor.name == "experts.down":
                    yield float(kept), split
                else:
                    outputs[_product(tensor), float(kept)] += split
        yield from ((rows, columns) for (_, columns), rows in outputs.items())


def _numel(job: Job, tensor: ParameterTensor) -> float:
    """Elements of the matrix, or of that of one expert, on one rank."""
    numel = tensor_parameters(job, tensor).total
    return numel / (tensor.shape[0] / job.plan.ep) if tensor.is_routed else numel


def _product(tensor: ParameterTensor) -> str:
    """Name of the product that a matrix is part of."""
    block, _, word = tensor.name.rpartition(".")
    return f"{block}.{_OF_ONE_PRODUCT.get(word, word)}"
