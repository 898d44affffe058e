"""What is a layer made of, before anybody asks how long it takes?

A layer is a list of *pieces* in forward order, with the activations it saves for
backward. Strategies are passes that rewrite pieces: tensor parallelism shards them and
inserts exchanges, context parallelism turns attention into a ring, and so on. Costs are
computed afterwards, once per distinct piece (:mod:`simulator.program.price.piece_time`).

Shape letters: b microbatch, s sequence, h hidden, a heads, k kv heads, d head size,
f MLP width, T = b s tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from simulator.cost.collectives import CollectiveKind
from simulator.described.plan.plan_fields import RecomputeModule
from simulator.described.plan.stack_options import RowSummation


class Region(StrEnum):
    """How tensor parallelism divides a piece's data."""

    WHOLE = "whole"
    """Every rank has all of it."""
    SEQUENCE = "sequence"
    """Along the sequence, where sequence parallelism is on; else whole."""
    GATHERED = "gathered"
    """What a column product reads: whole where it is kept as it was gathered, else along the
    sequence."""
    TENSOR = "tensor"
    """Along heads or the MLP width."""
    ROUTED = "routed"
    """Copies of tokens at their experts: along the sequence, then whole on each of the
    ranks that share an expert."""


class Split(StrEnum):
    """How tensor parallelism divides a product's weight."""

    NONE = "none"
    COLUMN = "column"
    ROW = "row"


class Axis(StrEnum):
    """Which group of ranks an exchange runs in.

    Rows, columns and depth are the lines of a 2D or 2.5D grid of tensor-parallel ranks; weight,
    input and output those of a 3D one.
    """

    TENSOR = "tp"
    CONTEXT = "cp"
    CONTEXT_HEADS = "cp-heads"
    EXPERT = "ep"
    EXPERT_TENSOR = "etp"
    ROW = "tp-row"
    COLUMN = "tp-column"
    DEPTH = "tp-depth"
    WEIGHT = "tp-weight"
    INPUT = "tp-input"
    OUTPUT = "tp-output"


