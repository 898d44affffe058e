"""What do the recipes behind a published table say that its rows do not?

A fact holds for all runs of a source, or for its runs of one model. It says what the runs did,
never how fast they were or how much they took.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from simulator.tables import cells

_BRIDGE = "Megatron-Bridge performance"
"""How the source begins whose recipes are in Megatron-Bridge."""

_VTRAIN = "vTrain shipped validation data"
"""How the source begins whose model is vTrain's own."""

_SOURCE_FACTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        r"^torchtitan .*(llama3_h100_202412|mid-2024)",
        {"plan": {"stack": {"cross_entropy": "eager"}}},
    ),
    (
        r"^vTrain .*ground_truth_single",
        {
            "cluster": {"kernels": {"sustained_clock": 1.0}},
            "plan": {
                "recompute": "none",
                "stack": {"pads_vocab": False, "fused_softmax": False, "launches_ahead": False},
            },
        },
    ),
    (r"^DGX Cloud benchmarking recipes", {"plan": {"overlap_tp": True}}),
    (
        rf"^{_BRIDGE}|^NeMo (Framework )?(long sequence )?performance",
        {"plan": {"overlap_tp": True, "grad_reduce_precision": "bf16"}},
    ),
    (r"^MLPerf Training (?!.*\bAMD)", {"plan": {"overlap_tp": True}}),
    (
        r"^MLPerf Training v3\.0 .*gpt3",
        {"plan": {"stack": {"flash_kernel": "flash-1"}}},
    ),
    (
        r"^MLPerf Training v3\.[01] .*gpt3",
        {"plan": {"stack": {"cross_entropy": "in-place"}}},
    ),
    (
        r"^NeMo Framework Launcher"
        r"|^DGX Cloud .*(nemo_megatron/README_175b|nemotron/README_340b|llama3\.1/README)",
        {"plan": {"stack": {"keeps_weight_remainders": True}}},
    ),
    (
        r"^DGX Cloud .*(nemo_megatron/README_175b|nemotron/README_340b|grok1/README_314b)",
        {"plan": {"stack": {"flash_kernel": "flash-2"}}},
    ),
    (
        r"^DGX Cloud .*(nemo_megatron/README_175b|grok1/README_314b)",
        {"plan": {"stack": {"cross_entropy": "in-place"}}},
    ),
    (
        r"^DGX Cloud .*grok1/README_314b",
        {"model": {"norms_per_layer": 2}},
    ),
    (
        r"^DGX Cloud .*nemo_megatron/README_175b",
        {"plan": {"stack": {"dropout": True}}},
    ),
    (
        r"^DGX Cloud .*paxml/README_175b",
        {"plan": {"zero_group": 128, "stack": {"selective_policy": "all-but-projections"}}},
    ),
    (
        r"^Sailor .*clariden",
        {"plan": {"precision": "tf32", "stack": {"scatter_p2p": True}}},
    ),
    (
        r"^BigScience .*gpt2-meg logs",
        {"plan": {"stack": {"keeps_gradient_copies": True, "flattens_gradients": True}}},
    ),
    (
        r"^BigScience .*ZeRO section",
        {
            "plan": {
                "offload": {"activations": "cpu"},
                "partition_activations": True,
                "stack": {"base": "deepspeed-2021", "bucket": "134 MB", "fused_elementwise": False},
            }
        },
    ),
)
"""Pattern of a source, and the fields that hold for all its runs.

torchtitan compiled its loss from 2025 on; until then its ``train.py`` says that doing so fails.

vTrain's table states times and degrees only, and its 160 rows look like sums, not like runs
(inferred). With two numbers for each of the 28 trios of hidden size, tp and microbatch (a layer,
and both ends of the model) 1F1B gives all of them within 0.11 % in the mean and 1 % at most, if a
hop of the pipeline blocks for twice its bytes at 25 GiB/s, gradients are reduced at 232 GB/s, those
of more than 1 GiB without the factor of a ring (no NVLink of an A100 is that fast), and a billion
parameters are updated in 19.5 ms. In this way ``src/predictor.py`` of the project adds up kernels
and the gaps between them, of one trace of one layer on one GPU per trio, in which ``timestamp`` of
``profiler/cupti.cpp`` flushes records between modules; but as released it would also compute all
stages but the last again, and take one microbatch where there is no pipeline. Whence what these
rows say: nothing is computed again, though their configurations say ``use_checkpoint`` (products
would run at 1.2 times the peak); a long kernel hides no launches of the next layer; and each rank
has ``vocab_size // world_size`` tokens (``src/model/gpt_model.py``), none of them padding. What
layers take that does not grow with the hidden size are 20 more passes over the attention scores
than a fused softmax makes; the table says that attention is unfused, that model asks for a fused
kernel. And one layer on one GPU, which is idle while records are flushed, feels no power limit, so
its clock is that of benchmarks, not the one that training sustains.

NVIDIA's own recipes pipeline tensor-parallel exchanges with their products: those of DGX Cloud
(the table's README says so of all its runs), of Megatron-Bridge (``CommOverlapConfig`` of
``scripts/performance/configs``, which also reduces gradients in bf16: ``grad_reduce_in_fp32``) and
NeMo before it (``ub_tp_comm_overlap`` and ``grad_sync_dtype: bf16`` of the launcher's configs), and
of its MLPerf submissions (``TP_COMM_OVERLAP`` of the systems' ``config_*.sh``).

NeMo 1 runs these models with Apex's ``distributed_fused_adam`` (``optim.name`` in the launcher's
``conf/training`` and in ``nemotron4-340b-synth.yaml`` and ``gpt3_175b_hydra.yaml`` of DGX Cloud's
recipes; those of Grok and Nemotron 15B say ``mcore_distributed_optim``), and sets its
``store_param_remainders`` for bf16 weights (``setup_optimization`` of
``megatron_base_model.py``).

DGX Cloud's recipes of GPT-3 175B, Nemotron 340B and Grok set ``NVTE_FUSED_ATTN=0`` in their
``configure.sh``, so that Transformer Engine takes FlashAttention 2; those of Nemotron 15B and
Llama set it to 1. The first and the last of the three do not ask for
``cross_entropy_loss_fusion``, which NeMo leaves off, GPT-3's trains with dropout, and Grok's layers
have the usual two norms (``gpt3_175b_hydra.yaml``, ``grok1_314b.yaml``).

MLPerf's GPT-3 of version 3.0 (June 2023, containers of April) is older than FlashAttention 2 (July
2023), whose 2.0.8 that of version 3.1 installs, and both are older than Megatron-Core's fused loss.

Paxml's 175B runs under ``Synthetic175BCkpt`` (``paxml_mod_configs.py`` beside the README), whose
policy is ``SAVE_QKV_OUT_PROJ``: the one that saves all products, which the table's notes name, is
that of the 5B model. ``configure.sh`` shards over 16 nodes of 8 GPUs, and copies beyond.

Sailor runs without mixed precision in ``nvcr.io/nvidia/pytorch:24.10`` (its ``Dockerfile``), and
NVIDIA's containers set ``TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1``, so all products are in TF32. Its
pipeline sends each tensor-parallel rank's part and gathers the parts where they arrive
(``deepspeed/pipe_engine.py``).

BigScience's first logs, of ``gpt2-meg/meg_gpt2_base_*.slurm``, are of Megatron-LM in spring 2021.
They show ``backward-params-all-reduce`` on one data-parallel rank, which is the local DDP's flat
copy of all gradients, and a peak of 22 bytes per parameter and more, 2 above what is allocated
between steps: the fp32 gradients are still there when the copy is made. Its later runs are of other
versions.

BigScience's launch line (``gpt2-meg-ds-zero/meg_ds_zero_gpt2_perf_n16.slurm``) runs DeepSpeed
0.3.17 around its example ``Megatron-LM-v1.1.5-ZeRO3``: checkpoints are partitioned over
tensor-parallel ranks and leave for the CPU, gradients are reduced in buckets of h^2 elements, and
the log lists all fusions as off."""

