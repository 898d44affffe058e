# ruff: noqa
from torch.optim import AdamW
from transformers import AutoModelForCausalLM

from xtuner.model import SupervisedFinetune

pretrained_model_name_or_path = "meta-llama/Meta-Llama-3-8B"
use_varlen_attn = False
max_length = 2048
pack_to_max_length = True
sequence_parallel_size = 2
batch_size = 1
accumulative_counts = 16
accumulative_counts *= sequence_parallel_size
max_epochs = 3
optim_type = AdamW
lr = 2e-5
max_norm = 1

model = dict(
    type=SupervisedFinetune,
    use_varlen_attn=use_varlen_attn,
    llm=dict(
        type=AutoModelForCausalLM.from_pretrained,
        pretrained_model_name_or_path=pretrained_model_name_or_path,
        trust_remote_code=True,
    ),
)
sampler = "parallel" if sequence_parallel_size > 1 else "default"
train_dataloader = dict(batch_size=batch_size, sampler=dict(type=sampler))
optim_wrapper = dict(
    optimizer=dict(type=optim_type, lr=lr),
    clip_grad=dict(max_norm=max_norm, error_if_nonfinite=False),
    accumulative_counts=accumulative_counts,
    dtype="bfloat16",
)
custom_hooks = [dict(type="Info")]
if use_varlen_attn:
    custom_hooks += [dict(type="Other")]