class Role(StrEnum):
    """What a piece or a saved activation is to the passes; to most it is ``OTHER``."""

    OTHER = "other"
    EMBEDDING = "embedding"
    """Looks up rows of the table of tokens."""
    LOGITS = "logits"
    """Multiplies with that table, or with a matrix that is kept as it is."""
    PROJECTION = "projection"
    """A product before or after attention."""
    PERMUTE = "permute"
    """Copies tokens for their routed experts, with which these begin."""
    UNPERMUTE = "unpermute"
    """Adds up what routed experts return, with which these end."""
    SHARED_EXPERT = "shared_expert"
    """A product of the expert that every token visits."""
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    CONTEXT = "context"
    """What attention gives, and the product after it reads."""
    LOG_SUM = "log_sum"
    """Logarithms of the sums of exponentials of a fused attention kernel."""
    ACTIVATION_INPUT = "activation_input"
    """What the activation of a dense MLP reads."""
    DOWN_INPUT = "down_input"
    """What the last product of a dense MLP reads."""
    NORM_STATISTICS = "norm_statistics"
    """Numbers per token of a norm over the model's width."""
    ROUTED = "routed"
    """A row for each copy that routed experts receive."""
    RESIDUAL = "residual"
    """Adds what a part of the layer makes to what it reads."""
    ADAPTER = "adapter"
    """Computes beside the product that it adapts."""
    WEIGHT_COPY = "weight_copy"
    """The copy of a weight in the format of its product."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """A product (m, k) x (k, n) with a weight, or a batch of products of activations.

    Attributes:
        name: What it computes.
        m, n, k: Shape; m counts tokens where there is a weight.
        batch: Products in one launch.
        has_weight: Whether one operand is a parameter (then it has a weight gradient).
        split: How tensor parallelism divides it.
        kv_columns: Columns that belong to key and value heads.
        kv_heads: Heads those columns hold; they are copied where tp exceeds them.
        half_precision: Stays in the 16-bit format when the others compute in 8 or 4 bits.
        is_wide: Computes in fp32 whatever the others compute in.
        products: Kernels that it stands for, each with a part of its columns.
        weights: Matrices of the model that it multiplies with at once: query, key and value.
        role: What it is to the passes.
        tensors: Names of the parameters that it multiplies with.
        trained_share: Part of its columns whose weights have a gradient.
    """

    name: str
    m: int
    n: int
    k: int
    batch: int = 1
    has_weight: bool = True
    split: Split = Split.NONE
    kv_columns: int = 0
    kv_heads: int = 1
    half_precision: bool = False
    is_wide: bool = False
    products: int = 1
    weights: int = 1
    role: Role = Role.OTHER
    tensors: tuple[str, ...] = ()
    trained_share: float = 1.0


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """One product per routed expert: (rows, k) x (k, n) for each of ``groups`` weights.

    Attributes:
        name: What it computes.
        groups: Experts.
        rows: Copies of tokens per expert, the mean.
        n, k: Columns and inner dimension of one expert's weight.
        split: How the ranks that share an expert divide it.
        launches: Kernels that do it: one for all experts, or one for each.
        calls: Calls of the host for it, where these are more.
        loads: Rows of each expert over ``rows``; empty where all have the same.
        half_precision, tensors, trained_share: As of :class:`Gemm`.
        is_wide: Whether they are fp32, whatever the other products are.
        is_batched: Whether every expert has its capacity, so that it is a product of a batch.
    """

    name: str
    groups: int
    rows: float
    n: int
    k: int
    split: Split
    launches: int = 1
    calls: int = 1
    loads: tuple[float, ...] = ()
    half_precision: bool = False
    tensors: tuple[str, ...] = ()
    trained_share: float = 1.0
    is_wide: bool = False
    is_batched: bool = False

    @property
    def mean_rows(self) -> float:
        """Rows of the experts, on average."""
        return self.rows * math.fsum(self.loads) / len(self.loads) if self.loads else self.rows


@dataclass(frozen=True, slots=True)
class FlashAttention:
    """A fused attention kernel.

    Attributes:
        window: Tokens a sliding window sees of a longer sequence; 0 is all of it.
    """

    name: str
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_kv: int
    head_dim: int
    v_head_dim: int
    causal: bool
    window: int = 0


@dataclass(frozen=True, slots=True)
class RingAttention:
    """Attention over a context-parallel ring: keys and values go round while it computes.

    Attributes:
        first: The step on the rank's own keys and values.
        step: Each of the other steps.
        steps: Ranks in the ring.
        kv_bytes: Keys and values that travel per step [B].
        sum_ratio: Size of what steps add up, outputs and the gradients that travel backward,
            over that of activations.
    """

    name: str
    first: FlashAttention
    step: FlashAttention
    steps: int
    kv_bytes: float
    sum_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class RowSums:
    """Elements that kernels add to rows at indices, several to one.

    Attributes:
        method: How they do.
        forward, backward: Elements of what is added, per direction.
    """

    method: RowSummation
    forward: float = 0.0
    backward: float = 0.0

    def scaled(self, share: float) -> RowSums:
        """The same kernels on so much of the data."""
        return replace(self, forward=self.forward * share, backward=self.backward * share)


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """Kernels that only move bytes through memory.

    Attributes:
        name: What they do.
        forward_bytes, backward_bytes: Bytes read and written [B].
        region: How tensor parallelism divides them.
        kernels: Launches per direction.
        reduces_rows: Whether backward also sums over tokens for a weight's gradient.
        sums_columns: Whether backward is nothing but a sum over tokens.
        per_expert: Whether each routed expert has a kernel of its own.
        scatters_rows: Whether rows are picked up or put down at indices, one by one.
        scatters_fused: Whether a kernel made for that does it.
        row_sums: What is added up there; None where each row is put down by itself.
        strided: Whether operands are broadcast or permuted, so that an eager kernel computes
            where each element lies.
        is_wide: Whether elements are fp32, whatever activations are.
        widens: Whether 16-bit elements become fp32 as well, in the same kernel.
        widens_backward: Whether backward is copies of 16-bit elements as fp32 and nothing else.
        role: What they are to the passes.
        to_four_bits: Whether they scale and cast to 4 bits.
        statistics_bytes: Numbers of all tokens that a norm sums over the model's width [B].
        serves: Name of the piece for which a pass inserted them; empty where none did.
        gradient_widths: Of gradients of what they make and of what they read, while backward
            runs, in those that come and go.
        gradient_scratch: What backward makes for itself, in the same.
    """

    name: str
    forward_bytes: float
    backward_bytes: float
    region: Region = Region.WHOLE
    kernels: int = 1
    reduces_rows: bool = False
    sums_columns: bool = False
    per_expert: bool = False
    scatters_rows: bool = False
    scatters_fused: bool = False
    row_sums: RowSums | None = None
    strided: bool = False
    is_wide: bool = False
    widens: bool = False
    widens_backward: bool = False
    role: Role = Role.OTHER
    to_four_bits: bool = False
    statistics_bytes: float = 0.0
    serves: str = ""
    gradient_widths: tuple[float, float] = (1.0, 1.0)
    gradient_scratch: float = 0.0

    def scaled(self, share: float) -> MemoryBound:
        """The same kernels on so much of the data."""
        return replace(
            self,
            forward_bytes=self.forward_bytes * share,
            backward_bytes=self.backward_bytes * share,
            row_sums=self.row_sums.scaled(share) if self.row_sums else None,
        )


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective between the ranks that share a layer.

    Attributes:
        name: What it moves.
        axis: The group it runs in.
        forward, backward: Collective in each direction; None where nothing moves.
        num_bytes: Message size as nccl-tests counts it [B].
        gathers_again: Whether backward repeats the forward gather for the weight
            gradient of the product that follows (Korthikanti et al., arXiv 2205.05198,
            section 4.2.2).
        kv_heads: Heads of keys and values that it moves, which tensor-parallel ranks beyond
            their number hold copies of; 0 where all that moves is divided.
        levels: Bytes that a rank passes on inside its node, and that it sends to its rail in
            others, where an exchange goes that way; None where all go straight [B].
        gather_bytes: Message size of its gathers where they move less than its reductions, 8-bit
            operands for 16-bit sums; 0 where both move ``num_bytes`` [B].
        serves: Name of the piece for which a pass inserted it; empty where none did.
        beside: Name of a product that a stream of its own computes meanwhile; empty is none.
    """

    name: str
    axis: Axis
    forward: CollectiveKind | None
    backward: CollectiveKind | None
    num_bytes: float
    gathers_again: bool = False
    kv_heads: int = 0
    levels: tuple[float, float] | None = None
    gather_bytes: float = 0.0
    serves: str = ""
    beside: str = ""

    def message_bytes(self, kind: CollectiveKind) -> float:
        """Message size of one of its collectives [B]."""
        gathers = kind is CollectiveKind.ALL_GATHER and self.gather_bytes
        return self.gather_bytes if gathers else self.num_bytes


