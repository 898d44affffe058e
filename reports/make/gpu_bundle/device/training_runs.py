"""Which training steps are measured, the most telling first?

None of them takes part in a fit. Sizes are chosen for 80 to 141 GiB of memory; what does not
fit is recorded as such.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Network:
    """A decoder, in the words of a job's ``model`` block.

    Attributes:
        name: What pages call it.
        layers, hidden, heads, kv_heads, ffn_hidden, vocab: Sizes.
        is_llama: RMSNorm, gated SiLU and rotary positions; else LayerNorm, GELU and learned ones.
        experts, top_k: Routed experts of every layer; 0 without.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn_hidden: int
    vocab: int
    is_llama: bool = True
    experts: int = 0
    top_k: int = 0


@dataclass(frozen=True)
class TrainingRun:
    """One configuration.

    Attributes:
        name: Of the run, and of its job's file.
        network: What is trained.
        seq_len, micro, microbatches: Tokens, sequences of a microbatch, microbatches of a step.
        precision: ``bf16``, ``fp8`` (linear layers of blocks), ``tf32`` or ``fp32``.
        has_master_weights: fp32 weights under autocast; else weights of 16 bits.
        recompute: ``none``, ``full`` or ``selective`` (core attention).
        optimizer: ``fused`` or ``foreach`` AdamW.
        is_compiled: Whether ``torch.compile`` makes the layers.
        is_grouped: Whether the products of all experts are one kernel (``torch._grouped_mm``).
        is_offloaded: Whether layers' kept activations go to pinned host memory.
        lora_rank: Of adapters of all linear layers of blocks; 0 trains all weights.
        is_transformers: Whether the network is that of Hugging Face's transformers: Llama, GPT-2,
            or Mixtral where there are experts.
        is_unfused: Whether attention keeps its scores (transformers' ``eager``).
        is_beyond: Whether it is meant to run out of memory on any device of up to 192 GiB.
        seconds: What it is expected to take, start and compilation included.
    """

    name: str
    network: Network
    seq_len: int = 2048
    micro: int = 1
    microbatches: int = 1
    precision: str = "bf16"
    has_master_weights: bool = True
    recompute: str = "none"
    optimizer: str = "fused"
    is_compiled: bool = False
    is_grouped: bool = False
    is_offloaded: bool = False
    lora_rank: int = 0
    is_transformers: bool = False
    is_unfused: bool = False
    is_beyond: bool = False
    seconds: float = 20.0

    def tiny(self) -> TrainingRun:
        """The same run on sizes that a processor trains in a fraction of a second."""
        network = replace(
            self.network, layers=2, hidden=64, heads=4,
            kv_heads=max(1, 4 * self.network.kv_heads // self.network.heads), ffn_hidden=96,
            vocab=256, experts=min(4, self.network.experts), top_k=min(2, self.network.top_k),
        )  # fmt: skip
        return replace(
            self, network=network, seq_len=32, micro=min(2, self.micro),
            microbatches=min(2, self.microbatches),
        )  # fmt: skip


GPT_01B = Network("gpt-0.1b", 12, 768, 12, 12, 3072, 50304, is_llama=False)
GPT_04B = Network("gpt-0.4b", 24, 1024, 16, 16, 4096, 50304, is_llama=False)
GPT_16B = Network("gpt-1.6b", 48, 1600, 25, 25, 6400, 50304, is_llama=False)
LLAMA_05B = Network("llama-0.5b", 24, 1024, 16, 4, 4096, 32000)
LLAMA_1B = Network("llama-1.2b", 16, 2048, 32, 8, 8192, 128256)
LLAMA_3B = Network("llama-3.6b", 28, 3072, 24, 8, 8192, 128256)
LLAMA_8B = Network("llama-8b", 32, 4096, 32, 8, 14336, 128256)
LLAMA_8B_THIN = Network("llama-8b-of-8-layers", 8, 4096, 32, 8, 14336, 128256)
MOE_8 = Network("moe-8-of-0.9b", 12, 1024, 16, 4, 2816, 32000, experts=8, top_k=2)
MOE_32 = Network("moe-32-of-0.9b", 12, 1024, 16, 4, 704, 32000, experts=32, top_k=4)

TRAINING_RUNS = (
    TrainingRun("llama-1b", LLAMA_1B, micro=4),
    TrainingRun("gpt-0.1b", GPT_01B, 1024, 16),
    TrainingRun("llama-8b-plain-adam-16-bit", LLAMA_8B, 4096, has_master_weights=False, seconds=30),
    TrainingRun("moe-8", MOE_8, micro=4),
    TrainingRun("llama-1b-compiled", LLAMA_1B, micro=4, is_compiled=True, seconds=60),
    TrainingRun("llama-1b-fp8", LLAMA_1B, micro=4, precision="fp8"),
    TrainingRun("llama-1b-recompute", LLAMA_1B, micro=8, recompute="full"),
    TrainingRun("llama-8b-beyond", LLAMA_8B, 8192, 16, is_beyond=True, seconds=15),
    TrainingRun("transformers-1b", LLAMA_1B, micro=4, is_transformers=True),
    TrainingRun("transformers-1b-recompute", LLAMA_1B, micro=8, recompute="full",
                is_transformers=True),
    TrainingRun("transformers-8b-16-bit-recompute", LLAMA_8B, has_master_weights=False,
                recompute="full", is_transformers=True, seconds=30),
    TrainingRun("transformers-0.5b-unfused", LLAMA_05B, micro=4, is_transformers=True,
                is_unfused=True),
    TrainingRun("llama-1b-accumulate-8", LLAMA_1B, micro=2, microbatches=8),
    TrainingRun("llama-8b-lora", LLAMA_8B, 4096, lora_rank=16, seconds=30),
    TrainingRun("llama-1b-offload", LLAMA_1B, micro=2, is_offloaded=True, seconds=25),
    TrainingRun("llama-1b-foreach", LLAMA_1B, micro=4, optimizer="foreach"),
    TrainingRun("llama-1b-seq32k", LLAMA_1B, 32768, recompute="full"),
    TrainingRun("llama-3b", LLAMA_3B, recompute="full", seconds=25),
    TrainingRun("gpt-0.4b-batch1", GPT_04B, 1024, 1),
    TrainingRun("gpt-0.4b-batch4", GPT_04B, 1024, 4),
    TrainingRun("gpt-0.4b-batch16", GPT_04B, 1024, 16),
    TrainingRun("gpt-0.4b-batch32", GPT_04B, 1024, 32, seconds=25),
    TrainingRun("gpt-0.4b-batch64", GPT_04B, 1024, 64, seconds=30),
    TrainingRun("gpt-0.4b-selective", GPT_04B, 1024, 8, recompute="selective"),
    TrainingRun("gpt-0.4b-fp32", GPT_04B, 1024, 4, precision="fp32"),
    TrainingRun("moe-32", MOE_32, micro=4, seconds=30),
    TrainingRun("moe-8-recompute", MOE_8, micro=8, recompute="full"),
    TrainingRun("llama-8-layers-compiled-fp8", LLAMA_8B_THIN, 4096, precision="fp8",
                is_compiled=True, seconds=60),
    TrainingRun("llama-8-layers-seq8k", LLAMA_8B_THIN, 8192),
    TrainingRun("llama-1b-seq16k", LLAMA_1B, 16384),
    TrainingRun("llama-1b-compiled-recompute", LLAMA_1B, micro=8, is_compiled=True,
                recompute="full", seconds=60),
    TrainingRun("gpt-0.1b-accumulate-16", GPT_01B, 1024, 8, microbatches=16),
)  # fmt: skip
"""In the order of their worth: the first eight differ in everything that costs most."""

LATER_RUNS = (
    TrainingRun("llama-3b-seq4k", LLAMA_3B, 4096, 2),
    TrainingRun("moe-8-grouped", MOE_8, micro=4, is_grouped=True),
    TrainingRun("transformers-0.5b-seq4k", LLAMA_05B, 4096, 4, is_transformers=True),
    TrainingRun("llama-0.5b", LLAMA_05B, 2048, 8),
    TrainingRun("moe-32-grouped", MOE_32, micro=8, is_grouped=True),
    TrainingRun("transformers-moe-8", MOE_8, micro=4, is_transformers=True),
    TrainingRun("gpt-1.6b", GPT_16B, 1024, 8),
    TrainingRun("gpt-0.4b-compiled", GPT_04B, 1024, 16, is_compiled=True, seconds=45),
    TrainingRun("llama-8b-16-bit-seq8k-recompute", LLAMA_8B, 8192, has_master_weights=False,
                recompute="full", seconds=25),
    TrainingRun("llama-3b-lora", LLAMA_3B, 2048, 4, lora_rank=16),
    TrainingRun("llama-0.5b-tf32", LLAMA_05B, 2048, 4, precision="tf32"),
    TrainingRun("llama-0.5b-fp32", LLAMA_05B, 2048, 4, precision="fp32"),
    TrainingRun("transformers-gpt-0.4b", GPT_04B, 1024, 8, is_transformers=True),
    TrainingRun("llama-8-layers-batch4", LLAMA_8B_THIN, 4096, 4),
    TrainingRun("moe-8-grouped-recompute", MOE_8, micro=16, recompute="full", is_grouped=True),
    TrainingRun("llama-0.5b-micro1", LLAMA_05B, 1024, 1),
    TrainingRun("transformers-1b-accumulate-8", LLAMA_1B, 1024, 1, microbatches=8,
                is_transformers=True),
    TrainingRun("llama-8b-master", LLAMA_8B, 2048, seconds=15),
    TrainingRun("llama-8-layers-compiled", LLAMA_8B_THIN, 4096, 2, is_compiled=True, seconds=45),
    TrainingRun("llama-8-layers-fp8", LLAMA_8B_THIN, 4096, 2, precision="fp8"),
    TrainingRun("llama-3b-offload", LLAMA_3B, 4096, is_offloaded=True, seconds=25),
    TrainingRun("transformers-3b-recompute", LLAMA_3B, 4096, 2, recompute="full",
                is_transformers=True),
    TrainingRun("gpt-0.1b-batch64", GPT_01B, 1024, 64),
    TrainingRun("llama-1b-micro16-seq512", LLAMA_1B, 512, 16),
    TrainingRun("gpt-1.6b-recompute", GPT_16B, 1024, 16, recompute="full"),
    TrainingRun("llama-8b-thin-foreach-accumulate", LLAMA_8B_THIN, 2048, microbatches=4,
                optimizer="foreach"),
    TrainingRun("llama-0.5b-selective", LLAMA_05B, 4096, 4, recompute="selective"),
    TrainingRun("transformers-8b-16-bit", LLAMA_8B, 1024, 2, has_master_weights=False,
                is_transformers=True),
)  # fmt: skip
"""What a second device was asked for: none of them had been run when the first was described."""

ALL_RUNS = (*TRAINING_RUNS, *LATER_RUNS)
