"""The Trainer of transformers under DDP or FSDP, on one random sequence.

clustersim capture workloads/capture/hf_trainer.py --world 8 --out trainer.capture -- --fsdp 1
clustersim run trainer.capture --profile h100-sxm-80gb
"""

from __future__ import annotations

import random

import torch
from llama import SIZES, settings
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

MODELS = ("llama", "qwen3", "gpt2", "mixtral", "qwen3_moe", "mamba")


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
    tokens = random.choices(range(size["vocab"]), k=args.seq_len)
    data = [{"input_ids": tokens, "labels": tokens}] * (1 << 16)
    # Experts are one grouped product, which torch checks without a GPU in bf16 alone.
    dtype = torch.bfloat16 if hasattr(config, "num_experts_per_tok") else torch.float32
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    Trainer(model, training, train_dataset=data).train()


if __name__ == "__main__":
    main()