@dataclass(frozen=True, slots=True)
class Move:
    """A collective that a product on a grid of ranks needs.

    Attributes:
        name: What it moves.
        axis: The line of ranks it runs in.
        kind: What they do.
        num_bytes: Message size as nccl-tests counts it [B].
        times: How often, spread over the steps of the product.
        hides: Whether it may run beside the weight gradient, which does not need it.
    """

    name: str
    axis: Axis
    kind: CollectiveKind
    num_bytes: float
    times: int = 1
    hides: bool = False


@dataclass(frozen=True, slots=True)
class GridProduct:
    """A product with a weight whose operands and result are divided over a grid of ranks.

    Attributes:
        name: What it computes.
        block: What one rank multiplies in one step, in every direction.
        steps: How many such blocks follow each other.
        weights: Elements of the weight that the rank keeps.
        forward, input_gradient, weight_gradient: What moves for each.
    """

    name: str
    block: Gemm
    steps: int
    weights: float
    forward: tuple[Move, ...]
    input_gradient: tuple[Move, ...]
    weight_gradient: tuple[Move, ...]


Piece = Gemm | GroupedGemm | GridProduct | FlashAttention | RingAttention | MemoryBound | Exchange


@dataclass(frozen=True, slots=True)
class Saved:
    """An activation kept from forward to backward.

    Attributes:
        name: Which one.
        num_bytes: Size [B].
        region: How tensor parallelism divides it.
        role: What it is to the passes.
        weights: Names of the parameters for whose gradients alone it, or a part of it, is kept.
        weights_share: That part.
        kept_share: Part that is kept; the rest is alive in forward only.
        repeats: How often it holds what a product made.
        reader: Name of the piece whose backward is the last to read it.
    """

    name: str
    num_bytes: float
    region: Region
    role: Role = Role.OTHER
    weights: tuple[str, ...] = ()
    weights_share: float = 1.0
    kept_share: float = 1.0
    repeats: int = 1
    reader: str = ""

    @property
    def kept_bytes(self) -> float:
        """What stays from forward to backward, where nothing is computed again [B]."""
        return self.num_bytes * self.kept_share


