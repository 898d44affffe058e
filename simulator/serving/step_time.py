"""How long does a step take: kernels of a batch on a rank, exchanges, and the host?

Costs that depend only on counts of requests and tokens are kept; attention depends on contexts
and is computed for every step. Large numbers of tokens are rounded by less than 2 %.

Stages of a pipeline each work on a share of the batch, so a step passes all layers with that
share. Groups of attention data parallelism are taken as evenly loaded.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from simulator.cost.host import TO_HOST, copy_s
from simulator.cost.rates import sustained_share
from simulator.described.job import Cluster
from simulator.serving.defaults import engine_defaults, has_own_all_reduce
from simulator.serving.described import Deployment
from simulator.serving.kernels.cache_attention import decode_s, latent_decode_s, prefill_s
from simulator.serving.kernels.exchange import all_gather_s, all_reduce_s, all_to_all_s
from simulator.serving.kernels.parameters import (
    expert_fit,
    kernel_fits,
    peak_flop_per_s,
    product_fit,
    relative_rate,
    version_key,
)
from simulator.serving.kernels.products import product_s
from simulator.serving.kernels.routed_experts import experts_s, loads_by_chance
from simulator.serving.schedulers.scheduler import Batch
from simulator.serving.shapes import (
    LayerShape,
    Product,
    cache_bytes_per_token,
    cache_element_bytes,
    kv_heads_per_rank,
    layer_shapes,
)

_SMALL_KERNELS = 5
"""Norms, rotary positions, cache writes and activations of a layer."""
_SMALL_PASSES = 12.0
"""Times that these read or write the residual stream's width (counted)."""
_KERNELS_PER_LAYER, _KERNELS_OF_EXPERTS, _KERNELS_OF_LATENT = 12, 12, 10
"""Launches of a layer without graphs, and how many more its experts and its latent attention
take (counted in vLLM's Llama and DeepSeek, fused kernels included)."""
_LAUNCHES_BESIDE_GRAPHS = 3
"""Of a layer whose graphs leave attention out: a graph, the cache's write and attention (vLLM's
documentation, design of CUDA graphs: pieces between attention)."""
_STREAM_EFFICIENCY = 0.8
"""Share of the memory bandwidth of small kernels (assumed)."""
_SAMPLING_S, _SAMPLING_PASSES = 3e-5, 4.0
"""Least time of sampling and how often it passes over the 32-bit logits (assumed)."""
_ADAPTER_PAIR_S = 2e-3 / (7 * 32)
_EXACT_TOKENS, _ROUNDING = 256, 64


class StepSeconds(NamedTuple):
    """Time of a step on the device and on the host [s]."""

    device_s: float
    host_s: float


class _Fixed(NamedTuple):
    """What a step takes whatever its contexts are [s], and the tokens of its products."""

    tokens: int
    layers_s: float
    sends_s: float
    drafts_s: float
    host_s: float


