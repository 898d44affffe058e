"""Which network is trained?

Only numbers that decide cost: widths, heads, experts. Training hyperparameters that
cost neither time nor memory are left out on purpose. Shape letters used across the
project: b microbatch, s sequence, h hidden, a heads, k kv heads, d head size, f MLP
width, v vocabulary, l layers, e experts.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from simulator.described.base import (
    Count,
    CountOrZero,
    ExpertCount,
    ExpertCountOrZero,
    Flag,
    Layers,
    LayersOrZero,
    Ratio,
    Spec,
    Width,
    WidthOrZero,
)

Activation = Literal["gelu", "gelu-new", "silu", "relu", "squared-relu"]
Positions = Literal["rotary", "learned", "alibi", "none"]
Normalisation = Literal["rmsnorm", "layernorm"]


class LatentAttention(Spec):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    q_lora_rank: WidthOrZero
    """Width of the compressed query; 0 projects queries directly."""
    kv_lora_rank: Width
    """Width of the compressed key and value."""
    qk_nope_head_dim: Width
    """Query/key size per head without position."""
    qk_rope_head_dim: Width
    """Query/key size per head with rotary position, shared by all key heads."""
    v_head_dim: Width
    """Value size per head."""

    @property
    def qk_head_dim(self) -> int:
        """Query/key size per head, the part with position included."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