@dataclass(frozen=True, slots=True)
class ModuleRecompute:
    """What a module of selective recomputation does to a layer that has it.

    Attributes:
        repeated: Share of each piece's forward work that backward repeats, by piece name.
        kept: Share that stays of each saved activation, by name; of all others everything.
    """

    repeated: Mapping[str, float] = field(default_factory=dict)
    kept: Mapping[str, float] = field(default_factory=dict)


class ContextSplit(NamedTuple):
    """How ranks share a sequence.

    Attributes:
        cp: Ranks that share it.
        heads_ranks: Neighbours among them that trade heads in ``all_to_all+ring``.
        element_bytes: Bytes of one activation [B].
        sum_ratio: Size of what the steps of a ring add up, over that of activations.
    """

    cp: int
    heads_ranks: int
    element_bytes: float
    sum_ratio: float


ContextRule = Callable[[Piece, ContextSplit], Iterator[Piece]]
"""(piece, ranks) -> what the piece becomes where ranks share a sequence, exchanges included."""

ContextRules = Mapping[str, ContextRule]
"""By ``plan.cp_method``; methods without a rule are refused."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of one rank.

    Attributes:
        pieces: In forward order.
        saved: Activations kept for backward.
        input_bytes: The layer's input, all that full recomputation keeps [B].
        input_region: How tensor parallelism divides the input.
        passing_bytes: Blocks held while forward runs [B].
        freed_bytes: Blocks that forward gave back before that, and nothing else is made of [B].
        working_bytes: Blocks held while backward runs; empty where nothing but gradients of
            the saved activations is [B].
        working_region: How tensor parallelism divides all of them.
        buffer_bytes: Blocks that products hold while either runs, to send or receive [B].
        mlp_start: Index of the first saved activation of the MLP and its norm; None where there
            is no such part.
        modules: What each module of selective recomputation repeats and keeps.
        context: The rules of its parts where ranks share a sequence.
    """

    pieces: tuple[Piece, ...]
    saved: tuple[Saved, ...]
    input_bytes: float
    input_region: Region = Region.SEQUENCE
    passing_bytes: tuple[float, ...] = ()
    freed_bytes: tuple[float, ...] = ()
    working_bytes: tuple[float, ...] = ()
    working_region: Region = Region.TENSOR
    buffer_bytes: tuple[float, ...] = ()
    mlp_start: int | None = None
    modules: Mapping[RecomputeModule, ModuleRecompute] = field(default_factory=dict)
    context: tuple[ContextRules, ...] = ()

    @property
    def middle(self) -> int:
        """Index of the first saved activation of the MLP; past the last where there is none."""
        return len(self.saved) if self.mlp_start is None else self.mlp_start