_PRESET_FACTS: tuple[tuple[str, dict[str, str], dict[str, Any]], ...] = (
    (
        r"^Megatron-Bridge .*container 25\.09",
        {"model": "llama3-70b", "profile": "gb200-nvl72", "precision": "mxfp8"},
        {"batch": {"micro": 1}},
    ),
    (
        r"^Megatron-Bridge .*container 25\.11",
        {"model": "gpt-oss-120b", "profile": "h100-sxm-80gb"},
        {"batch": {"micro": 1}},
    ),
    (
        r"^NeMo Framework Launcher",
        {"model": "gpt3-175b"},
        {
            "batch": {"micro": 2},
            "plan": {
                "tp": 8,
                "pp": 8,
                "vpp": 1,
                "schedule": "1f1b",
                "zero": 0,
                "stack": {"dropout": True, "keeps_weight_remainders": False},
            },
        },
    ),
    (
        r"^Sailor ",
        {"model": "opt-350m"},
        {
            "model": {"embedding_dim": 0, "final_norm": True},
            "plan": {"stack": {"dropout": False}},
        },
    ),
)
"""Pattern of a source, cells of its rows, and what the preset behind these rows says.

The launcher's table of GPT-3 175B is older than the configuration that its rows were completed
from. It stands already in the README of BigNLP-Scripts, the launcher before it was renamed, under
release 22.06 (commit 61aac95 of its history, which is kept with NVIDIA/NeMo), when distributed
Adam (22.08) and interleaved schedules (22.11) did not exist by its own changelog.
``conf/training/gpt3/175b.yaml`` of then has tp 8, pp 8, microbatches of 2, sequence parallelism,
selective recomputation, dropout of 0.1 and ``fused_adam``; 8 nodes, where the table begins, hold
one such model.

Sailor's OPT (``megatron/model/opt_model.py`` of its Megatron-DeepSpeed) has embeddings as wide as
its layers, a last norm, and no dropout.

Both runs' printed micro batches disagree with their printed gradient accumulation, and their
presets leave it at 1 (``LLAMA3_70B_GB200_FP8_MX`` and ``GPT_OSS_120B_H100_BF16`` of
``scripts/performance/configs``), as the table of container 26.02 prints it for both. The first
row prints two runs, accumulation ``1 (16)`` but micro batch 2 once: 128 sequences over 8 ranks in
16 microbatches are one each. The second one prints micro batch and accumulation of the run on B200
above it, which has no pipeline."""

