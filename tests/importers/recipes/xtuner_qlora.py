# ruff: noqa
import torch
from bitsandbytes.optim import PagedAdamW32bit
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from xtuner.model import SupervisedFinetune

pretrained_model_name_or_path = "Qwen/Qwen2.5-7B"
max_length = 2048
pack_to_max_length = True
batch_size = 1
accumulative_counts = 16
optim_type = PagedAdamW32bit

model = dict(
    type=SupervisedFinetune,
    llm=dict(
        type=AutoModelForCausalLM.from_pretrained,
        pretrained_model_name_or_path=pretrained_model_name_or_path,
        torch_dtype=torch.float16,
        quantization_config=dict(
            type=BitsAndBytesConfig,
            load_in_4bit=True,
            load_in_8bit=False,
            bnb_4bit_use_double_quant=True,
            bnb_4bit_quant_type="nf4",
        ),
    ),
    lora=dict(type=LoraConfig, r=64, lora_alpha=16, lora_dropout=0.1, bias="none"),
)
train_dataloader = dict(batch_size=batch_size)
optim_wrapper = dict(
    optimizer=dict(type=optim_type, lr=2e-4),
    clip_grad=dict(max_norm=1),
    accumulative_counts=accumulative_counts,
    dtype="float16",
)
