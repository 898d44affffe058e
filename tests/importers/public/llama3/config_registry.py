# Settings of pytorch/torchtitan torchtitan/models/llama3/config_registry.py
from . import model_registry
from .somewhere import *


def llama3_8b() -> Trainer.Config:
    """Nothing but settings."""
    return Trainer.Config(
        hf_assets_path="./assets/hf",
        profiling=ProfilingConfig(enable_profiling=True, profile_freq=100),
        model_spec=model_registry("8B"),
        optimizer=OptimizersContainer.Config(lr=3e-4),
        training=TrainingConfig(local_batch_size=1, seq_len=8192, steps=1000),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        checkpoint=CheckpointManager.Config(interval=500),
        activation_checkpoint=ActivationCheckpointConfig(mode="selective"),
        validator=Validator.Config(freq=500, steps=1200),
    )


def llama3_405b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("405B"),
        model_converters=ModelConvertersContainer.Config(
            converters=[
                Float8LinearConverter.Config(
                    enable_fsdp_float8_all_gather=True,
                    precompute_float8_dynamic_scale_for_fsdp=True,
                    filter_fqns=["output"],
                ),
            ],
        ),
        optimizer=OptimizersContainer.Config(lr=8e-5),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=600),
        training=TrainingConfig(local_batch_size=2, seq_len=8192, steps=3000),
        parallelism=ParallelismConfig(
            tensor_parallel_degree=8,
            enable_async_tensor_parallel=True,
        ),
        activation_checkpoint=ActivationCheckpointConfig(mode="full"),
        compile=CompileConfig(enable=True),
    )


def llama3_8b_in_backward() -> Trainer.Config:
    config = llama3_8b()
    config.optimizer = OptimizersInBackwardContainer.Config(lr=8e-4)
    config.training.seq_len = 4096
    return config


def sft() -> Trainer.Config:
    model_spec = model_registry("8B")
    for layer in model_spec.model.layers:
        layer.attention.mask_type = "block_causal"
    return Trainer.Config(model_spec=model_spec)
