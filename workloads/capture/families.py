"""Networks of other kinds, each as its library builds it, under FSDP2.

clustersim capture workloads/capture/families.py --world 8 --out families.capture -- --model mamba2
clustersim run families.capture --profile h100-sxm-80gb
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import transformers
from llama import settings, this_gpu
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

Inputs = dict[str, Tensor]
Made = tuple[nn.Module, Callable[[int, int], Inputs]]
"""A network, and its inputs for so many sequences or pictures of so many tokens."""


def pair(tokens: int, vocab: int, batch: int) -> Inputs:
    """Tokens that are their own labels."""
    ids = torch.randint(0, vocab, (batch, tokens))
    return {"input_ids": ids, "labels": ids}


def text(name: str, **sizes: Any) -> Made:
    """A network of transformers over text, with the sizes of its configuration unless given."""
    config = transformers.AutoConfig.for_model(name, **sizes)
    known = transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForCausalLM
    model = known[not config.is_encoder_decoder].from_config(config)
    return model, lambda batch, tokens: pair(tokens, config.vocab_size, batch)


def pictures(name: str, side: int, **sizes: Any) -> Made:
    """A classifier of pictures."""
    config = transformers.AutoConfig.for_model(name, **sizes)

    def inputs(batch: int, _: int) -> Inputs:
        labels = torch.randint(0, config.num_labels, (batch,))
        return {"pixel_values": torch.randn(batch, 3, side, side), "labels": labels}

    return transformers.AutoModelForImageClassification.from_config(config), inputs


def lora() -> Made:
    """Adapters on the attention of Llama 2 7B, whose own weights are frozen."""
    from peft import LoraConfig, get_peft_model

    model, inputs = text("llama")
    adapted = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))
    return adapted, inputs


def llava() -> Made:
    """LLaVA 1.5: pictures of 576 patches in front of text."""
    config = transformers.LlavaConfig()

    def inputs(batch: int, tokens: int) -> Inputs:
        side = config.vision_config.image_size
        ids = torch.randint(0, config.image_token_id, (batch, tokens))
        ids[:, : (side // config.vision_config.patch_size) ** 2] = config.image_token_id
        return {
            "input_ids": ids,
            "labels": ids,
            "pixel_values": torch.randn(batch, 3, side, side),
        }

    return transformers.LlavaForConditionalGeneration(config), inputs


def whisper() -> Made:
    """Whisper large v3: 30 s of sound, and the text of it."""
    config = transformers.WhisperConfig(
        d_model=1280, encoder_layers=32, decoder_layers=32, encoder_attention_heads=20,
        decoder_attention_heads=20, encoder_ffn_dim=5120, decoder_ffn_dim=5120, num_mel_bins=128,
        vocab_size=51866,
    )  # fmt: skip

    def inputs(batch: int, tokens: int) -> Inputs:
        labels = torch.randint(
            0, config.vocab_size, (batch, min(tokens, config.max_target_positions))
        )
        return {"input_features": torch.randn(batch, config.num_mel_bins, 3000), "labels": labels}

    return transformers.WhisperForConditionalGeneration(config), inputs


class Denoiser(nn.Module):
    """Stable Diffusion 3 medium over latent pictures of 128 x 128: how much of them is noise?"""

    def __init__(self) -> None:
        from diffusers import SD3Transformer2DModel

        super().__init__()
        self.net = SD3Transformer2DModel(
            num_layers=24, num_attention_heads=24, caption_projection_dim=1536,
            pos_embed_max_size=192,
        )  # fmt: skip

    def forward(self, noise: Tensor, **known: Tensor) -> Tensor:
        """The mean squared error of the predicted noise."""
        return functional.mse_loss(self.net(**known).sample.float(), noise)


def diffusion() -> Made:
    """A diffusion transformer, told of the text by 154 encoded tokens."""

    def inputs(batch: int, _: int) -> Inputs:
        noisy, noise = torch.randn(2, batch, 16, 128, 128).unbind()
        return {
            "hidden_states": noisy,
            "noise": noise,
            "timestep": torch.rand(batch),
            "encoder_hidden_states": torch.randn(batch, 154, 4096),
            "pooled_projections": torch.randn(batch, 2048),
        }

    return Denoiser(), inputs


MODELS: dict[str, Callable[[], Made]] = {
    "t5": lambda: text(
        "t5", d_model=1024, d_ff=16384, num_heads=32, d_kv=128, num_layers=24,
        decoder_start_token_id=0,
    ),
    "vit": lambda: pictures(
        "vit", 224, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
        intermediate_size=4096, num_labels=1000,
    ),
    "mamba2": lambda: text("mamba2"),
    "jamba": lambda: text("jamba"),
    "qwen3_next": lambda: text("qwen3_next"),
    "lora": lora,
    "llava": llava,
    "whisper": whisper,
    "diffusion": diffusion,
    "resnet": lambda: pictures("resnet", 224, num_labels=1000),
}  # fmt: skip


def layers_of(model: nn.Module) -> Iterator[nn.Module]:
    """Members of lists of layers, but not of lists within them."""
    for part in model.children():
        yield from part if isinstance(part, nn.ModuleList) else layers_of(part)


def sharded(model: nn.Module) -> nn.Module:
    """Every layer apart, and the rest."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in layers_of(model):
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def main() -> None:
    """Train for some steps."""
    args = settings(model=tuple(MODELS))
    dist.init_process_group("nccl")
    device = this_gpu()
    made, inputs_of = MODELS[args.model]()
    model = sharded(made.to(device))
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    for _ in range(args.steps):
        inputs = {k: v.to(device) for k, v in inputs_of(args.batch, args.seq_len).items()}
        found = model(**inputs)
        (found if isinstance(found, Tensor) else found.loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