class StepTime:
    """Step times of one replica.

    Args:
        deployment: What runs where.
        without: Source of measured runs that tell nothing about the kernels.
    """

    def __init__(self, deployment: Deployment, *, without: str = "") -> None:
        self._deployment = deployment
        self._profile = deployment.profile
        self._model = deployment.model
        self._fits = kernel_fits(
            deployment.profile.name, deployment.engine, deployment.version, without
        )
        self._relative_rate = relative_rate(self._fits, deployment.profile)
        self._shapes = layer_shapes(deployment)
        defaults = engine_defaults(deployment)
        self._host = defaults.host
        self._has_own_all_reduce = has_own_all_reduce(deployment)
        self._graphs = deployment.graphs and defaults.captures_graphs
        device = deployment.profile.device
        self._bandwidth = device.memory_bandwidth_bytes_per_s
        self._sm_count = device.sm_count
        self._linear: dict[int, float] = {}
        self._ends: dict[int, float] = {}
        self._answers: dict[int, _Fixed] = {}
        self._drafts = deployment.speculation
        self._head_bytes = 2 * self._model.head_dim * cache_element_bytes(deployment)
        self._heads = -(-self._model.heads // deployment.tp)
        self._peak = peak_flop_per_s(self._profile, "bf16")
        self._launches = self._model.layers * (
            _KERNELS_PER_LAYER
            + (_KERNELS_OF_EXPERTS if self._model.experts else 0)
            + (_KERNELS_OF_LATENT if self._model.latent_attention else 0)
        )
        ranges = deployment.graph_batches or defaults.graph_batches
        self._graph_sizes = [n for low, high, by in ranges for n in range(low, high + 1, by)]
        self._graphs_prompts = self._graphs and defaults.graphs_prompts
        self._windows = [(s.window, s.layers) for s in self._shapes]
        self._checked = 1 + (self._drafts.draft_tokens if self._drafts else 0)
        self._share = deployment.pp * deployment.attention_dp
        self._read_heads = self._heads_that_are_read()

    def __call__(self, batch: Batch) -> StepSeconds:
        """Time of a batch's step, on the device and on the host."""
        fixed = self._with_prompts(batch) if batch.chunks else self._answers_only(batch.decodes)
        device_s = fixed.layers_s + self._decode_attention_s(batch)
        if batch.chunks:
            device_s += self._chunks_attention_s(batch)
        device_s += fixed.sends_s
        device_s += fixed.drafts_s
        if batch.adapters:
            device_s += self._adapters_s(batch, fixed.tokens)
        if batch.swapped_blocks:
            device_s += self._swap_s(batch.swapped_blocks)
        if batch.chunks or not self._has_graph(batch.decodes):
            # Kernels that are launched one by one run no faster than they are launched.
            launches = self._launches_of(fixed.tokens)
            device_s = max(device_s, launches * self._host.launch_s)
        return StepSeconds(device_s, fixed.host_s)

    def _has_graph(self, decodes: int) -> bool:
        """Whether a batch of answers is no larger than the largest graph of its engine.

        Source: vLLM, docs/design/cuda_graphs.md, and SGLang, cuda_graph_runner.py, ``can_run``:
        larger batches run without one.
        """
        own = -(-decodes // self._deployment.attention_dp)
        return self._graphs and (not self._graph_sizes or own <= self._graph_sizes[-1])

    def _launches_of(self, tokens: int) -> int:
        """Kernels and graphs that a step with so many tokens launches one by one."""
        if self._graphs_prompts and tokens <= self._graph_sizes[-1]:
            return _LAUNCHES_BESIDE_GRAPHS * self._model.layers
        return self._launches

    def _answers_only(self, decodes: int) -> _Fixed:
        """Costs of a batch without prompts, which is run as the next larger graph."""
        found = self._answers.get(decodes)
        if found is None:
            rows = self._padded(decodes) * self._checked
            found = self._answers[decodes] = self._fixed(rows, rows, decodes, decodes)
        return found

    def _with_prompts(self, batch: Batch) -> _Fixed:
        """Costs of a batch with prompts, which no graph has."""
        rows = batch.decodes * self._checked
        tokens = rows + sum(chunk.tokens for chunk in batch.chunks)
        requests = batch.decodes + len(batch.chunks)
        return self._fixed(tokens, rows + len(batch.started), batch.decodes, requests)

    def _fixed(self, tokens: int, rows: int, decodes: int, requests: int) -> _Fixed:
        return _Fixed(
            tokens,
            self._layers_s(tokens) + self._ends_s(rows),
            self._sends_s(tokens),
            self._drafting_s(decodes),
            self._host.step_s + requests * self._host.request_s,
        )

    def _padded(self, decodes: int) -> int:
        """Requests of the graph that a batch of answers is run with, in every group."""
        groups = self._deployment.attention_dp
        own = -(-decodes // groups)
        place = bisect_left(self._graph_sizes, own)
        return groups * self._graph_sizes[place] if place < len(self._graph_sizes) else decodes

    def _layers_s(self, tokens: int) -> float:
        key = _rounded(tokens)
        found = self._linear.get(key)
        if found is None:
            found = self._linear[key] = math.fsum(
                s.layers * self._layer_s(s, key) for s in self._shapes
            )
        return found

    def _layer_s(self, shape: LayerShape, tokens: int) -> float:
        """All of a layer but attention itself, for the tokens of the whole replica."""
        d = self._deployment
        own = max(1, math.ceil(tokens / (d.pp * d.attention_dp)))
        stage = max(1, math.ceil(tokens / d.pp))
        model, network = self._model, self._profile.network
        seconds = math.fsum(self._product_s(p, own) for p in shape.attention)
        seconds += math.fsum(self._product_s(p, own) for p in shape.mlp)
        small_bytes = _SMALL_PASSES * 2.0 * own * model.hidden
        seconds += _SMALL_KERNELS * self._fits.small_kernel_s
        seconds += small_bytes / (_STREAM_EFFICIENCY * self._bandwidth)
        message_bytes = 2.0 * own * model.hidden
        reduced_s = all_reduce_s(
            self._fits.all_reduce, network, d.tp, message_bytes, has_own=self._has_own_all_reduce
        )
        seconds += 2 * self._fits.exchange_times * reduced_s
        if shape.has_experts:
            seconds += self._routed_s(stage)
        return seconds

    def _product_s(self, product: Product, tokens: int) -> float:
        return product_s(
            product_fit(self._fits, product.weight_format),
            product.weight_format,
            tokens,
            product.n,
            product.k,
            peak_flop_per_s=self._product_peak(product.weight_format),
            bandwidth_bytes_per_s=self._bandwidth,
            sm_count=self._sm_count,
            relative_rate=self._relative_rate,
        )

    def _product_peak(self, weight_format: str) -> float:
        """Dense rate of products [FLOP/s]; those of 16 bits draw the power limit while they last.

        The clock is that of long training. TensorRT-LLM's runs say the same of H100 and A100
        (1 / 1.35 and 1 / 1.14 for 0.74 and 0.89), and that fewer bits stay below the limit.
        """
        peak = peak_flop_per_s(self._profile, weight_format)
        is_limited = weight_format in ("bf16", "fp16")
        return peak * sustained_share(self._profile, "bf16") if is_limited else peak

    def _routed_s(self, tokens: int) -> float:
        """Routed experts and, with attention data parallelism, the way to them and back."""
        d, experts = self._deployment, self._model.experts
        assert experts is not None
        form = "fp8_block" if d.weights == "fp8" and self._model.latent_attention else d.weights
        ranks = d.tp * d.attention_dp
        seconds = experts_s(
            expert_fit(self._fits, form),
            form,
            loads_by_chance(
                tokens, experts=experts.count, top_k=experts.top_k, ranks=d.ep,
                groups=experts.groups, picked=experts.picked_groups,
            ),
            hidden=self._model.hidden,
            ffn_hidden=-(-experts.ffn_hidden // (ranks // d.ep)),
            matrices=3 if self._model.gated_mlp else 2,
            peak_flop_per_s=peak_flop_per_s(self._profile, form),
            bandwidth_bytes_per_s=self._bandwidth,
            relative_rate=self._relative_rate,
        )  # fmt: skip
        if d.attention_dp > 1:
            seconds += self._fits.exchange_times * self._dispatch_s(tokens, ranks)
        return seconds

    def _dispatch_s(self, tokens: int, ranks: int) -> float:
        """Tokens reach the experts of other ranks, and their results come back."""
        network, model, experts = self._profile.network, self._model, self._model.experts
        assert experts is not None
        copies = min(experts.top_k, ranks)
        per_rank = tokens / ranks * model.hidden
        if ranks <= network.scale_up.gpus:
            gathered_bytes = tokens * model.hidden * 3.0
            return min(
                all_gather_s(network, ranks, gathered_bytes),
                2 * all_to_all_s(network, ranks, 1.5 * copies * per_rank),
            )
        return 2 * all_to_all_s(network, ranks, 1.5 * copies * per_rank)

    def _ends_s(self, rows: int) -> float:
        """Logits of the rows that get a token, gathered over ranks, and sampling."""
        key = _rounded(rows)
        found = self._ends.get(key)
        if found is None:
            found = self._ends[key] = self._compute_ends_s(key)
        return found

    def _compute_ends_s(self, rows: int) -> float:
        d, model = self._deployment, self._model
        if not rows:
            return 0.0
        own = math.ceil(rows / (d.pp * d.attention_dp))
        head = Product(-(-model.vocab // d.tp), model.hidden, "bf16")
        seconds = d.pp * (self._product_s(head, own) + _SAMPLING_S)
        logits_bytes = 2.0 * own * model.vocab
        gathered_s = all_gather_s(self._profile.network, d.tp, logits_bytes)
        seconds += d.pp * self._fits.exchange_times * gathered_s
        passed_bytes = _SAMPLING_PASSES * 4.0 * own * model.vocab
        return seconds + d.pp * passed_bytes / (_STREAM_EFFICIENCY * self._bandwidth)

    def _decode_attention_s(self, batch: Batch) -> float:
        if not batch.decodes:
            return 0.0
        requests, context = batch.decodes / self._share, batch.decode_context / self._share
        seconds = 0.0
        for window, count in self._windows:
            seen = min(context, requests * window) if window else context
            seconds += count * self._one_decode_s(requests, seen)
        return seconds

    def _one_decode_s(self, requests: float, context: float) -> float:
        latent = self._model.latent_attention
        if latent is None:
            return decode_s(
                self._fits.decode,
                requests,
                context,
                kv_heads=self._read_heads,
                head_bytes=self._head_bytes,
                bandwidth_bytes_per_s=self._bandwidth,
                sm_count=self._sm_count,
            )
        width = latent.kv_lora_rank + latent.qk_rope_head_dim
        return latent_decode_s(
            self._fits.latent,
            requests,
            context,
            heads=self._heads * self._checked,
            token_bytes=width * cache_element_bytes(self._deployment),
            latent_dim=width,
            value_dim=latent.kv_lora_rank,
            peak_flop_per_s=self._peak,
            bandwidth_bytes_per_s=self._bandwidth,
        )

    def _heads_that_are_read(self) -> int:
        """Heads of keys that one token's attention reads.

        TensorRT-LLM before 0.11 reads them once for every query head where the queries of a group
        are no power of two, as in Falcon-180B: its XQA kernels know no others (its documentation,
        gpt-attention.md; runs of Falcon-180B became three times as fast with 0.11).
        """
        d, kv_heads = self._deployment, kv_heads_per_rank(self._deployment)
        group = self._model.heads // self._model.kv_heads
        is_old = d.engine == "tensorrt-llm" and d.version and version_key(d.version) < (0, 11)
        return self._heads if is_old and group & (group - 1) else kv_heads

    def _chunks_attention_s(self, batch: Batch) -> float:
        seconds = 0.0
        for window, layers in self._windows:
            most = window or float("inf")
            seen = [(chunk.tokens, min(chunk.context, most)) for chunk in batch.chunks]
            seconds += layers * self._one_launch_s(seen)
        return seconds / self._share

    def _one_launch_s(self, chunks: Sequence[tuple[int, float]]) -> float:
        latent = self._model.latent_attention
        kv_heads, head_dim = kv_heads_per_rank(self._deployment), self._model.head_dim
        head_bytes = self._head_bytes
        if latent is not None:
            kv_heads, head_dim = self._heads, (latent.qk_head_dim + latent.v_head_dim) // 2
            head_bytes = 2.0 * (latent.qk_head_dim + latent.v_head_dim)
        return prefill_s(
            self._fits.prefill,
            chunks,
            heads=self._heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            head_bytes=head_bytes,
            peak_flop_per_s=self._peak,
            bandwidth_bytes_per_s=self._bandwidth,
            sm_count=self._sm_count,
        )

    def _swap_s(self, blocks: int) -> float:
        """Blocks move to the host or back: a copy for the keys and one for the values of a layer.

        Source: vLLM 0.6.0, ``csrc/cache_kernels.cu``, ``swap_blocks``, on the model's own stream.
        Kwon et al. (arXiv 2309.06180), section 7.3: small copies do not fill PCIe.
        """
        d = self._deployment
        block_tokens = d.block_tokens or engine_defaults(d).block_tokens
        parts = self._model.layers / d.pp * (1 if self._model.latent_attention else 2)
        part_bytes = block_tokens * cache_bytes_per_token(d) / parts
        cluster = Cluster(profile=self._profile, gpus=d.ranks)
        return blocks / d.attention_dp * parts * copy_s(cluster, TO_HOST, part_bytes)

    def _sends_s(self, tokens: int) -> float:
        d = self._deployment
        if d.pp == 1:
            return 0.0
        up = self._profile.network.scale_up
        message_bytes = 2.0 * tokens / d.pp * self._model.hidden
        return (d.pp - 1) * (up.launch_s + message_bytes / up.bandwidth_bytes_per_s)

    def _drafting_s(self, decodes: int) -> float:
        """Drafts one after another, each a few layers and the head."""
        if self._drafts is None or not decodes:
            return 0.0
        share = self._drafts.draft_layers / self._model.layers
        one_s = share * self._layers_s(decodes) + self._ends_s(decodes)
        return self._drafts.draft_tokens * one_s

    def _adapters_s(self, batch: Batch, tokens: int) -> float:
        """Two thin products for each product: adapters are read, activations pass through.

        Source: Punica (arXiv 2310.18547), section 4, traffic of SGMV; its least time from the
        abstract: 2 ms per token for seven products in each of 32 layers.
        """
        rank = self._deployment.adapters.rank if self._deployment.adapters else 0
        adapted = tokens * batch.adapted_share / self._deployment.pp
        seconds = 0.0
        for shape in self._shapes:
            for product in (*shape.attention, *shape.mlp):
                widths = product.n + product.k
                moved_bytes = 2.0 * (batch.adapters * rank * widths + adapted * (widths + 2 * rank))
                moved_s = moved_bytes / (_STREAM_EFFICIENCY * self._bandwidth)
                seconds += shape.layers * max(_ADAPTER_PAIR_S, moved_s)
        return seconds


def _rounded(tokens: int) -> int:
    if tokens <= _EXACT_TOKENS:
        return tokens
    unit = max(1, tokens // _ROUNDING)
    return -(-tokens // unit) * unit