_BRIDGE_DEEPSEEK_LAYOUTS: Mapping[int, list[int]] = MappingProxyType(
    {
        4: [16, 16, 16, 13],
        8: [8] * 7 + [5],
        16: [4] * 15 + [1],
        32: [1] + [2] * 30 + [0],
    }
)
"""Layers of each virtual stage of DeepSeek-V3, by their number, in Megatron-Bridge's recipes:
``layout_map`` of ``recipes/deepseek/deepseek_v3.py``, and ``Et|(tt|)*30mL`` of
``scripts/performance``. The last stage holds the module of multi-token prediction, too, which the
recipe trains (``mtp_num_layers = 1``) unless the table says otherwise."""


def recipe_facts(row: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Fields of a job that the recipe behind a row decides, one block after another."""
    source = row.get("source", "")
    if source.startswith(_BRIDGE) and cells.word(row, "model") == "deepseek-v3":
        degrees = (cells.whole_if_stated(row, degree) or 1 for degree in ("pp", "vpp"))
        stages = math.prod(degrees)
        layout = _BRIDGE_DEEPSEEK_LAYOUTS.get(stages)
        plan = {"layout": layout} if layout else {}
        yield {"model": {"multi_token_layers": 1}, "plan": plan}
    if source.startswith(_VTRAIN):
        tp, vocab = cells.whole_if_stated(row, "tp") or 1, cells.whole(row, "vocab")
        yield {"model": {"vocab": vocab // tp * tp}}
    for pattern, facts in _SOURCE_FACTS:
        if re.search(pattern, source):
            yield facts
    for pattern, preset, facts in _PRESET_FACTS:
        is_of_preset = all(cells.word(row, name) == value for name, value in preset.items())
        if is_of_preset and re.search(pattern, source):
            yield facts
