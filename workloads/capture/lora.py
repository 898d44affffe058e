"""Adapters of peft (LoRA) on a Llama of transformers, trained in a loop with accelerate.

clustersim capture workloads/capture/lora.py --world 8 --out lora.capture -- --rank 16
clustersim run lora.capture --profile h100-sxm-80gb
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from llama import SIZES, settings, tokens_of
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    """Train for some steps."""
    args = settings(rank=8, microbatches=2)
    size = SIZES[args.size]
    config = LlamaConfig(
        hidden_size=size["hidden"],
        intermediate_size=size["ffn"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        num_key_value_heads=size["kv_heads"],
        vocab_size=size["vocab"],
    )
    adapters = LoraConfig(r=args.rank, target_modules=["q_proj", "v_proj"])
    adapted = get_peft_model(LlamaForCausalLM(config).to(torch.bfloat16), adapters)
    accelerator = Accelerator(gradient_accumulation_steps=args.microbatches)
    trained = [each for each in adapted.parameters() if each.requires_grad]
    model, optimizer = accelerator.prepare(adapted, torch.optim.AdamW(trained, lr=1e-4))
    for _ in range(args.steps * args.microbatches):
        with accelerator.accumulate(model):
            tokens = tokens_of(args, accelerator.device)
            accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