class Experts(Spec):
    """The mixture-of-experts MLP that replaces the dense one."""

    count: ExpertCount
    """Routed experts per layer."""
    top_k: ExpertCount
    """Routed experts that each token visits."""
    ffn_hidden: Width
    """MLP width of one routed expert."""
    groups: ExpertCount = 1
    """Equal groups of experts that the router picks among first (DeepSeek's ``n_group``): they
    decide what ``ep_dispatch: hierarchical`` sends between nodes, and how far the load of a
    served rank's experts spreads by chance; nothing else."""
    top_groups: ExpertCountOrZero = 0
    """Groups that each token's experts are in (DeepSeek's ``topk_group``); 0 is all."""
    shared_ffn_hidden: WidthOrZero = 0
    """MLP width of all shared experts together; 0 is none."""
    shared_gate: Flag = False
    """Whether a learned scalar gates the shared expert (Qwen2-MoE)."""
    first_dense_layers: LayersOrZero = 0
    """Leading layers that keep a dense MLP of width ``Model.ffn_hidden``."""
    every: Layers = 1
    """Every n-th layer is an expert layer; the others keep the dense MLP."""
    router_bias: Flag = False
    """Whether the router adds a bias per expert (DeepSeek-V3's balancing term)."""
    capacity_factor: Ratio | None = None
    """Tokens per expert over the mean, dropped and padded beyond; None is dropless."""

    @field_validator("top_k")
    @classmethod
    def _visits_at_most_all_experts(cls, top_k: int, info: ValidationInfo) -> int:
        count = info.data.get("count", top_k)
        if top_k > count:
            raise ValueError(f"a token cannot use more than all {count} experts")
        return top_k

    @property
    def picked_groups(self) -> int:
        """Groups that each token's experts are in."""
        return self.top_groups or self.groups

    @field_validator("groups")
    @classmethod
    def _divide_the_experts(cls, groups: int, info: ValidationInfo) -> int:
        count = info.data.get("count", groups)
        if count % groups:
            raise ValueError(f"must divide the {count} experts")
        return groups

    @field_validator("top_groups")
    @classmethod
    def _hold_the_choices_of_a_token(cls, top_groups: int, info: ValidationInfo) -> int:
        groups, count, top_k = (info.data.get(name, 1) for name in ("groups", "count", "top_k"))
        if top_groups > groups:
            raise ValueError(f"a token cannot use more than all {groups} groups")
        if top_groups and top_groups * (count // groups) < top_k:
            raise ValueError(
                f"{top_groups} of {groups} groups hold {top_groups * (count // groups)} of {count} "
                f"experts, fewer than the {top_k} that a token uses"
            )
        return top_groups

    @field_validator("shared_gate")
    @classmethod
    def _gates_a_shared_expert(cls, shared_gate: bool, info: ValidationInfo) -> bool:
        if shared_gate and info.data.get("shared_ffn_hidden") == 0:
            raise ValueError("there is no shared expert to gate; give shared_ffn_hidden")
        return shared_gate


class StateSpace(Spec):
    """Mamba-2 layers, with a state where attention has keys (arXiv 2405.21060, section 7)."""

    state: Width = 128
    """Numbers that each channel of a head keeps of all tokens before."""
    head_dim: Width = 64
    """Channels of one head."""
    expand: Width = 2
    """Width of the layer inside, over ``hidden``."""
    groups: Width = 1
    """Equal groups of heads that read and write their state with the same B and C."""
    conv_kernel: Width = 4
    """Tokens that the convolution before the scan sees."""
    chunk: Width = 256
    """Tokens that the scan multiplies at once."""
    attention_layers: tuple[LayersOrZero, ...] = ()
    """Layers, counted from 0, that have attention instead (hybrids)."""

    def width(self, hidden: int) -> int:
        """Channels of all heads."""
        return self.expand * hidden

    def heads(self, hidden: int) -> int:
        """Heads of a layer."""
        return self.width(hidden) // self.head_dim


_Resolved = Annotated[WidthOrZero, Field(validate_default=True)]


class Model(Spec):
    """A transformer, as numbers."""

    name: str = "unnamed"
    """What titles and tables call it."""
    layers: Layers
    """Transformer layers."""
    hidden: Width
    """Width of the residual stream."""
    ssm: StateSpace | None = None
    """Mamba-2 layers in place of attention; by default all layers have attention."""
    heads: Width
    """Query heads; of no effect where no layer has attention."""
    latent_attention: LatentAttention | None = None
    """Compressed keys and values; by default attention is the usual one."""
    kv_heads: _Resolved = 0
    """Heads of keys and values; left out or 0, as many as ``heads``."""
    head_dim: _Resolved = 0
    """Size of one head; left out or 0, ``hidden / heads``, or the query/key size of
    latent attention."""
    ffn_hidden: WidthOrZero
    """MLP width of a dense layer; of no effect where every layer has experts. 0 is no MLP
    (Mamba)."""
    vocab: Width
    """Entries of the token embedding before any padding."""
    embedding_dim: WidthOrZero = 0
    """Width of the token embedding where it is projected to and from ``hidden``
    (OPT-350M); 0 is ``hidden`` without projection."""
    gated_mlp: Flag = True
    """Whether the MLP has a gate projection beside the up projection."""
    activation: Activation = "silu"
    """What the MLP applies between its products; silu with a gate is SwiGLU. gelu-new is GELU's
    hyperbolic form written out: eight kernels where nothing fuses them (transformers' gelu_new)."""
    clamped_gate: Flag = False
    """Both halves of a gated MLP's first product are clamped before the activation (gpt-oss, to 7
    at most). It takes kernels of its own where the stack says so (``fused_expert_extras``)."""
    classes: CountOrZero = 0
    """Classes that whole sequences are sorted into, in place of the tokens of the vocabulary: a
    classifier, or with one class a reward model (transformers' ForSequenceClassification). 0
    predicts tokens."""
    tied_embeddings: Flag = False
    """Whether the output head is the transposed token embedding; never that of classes."""
    positions: Positions = "rotary"
    """How tokens know their place."""
    max_positions: _Resolved = 0
    """Rows of a learned position table."""
    normalisation: Normalisation = "rmsnorm"
    """Kind of all norms."""
    parallel_block: Flag = False
    """Whether attention and MLP read the same input and are added together."""
    norms_per_layer: Annotated[Count, Field(le=4)] = 2
    """Norms of the layer's width: 2 usually, 4 with post-norms, 1 in shared-norm blocks."""
    embedding_norm: Flag = False
    """A norm right after the embedding (BLOOM, BERT)."""
    final_norm: Flag = True
    """A norm before the head."""
    qkv_bias: Flag = False
    """Biases of the query, key and value projections."""
    attention_output_bias: Flag = False
    """Bias of the projection after attention."""
    mlp_bias: Flag = False
    """Biases of the MLP's matrices, those of routed experts included."""
    norm_bias: Flag = False
    """Biases of all norms."""
    head_bias: Flag = False
    """Bias per vocabulary entry of the output head (Phi-2)."""
    capped_logits: Flag = False
    """Logits are divided, go through tanh and are multiplied again, so that none is larger than a
    cap (Gemma 2's ``final_logit_softcapping``). A loss that is one kernel does so in passing."""
    qk_norm: Literal["none", "head", "full"] = "none"
    """Norm on queries and keys: one shared vector per head size, or over all heads."""
    attention_sinks: Flag = False
    """One learned scalar per head beside the attention scores (gpt-oss)."""
    attention_dropout: Flag = True
    """Whether attention drops probabilities where the stack trains with dropout."""
    widens_scores: Flag = True
    """Whether the model's code takes the softmax of 16-bit scores in fp32, where it is a kernel of
    its own; that of GPT-2 and BERT in transformers does not, but for torch.autocast."""
    causal: Flag = True
    """False for encoders."""
    sliding_window: CountOrZero = 0
    """Tokens a sliding-window layer attends to; 0 is none."""
    sliding_window_every: Layers = 1
    """One full-attention layer every n layers; 1 means that all layers slide."""
    experts: Experts | None = None
    """A mixture of experts in place of the MLP; by default layers are dense."""
    multi_token_layers: LayersOrZero = 0
    """Extra multi-token-prediction layers (DeepSeek-V3)."""
    extra_parameters: CountOrZero = 0
    """Parameters outside the blocks above, such as BERT's pooler and token types."""

    def has_experts(self, layer_index: int) -> bool:
        """Whether the MLP of this layer (counted from 0) is a mixture of experts."""
        experts = self.experts
        if experts is None or layer_index < experts.first_dense_layers:
            return False
        return (layer_index + 1) % experts.every == 0

    def has_attention(self, layer_index: int) -> bool:
        """Whether tokens of this layer (counted from 0) attend to each other."""
        return self.ssm is None or layer_index in self.ssm.attention_layers

    @property
    def has_any_attention(self) -> bool:
        """Whether some layer has attention."""
        return self.ssm is None or bool(self.ssm.attention_layers)

    @property
    def has_narrow_values(self) -> bool:
        """Whether heads of values are narrower than those of queries and keys."""
        latent = self.latent_attention
        return latent is not None and latent.v_head_dim < latent.qk_head_dim

    def window(self, layer_index: int) -> int:
        """Tokens that this layer (counted from 0) attends to at most; 0 is all of them."""
        if not (self.sliding_window and self.has_attention(layer_index)):
            return 0
        every = self.sliding_window_every
        attends_to_all = every > 1 and (layer_index + 1) % every == 0
        return 0 if attends_to_all else self.sliding_window

    @field_validator("ssm")
    @classmethod
    def _divides_into_heads_and_groups(
        cls, ssm: StateSpace | None, info: ValidationInfo
    ) -> StateSpace | None:
        hidden, layers = info.data.get("hidden"), info.data.get("layers")
        if ssm is None or hidden is None or layers is None:
            return ssm
        width, heads = ssm.width(hidden), ssm.heads(hidden)
        if width % ssm.head_dim:
            raise ValueError(f"head_dim ({ssm.head_dim}) must divide expand x hidden = {width}")
        if heads % ssm.groups:
            raise ValueError(f"groups ({ssm.groups}) must divide the {heads} heads")
        beyond = [index for index in ssm.attention_layers if index >= layers]
        if beyond:
            raise ValueError(
                f"attention_layers contains {beyond[0]}, but the last layer is {layers - 1}"
            )
        return ssm

    @field_validator("ffn_hidden")
    @classmethod
    def _is_there_without_a_scan(cls, ffn_hidden: int, info: ValidationInfo) -> int:
        if ffn_hidden == 0 and info.data.get("ssm") is None:
            raise ValueError("only models with Mamba-2 layers may have no MLP; give a width")
        return ffn_hidden

    @field_validator("activation")
    @classmethod
    def _is_written_out_without_a_gate(cls, activation: str, info: ValidationInfo) -> str:
        if activation == "gelu-new" and info.data.get("gated_mlp"):
            raise ValueError("gelu-new is modelled without a gate; use gelu, or gated_mlp: false")
        return activation

    @field_validator("positions")
    @classmethod
    def _are_those_of_latent_attention(cls, positions: str, info: ValidationInfo) -> str:
        if positions != "rotary" and info.data.get("latent_attention"):
            raise ValueError("latent attention has rotary positions (qk_rope_head_dim); remove it")
        return positions

    @field_validator("parallel_block")
    @classmethod
    def _has_an_mlp_beside(cls, parallel_block: bool, info: ValidationInfo) -> bool:
        if parallel_block and info.data.get("ffn_hidden") == 0:
            raise ValueError("there is no MLP to run in parallel; remove it")
        return parallel_block

    @field_validator("kv_heads")
    @classmethod
    def _serve_equal_groups_of_heads(cls, kv_heads: int, info: ValidationInfo) -> int:
        heads = info.data.get("heads")
        if heads is None or kv_heads == 0:
            return heads or kv_heads
        if heads % kv_heads:
            raise ValueError(
                f"must divide heads ({heads}): each serves the same number of query heads"
            )
        if info.data.get("latent_attention") and kv_heads != heads:
            raise ValueError(f"latent attention has as many as heads ({heads}); remove it")
        return kv_heads

    @field_validator("head_dim")
    @classmethod
    def _is_given_or_follows(cls, head_dim: int, info: ValidationInfo) -> int:
        latent = info.data.get("latent_attention")
        if latent is not None:
            if head_dim not in {0, latent.qk_head_dim}:
                raise ValueError(
                    f"latent attention makes it qk_nope_head_dim + qk_rope_head_dim = "
                    f"{latent.qk_head_dim}; remove it"
                )
            return int(latent.qk_head_dim)
        hidden, heads = info.data.get("hidden"), info.data.get("heads")
        if head_dim or hidden is None or heads is None:
            return head_dim
        if hidden % heads:
            raise ValueError(f"heads ({heads}) do not divide hidden ({hidden}); give head_dim")
        return int(hidden // heads)

    @field_validator("max_positions")
    @classmethod
    def _are_rows_of_a_learned_table(cls, max_positions: int, info: ValidationInfo) -> int:
        positions = info.data.get("positions")
        if positions == "learned" and max_positions == 0:
            raise ValueError("learned positions need the rows of their table, for example 2048")
        if positions not in {None, "learned"} and max_positions > 0:
            raise ValueError(f"{positions} positions have no table; remove it")
        return max_positions

    @field_validator("tied_embeddings")
    @classmethod
    def _is_no_head_of_classes(cls, tied_embeddings: bool, info: ValidationInfo) -> bool:
        return tied_embeddings and not info.data.get("classes")

    @field_validator("norms_per_layer")
    @classmethod
    def _suffice_for_the_block(cls, norms_per_layer: int, info: ValidationInfo) -> int:
        if norms_per_layer == 1 and info.data.get("parallel_block") is False:
            raise ValueError("only a parallel block shares one norm; set parallel_block: true")
        return norms_per_layer

    @field_validator("clamped_gate")
    @classmethod
    def _belongs_to_a_gate(cls, clamped_gate: bool, info: ValidationInfo) -> bool:
        if clamped_gate and not info.data.get("gated_mlp"):
            raise ValueError("there is no gate to clamp; set gated_mlp: true")
        return clamped_gate

    @field_validator("norm_bias")
    @classmethod
    def _belongs_to_layernorm(cls, norm_bias: bool, info: ValidationInfo) -> bool:
        if norm_bias and info.data.get("normalisation") == "rmsnorm":
            raise ValueError("rmsnorm has no bias; set normalisation: layernorm")
        return norm_bias

    @field_validator("qkv_bias")
    @classmethod
    def _belongs_to_plain_projections(cls, qkv_bias: bool, info: ValidationInfo) -> bool:
        if qkv_bias and info.data.get("latent_attention"):
            raise ValueError("latent attention is modelled without biases; remove it")
        return qkv_bias

    @field_validator("qk_norm")
    @classmethod
    def _replaces_no_latent_norm(cls, qk_norm: str, info: ValidationInfo) -> str:
        if qk_norm != "none" and info.data.get("latent_attention"):
            raise ValueError("latent attention has norms of its own; remove it")
        return qk_norm

    @field_validator("sliding_window_every")
    @classmethod
    def _alternates_with_a_window(cls, every: int, info: ValidationInfo) -> int:
        if every > 1 and info.data.get("sliding_window") == 0:
            raise ValueError("there is no window to alternate with; give sliding_window")
        return every

    @field_validator("experts")
    @classmethod
    def _leave_some_layer_with_experts(
        cls, experts: Experts | None, info: ValidationInfo
    ) -> Experts | None:
        layers = info.data.get("layers")
        if experts is None or layers is None:
            return experts
        if layers // experts.every * experts.every <= experts.first_dense_layers:
            raise ValueError(
                f"first_dense_layers ({experts.first_dense_layers}) and every ({experts.every}) "
                f"leave none of the {layers} layers with experts"
            )
        return experts
