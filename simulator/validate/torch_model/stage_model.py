"""Which layers of the reference model does one pipeline stage hold?

The same modules as :mod:`simulator.validate.torch_model.reference_model`, of which a stage has a
run of layers, and the embedding or the head if they belong to it. One stage that holds all of it is
the whole model.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from simulator.described.model import Model
from simulator.program.grid.stage_layers import Slice
from simulator.validate.torch_model.reference_model import Layer, check_has_reference, norm_of


class StageModel(nn.Module):
    """Tokens (b, s) or hidden states (b, s, h) to hidden states or logits (b, s, v).

    Args:
        model: The whole model.
        part: What the stage holds of it.

    Raises:
        UnsupportedError: The model has a part without a reference implementation.
    """

    def __init__(self, model: Model, part: Slice) -> None:
        super().__init__()
        check_has_reference(model)
        first = part.has_embedding
        learned = first and model.positions == "learned"
        self.embedding = nn.Embedding(model.vocab, model.hidden) if first else None
        self.positions = nn.Embedding(model.max_positions, model.hidden) if learned else None
        self.layers = nn.ModuleList(
            Layer(model, has_experts=model.has_experts(index))
            for index in range(part.first, part.end)
        )
        self.norm = norm_of(model) if part.has_head else None
        self.head = nn.Linear(model.hidden, model.vocab, bias=False) if part.has_head else None
        if model.tied_embeddings and self.head is not None and self.embedding is not None:
            self.head.weight = self.embedding.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """What the next stage takes; of the last stage the logits."""
        if self.embedding is not None:
            tokens = hidden
            hidden = self.embedding(tokens)
            if self.positions is not None:
                places = torch.arange(tokens.shape[1], device=tokens.device)
                hidden = hidden + self.positions(places)
        for layer in self.layers:
            hidden = layer(hidden)
        if self.norm is None or self.head is None:
            return hidden
        return cast(Tensor, self.head(self.norm(hidden)))
