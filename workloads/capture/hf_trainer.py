"""The Trainer of transformers, under DDP or FSDP, with random tokens and weights.

clustersim capture workloads/capture/hf_trainer.py --world 8 --out trainer.capture -- --fsdp 1
clustersim run trainer.capture --profile h100-sxm-80gb
"""

from __future__ import annotations

import torch
from llama import SIZES, settings
from torch import Tensor
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

MODELS = ("llama", "qwen3", "gpt2", "mixtral", "qwen3_moe", "mamba")


class RandomTokens(Dataset):
    """Sequences that need no download."""

    def __init__(self, seq_len: int, vocab: int) -> None:
        self.seq_len, self.vocab = seq_len, vocab

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, _: int) -> dict[str, Tensor]:
        tokens = torch.randint(0, self.vocab, (self.seq_len,))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train for some steps."""
    args = settings(model=MODELS, fsdp=0, microbatches=1)
    size = SIZES[args.size]
    config = AutoConfig.for_model(
        args.model,
        hidden_size=size["hidden"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        vocab_size=size["vocab"],
    )
    if hasattr(config, "num_key_value_heads"):
        config.num_key_value_heads = size["kv_heads"]
        config.intermediate_size = size["ffn"]
    training = TrainingArguments(
        output_dir="checkpoints",
        per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=args.microbatches,
        max_steps=args.steps,
        bf16=True,
        report_to=[],
        save_strategy="no",
        fsdp="full_shard auto_wrap" if args.fsdp else "",
    )
    data = RandomTokens(args.seq_len, size["vocab"])
    Trainer(AutoModelForCausalLM.from_config(config), training, train_dataset=data).train()


if __name__ == "__main__":
    main()
