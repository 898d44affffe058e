"""Are the gradients that a plain backward makes one block per parameter, as autograd makes them?"""

from __future__ import annotations

from collections import Counter

import torch

from simulator.described.load import job_from_document
from simulator.program.build import build_program
from simulator.program.ir import Kind, Owner

HIDDEN, KV, FFN, VOCAB, LAYERS = 256, 128, 512, 1024, 2
MODEL = {
    "name": "two-layers", "layers": LAYERS, "hidden": HIDDEN, "heads": 4, "kv_heads": 2,
    "ffn_hidden": FFN, "vocab": VOCAB, "tied_embeddings": False,
}  # fmt: skip
FP32_BYTES = 4


def gradient_numels():
    """Elements of every block of gradients that a step's backward takes."""
    job = job_from_document(
        {
            "model": MODEL,
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 1},
            "batch": {"global": 8, "micro": 8, "seq_len": 64},
            "plan": {"stack": "torch"},
        }
    )
    return Counter(
        round(num_bytes / FP32_BYTES)
        for operation in build_program(job).operations
        if operation.kind is Kind.BACKWARD
        for owner, num_bytes in (*operation.takes, *operation.leaves)
        if owner is Owner.GRADIENTS
    )


def test_autograd_makes_one_block_per_parameter():
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
    net(torch.ones(1, 8)).sum().backward()
    gradients = [parameter.grad for parameter in net.parameters()]
    blocks = {gradient.untyped_storage().data_ptr() for gradient in gradients}
    assert len(blocks) == len(gradients)


def test_a_plain_backward_takes_a_block_for_every_parameter():
    of_a_layer = [HIDDEN * HIDDEN] * 2 + [HIDDEN * KV] * 2 + [HIDDEN * FFN] * 3 + [HIDDEN] * 2
    of_ends = [VOCAB * HIDDEN] * 2 + [HIDDEN]
    assert gradient_numels() == Counter(of_a_layer * LAYERS + of_ends)
