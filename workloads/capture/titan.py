"""The trainer of torchtitan 0.2, on random tokens: it needs no tokenizer and no data.

clustersim capture workloads/capture/titan.py --world 8 --out titan.capture -- \
    --model.name llama3 --model.flavor debugmodel --training.steps 5 --debug.seed 1
clustersim run titan.capture --profile h100-sxm-80gb
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.quantization.float8 import Float8LinearConverter
from torchtitan.models.llama3 import TransformerModelArgs, llama3_args
from torchtitan.protocols.model_converter import register_model_converter
from torchtitan.protocols.train_spec import get_train_spec, register_train_spec
from torchtitan.train import Trainer, main

LLAMA2 = {
    "llama2-13B": {"dim": 5120, "n_layers": 40, "n_heads": 40},
    "llama2-70B": {"dim": 8192, "n_layers": 80, "n_heads": 64, "n_kv_heads": 8, "multiple_of": 4096,
                   "ffn_dim_multiplier": 1.3},
}  # fmt: skip
"""Flavors of Llama 2 that torchtitan had before version 0.1."""
FLOAT8 = "float8"
"""The converter's name before release 0.2. Release 0.2.1 still looks for it before tensor
parallelism gathers float8 (``models/llama3/infra/parallelize.py``, line 75), so with the new name,
``quantize.linear.float8``, it gathers bf16."""


class RandomTokens(BaseDataLoader):
    """Batches that need no download."""

    def __init__(self, job_config: Any, **_: Any) -> None:
        training = job_config.training
        self.shape = training.local_batch_size, training.seq_len

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        while True:
            yield {"input": torch.randint(0, 1000, self.shape)}, torch.randint(0, 1000, self.shape)

    def state_dict(self) -> dict[str, Any]:
        """Nothing to resume from."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Start at the beginning."""


if __name__ == "__main__":
    register_model_converter(Float8LinearConverter, FLOAT8)
    for flavor, sizes in LLAMA2.items():
        llama3_args[flavor] = TransformerModelArgs(**sizes, vocab_size=32000)
    for name in ("llama3", "llama4", "deepseek_v3"):
        spec = get_train_spec(name)
        without_text = {"build_dataloader_fn": RandomTokens, "build_tokenizer_fn": None}
        register_train_spec(name, dataclasses.replace(spec, **without_text))
    main(Trainer)
