"""How long does one piece of a layer take on this cluster, in each direction?

Every distinct piece is costed once and remembered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from simulator.cost.collectives import (
    NO_COST,
    CollectiveCost,
    CollectiveKind,
    Group,
    collective_cost,
    hierarchical_exchange_cost,
    send_recv_cost,
)
from simulator.cost.interference import link_bytes_per_s, rate_beside, taken_share
from simulator.cost.kernel_time import (
    ELEMENT_BYTES,
    activation_precision,
    attention_s,
    gemm_s,
    grouped_gemm_s,
    memory_bound_s,
    row_sum_s,
    rows_are_aligned,
    strided_s,
    widening_s,
)
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import FlashKernel, Precision
from simulator.described.plan.stack_options import ExpertExchange
from simulator.program.ir import Collective, Kind
from simulator.program.layer.pieces import (
    Axis,
    Exchange,
    FlashAttention,
    Gemm,
    GridProduct,
    GroupedGemm,
    MemoryBound,
    Move,
    RingAttention,
)
from simulator.program.price.grouped_tiles import in_whole_tiles

_RANKS_OF_A_RATE = 8
"""Of the node on which dispatchers were measured. On four ranks of B200 DeepEP takes in 218 and
184 GB/s (arranged for them, 24 multiprocessors), on eight 494 and 420."""


@dataclass(slots=True)
class PieceTimer:
    """Seconds of each distinct piece.

    Attributes:
        profile: The system.
        precision: Format of products with weights.
        groups: The group that exchanges of each axis run in.
        flash_kernel: Which fused attention the framework brings.
        accumulator_bytes: Size of a number in the buffer that products add weight gradients to [B];
            0 where they do not.
        accumulation_bytes: Traffic per weight of adding its gradient to an accumulator by a
            kernel of its own [B]; 0 where the product does it.
        accumulates_in_python: Whether Python launches that kernel.
        expert_exchange: Whose kernels pass tokens to their experts by way of a rank of each node.
        grouped_by_torch: Whether products of all experts are PyTorch's kernel where it has one.
        wide_weight_gradients: Whether gradients of weights are 16-bit products.
    """

    profile: HardwareProfile
    precision: Precision
    groups: dict[Axis, Group]
    flash_kernel: FlashKernel
    accumulator_bytes: float
    accumulation_bytes: float
    accumulates_in_python: bool = False
    expert_exchange: ExpertExchange = "deepep"
    grouped_by_torch: bool = False
    wide_weight_gradients: bool = False
    _seconds: dict[object, float] = field(default_factory=dict)
    _costs: dict[object, CollectiveCost] = field(default_factory=dict)

    def gemm_s(self, gemm: Gemm | GroupedGemm) -> float:
        """Forward product, or the products it stands for [s]."""
        gemm = self._computed(gemm)
        return math.fsum(self._product_s(gemm, _rows(gemm), n, gemm.k) for n in columns_of(gemm))

    def input_gradient_s(self, gemm: Gemm | GroupedGemm) -> float:
        """Gradient of the product's input, or of its first activation [s]."""
        gemm = self._computed(gemm)
        return math.fsum(self._product_s(gemm, _rows(gemm), gemm.k, n) for n in columns_of(gemm))

    def weight_gradient_s(self, gemm: Gemm | GroupedGemm) -> float:
        """Gradient of the product's weight, or of its second activation [s]."""
        weights = gemm.groups if isinstance(gemm, GroupedGemm) else int(gemm.has_weight)
        made, accumulate = self._computed(gemm), weights > 0
        product_s = math.fsum(
            self._product_s(made, made.k, n, _rows(made), accumulate=accumulate, of_weight=True)
            for n in columns_of(made)
        )
        if not weights or not self.accumulation_bytes:
            return product_s
        traffic_bytes = weights * gemm.k * gemm.n * self.accumulation_bytes
        return product_s + memory_bound_s(self.profile, traffic_bytes)

    def grid_weight_gradient_s(self, product: GridProduct) -> float:
        """Blocks of a weight's gradient on a grid, and adding the rank's own to the sum [s].

        Ranks add the blocks up before they reach the accumulator, so no product adds to it.
        """
        block = product.block
        one_s = self._product_s(block, block.k, block.n, block.m)
        added_bytes = product.weights * self.accumulation_bytes
        added_s = memory_bound_s(self.profile, added_bytes) if added_bytes else 0.0
        return product.steps * one_s + added_s

    def memory_bound_s(self, piece: MemoryBound, *, backward: bool) -> float:
        """All kernels of a memory-bound piece in one direction [s]."""
        num_bytes = piece.backward_bytes if backward else piece.forward_bytes
        kernel_s = memory_bound_s(
            self.profile,
            num_bytes / piece.kernels,
            reduces_rows=backward and piece.reduces_rows,
            efficiency=self._own_efficiency(piece),
        )
        if backward and piece.sums_columns:
            kernel_s += self.profile.common.column_sum_start_s
        if piece.strided:
            read_bytes = ELEMENT_BYTES["fp32" if piece.is_wide else self._half_precision]
            written_bytes = ELEMENT_BYTES["fp32"] if piece.widens else read_bytes
            elements = num_bytes / piece.kernels / (read_bytes + written_bytes)
            kernel_s = max(kernel_s, strided_s(self.profile, elements, casts=piece.widens))
        if backward and piece.widens_backward:
            moved_bytes = ELEMENT_BYTES[self._half_precision] + ELEMENT_BYTES["fp32"]
            elements = num_bytes / piece.kernels / moved_bytes
            kernel_s = max(kernel_s, widening_s(self.profile, elements))
        return max(piece.kernels * kernel_s, self._row_sum_s(piece, backward=backward))

    def _own_efficiency(self, piece: MemoryBound) -> float | None:
        """Share of the memory bandwidth that such kernels reach, where it is one of their own."""
        common = self.profile.common
        if piece.to_four_bits:
            return common.four_bit_cast_share * self.profile.kernels.memory_efficiency
        if not piece.scatters_rows:
            return None
        is_fused = piece.scatters_fused
        return common.fused_permute_efficiency if is_fused else common.permute_efficiency

    def _row_sum_s(self, piece: MemoryBound, *, backward: bool) -> float:
        sums = piece.row_sums
        if sums is None:
            return 0.0
        elements = sums.backward if backward else sums.forward
        return row_sum_s(self.profile, elements, sorts=sums.method == "sorted")

    def attention_s(self, attention: FlashAttention, *, backward: bool) -> float:
        """One fused attention kernel [s]."""
        return self._once(
            (attention, backward),
            lambda: attention_s(
                self.profile,
                batch=attention.batch,
                heads=attention.heads,
                kv_heads=attention.kv_heads,
                seq_q=attention.seq_q,
                seq_kv=attention.seq_kv,
                head_dim=attention.head_dim,
                v_head_dim=attention.v_head_dim,
                causal=attention.causal,
                backward=backward,
                precision=self._half_precision,
                kernel=self.flash_kernel,
            ),
        )

    def ring_s(self, ring: RingAttention, *, backward: bool) -> tuple[float, float]:
        """Kernels and exposed transfers of a ring: (compute, exposed) [s].

        Every step but the first ends with a merge, which nothing hides. Backward, gradients of
        keys and values travel with them. They end one hop before their owner, and nothing hides
        the last hop.
        """
        first = self.attention_s(ring.first, backward=backward)
        step = self.attention_s(ring.step, backward=backward)
        gradient_bytes = ring.kv_bytes * ring.sum_ratio if backward else 0.0
        transfer = self._hop_cost(ring.kv_bytes + gradient_bytes).seconds
        hidden_by = [first, *[step] * (ring.steps - 2)]
        exposed = math.fsum(max(0.0, transfer - compute) for compute in hidden_by)
        exposed += self._hop_cost(gradient_bytes).seconds
        merge = memory_bound_s(self.profile, self._merged_bytes(ring, backward=backward))
        return first + (step + merge) * (ring.steps - 1), exposed

    def _merged_bytes(self, ring: RingAttention, *, backward: bool) -> float:
        """Traffic of adding one step's results to those of the steps before [B].

        Read both and write the sum: of outputs forward, of gradients of queries, keys and
        values backward. Of two chunks of a sequence that is causal, half of the steps see one.

        Source: ``_SDPAMerger`` and ``_partial_update`` of PyTorch's context parallelism;
        ``flash_attn_fwd_out_correction`` of Transformer Engine's.
        """
        first = ring.first
        queries = first.batch * first.heads * first.seq_q
        elements = queries * first.v_head_dim
        if backward:
            keys = first.batch * first.kv_heads * first.seq_kv
            elements = queries * first.head_dim + keys * (first.head_dim + first.v_head_dim)
        touched = 0.75 if first.causal else 1.0
        element_bytes = ELEMENT_BYTES[self._half_precision]
        return touched * elements * element_bytes * (1.0 + 2.0 * ring.sum_ratio)

    def ring_collectives(self, ring: RingAttention, *, backward: bool) -> list[Collective]:
        """The hops of a ring, in order: keys and values, and backward their gradients."""
        ranks = self.groups[Axis.CONTEXT].ranks

        def hop(name: str, num_bytes: float) -> Collective:
            ports, name = self._hop_cost(num_bytes).port_bytes, f"{ring.name}.{name}"
            return Collective(name, Kind.SEND_RECV, Axis.CONTEXT, ranks, num_bytes, ports)

        keys = hop("ring", ring.kv_bytes)
        gradients = hop("gradient_ring", ring.kv_bytes * ring.sum_ratio)
        steps = ring.steps - 1
        return [*[keys, gradients] * steps, gradients] if backward else [keys] * steps

    def exchange_cost(self, exchange: Exchange, kind: CollectiveKind | None) -> CollectiveCost:
        """Cost of an exchange in one direction; nothing moves where ``kind`` is None."""
        if kind is None:
            return NO_COST
        if exchange.levels is not None:
            group, network = self.groups[exchange.axis], self.profile.network
            handled_s = self._handled_s(exchange.message_bytes(kind), group)
            return hierarchical_exchange_cost(*exchange.levels, group, network, handled_s=handled_s)
        return self._collective_cost(exchange.axis, kind, exchange.message_bytes(kind))

    def _handled_s(self, num_bytes: float, group: Group) -> float:
        """Least time in which the kernels of a dispatcher pass tokens inside a node [s].

        Multiprocessors copy what others and the rank itself send, so many as the library holds.
        Between nodes the fabric is taken to be slower (assumption).
        """
        kernels = self.profile.kernels
        rates = {"deepep": kernels.deepep_bytes_per_s, "hybridep": kernels.hybridep_bytes_per_s}
        rate = rates[self.expert_exchange]
        if rate is None or group.nodes > 1:
            return 0.0
        return num_bytes / (rate * min(1.0, group.ranks / _RANKS_OF_A_RATE))

    def move_cost(self, move: Move) -> CollectiveCost:
        """Cost of one of the collectives that a move stands for."""
        return self._collective_cost(move.axis, move.kind, move.num_bytes)

    def moved(self, move: Move, product: GridProduct) -> Collective:
        """One of those collectives, as the ranks issue it."""
        ports, ranks = self.move_cost(move).port_bytes, self.groups[move.axis].ranks
        name = f"{product.name}.{move.name}"
        return Collective(name, Kind(move.kind), move.axis, ranks, move.num_bytes, ports)

    def _collective_cost(
        self, axis: Axis, kind: CollectiveKind, num_bytes: float
    ) -> CollectiveCost:
        key = (axis, num_bytes, kind)
        if key not in self._costs:
            group, network = self.groups[axis], self.profile.network
            self._costs[key] = collective_cost(kind, num_bytes, group, network)
        return self._costs[key]

    def collective(self, exchange: Exchange, kind: CollectiveKind) -> Collective:
        """The exchange in one direction, as the ranks issue it."""
        cost, group = self.exchange_cost(exchange, kind), self.groups[exchange.axis]
        return Collective(
            exchange.name, Kind(kind), exchange.axis, group.ranks, exchange.message_bytes(kind),
            cost.port_bytes,
        )  # fmt: skip

    def exposed_s(self, cost: CollectiveCost, beside_s: float, chunks: int = 0) -> float:
        """What an exchange adds to the computation that it runs beside [s].

        Either it is the longer of the two and sticks out, or it only slows the computation. In
        a pipeline of chunks the first chunk is never hidden.
        """
        unhidden = max(self.slowing_share(cost), 1.0 / chunks if chunks else 0.0)
        return max(cost.seconds - beside_s, cost.seconds * unhidden)

    def slowing_share(self, cost: CollectiveCost) -> float:
        """Share of a communication's time by which it slows what computes beside it."""
        return self._slowing_share(cost.sm_count, link_bytes_per_s(cost.port_bytes, cost.seconds))

    def slowing_share_of_group(self, axis: Axis) -> float:
        """The same of a large exchange in a group, whose links are busy throughout."""
        network = self.profile.network
        if self.groups[axis].nodes > 1:
            return self._slowing_share(network.fabric_sm_count, network.fabric_bytes_per_s)
        return self._slowing_share(network.scale_up.sm_count, network.scale_up_bytes_per_s)

    def _slowing_share(self, sm_count: int, rate_bytes_per_s: float) -> float:
        device, common = self.profile.device, self.profile.common
        return 1.0 - rate_beside(taken_share(sm_count, rate_bytes_per_s, device, common), common)

    def _hop_cost(self, num_bytes: float) -> CollectiveCost:
        return send_recv_cost(num_bytes, self.groups[Axis.CONTEXT], self.profile.network)

    @property
    def _half_precision(self) -> Precision:
        return activation_precision(self.precision)

    def precision_of(self, gemm: Gemm | GroupedGemm, *, of_weight: bool = False) -> Precision:
        """Number format of a product, or of its weight's gradient."""
        if gemm.is_wide:
            return "fp32"
        is_half = gemm.half_precision or (of_weight and self.wide_weight_gradients)
        is_half = is_half or (isinstance(gemm, Gemm) and not gemm.has_weight)
        return self._half_precision if is_half else self.precision

    def _computed(self, gemm: Gemm | GroupedGemm) -> Gemm | GroupedGemm:
        """The product with all that its kernel computes in vain."""
        if isinstance(gemm, GroupedGemm):
            return in_whole_tiles(gemm, self.profile.kernels)
        return gemm

    def _product_s(
        self,
        gemm: Gemm | GroupedGemm,
        m: int,
        n: int,
        k: int,
        *,
        accumulate: bool = False,
        of_weight: bool = False,
    ) -> float:
        if isinstance(gemm, GroupedGemm):
            # Gradients of weights sum over rows: all have the same shape, not the same depth.
            rows = [m] * gemm.groups if of_weight else _rows_of_experts(gemm)
            return self._grouped_s(gemm, rows, n, k, accumulate=accumulate)
        precision = self.precision_of(gemm, of_weight=of_weight)
        # Sums in 16 bits are taken to cost no more than writing them (assumption).
        accumulate = accumulate and self.accumulator_bytes > ELEMENT_BYTES["bf16"]
        # Whichever gradient it is, operands and result are as wide as the weight or its transpose.
        aligned = rows_are_aligned((gemm.n, gemm.k), precision)
        return self._once(
            (m, n, k, gemm.batch, precision, accumulate, aligned),
            lambda: gemm_s(
                self.profile, m, n, k,
                batch=gemm.batch, precision=precision, accumulate=accumulate, aligned=aligned,
            ),
        )  # fmt: skip

    def _grouped_s(
        self, gemm: GroupedGemm, rows: list[int], n: int, k: int, *, accumulate: bool
    ) -> float:
        """The launches of a grouped product, each for as many groups as the others."""
        together, seconds = gemm.groups // gemm.launches, 0.0
        accumulate = accumulate and self.accumulator_bytes > 0
        launches = Counter(tuple(rows[i : i + together]) for i in range(0, len(rows), together))
        precision = self.precision_of(gemm)
        aligned = rows_are_aligned((gemm.n, gemm.k), precision)
        for launch, count in launches.items():
            seconds += count * self._once(
                (launch, n, k, precision, accumulate, aligned),
                partial(
                    grouped_gemm_s, self.profile, launch, n, k,
                    precision=precision, accumulate=accumulate, aligned=aligned,
                    accumulator_bytes=self.accumulator_bytes,
                    by_torch=self.grouped_by_torch and precision == self._half_precision,
                ),
            )  # fmt: skip
        return seconds

    def _once(self, key: object, seconds: Callable[[], float]) -> float:
        known = self._seconds.get(key)
        if known is None:
            known = self._seconds[key] = seconds()
        return known


def _rows(gemm: Gemm | GroupedGemm) -> int:
    return math.ceil(gemm.mean_rows) if isinstance(gemm, GroupedGemm) else gemm.m


def columns_of(gemm: Gemm | GroupedGemm) -> list[int]:
    """Columns of each product that one stands for: queries, keys and values, or equal parts."""
    if isinstance(gemm, GroupedGemm) or gemm.products == 1:
        return [gemm.n]
    if gemm.kv_columns:
        key_or_value = gemm.kv_columns // 2
        return [gemm.n - 2 * key_or_value, key_or_value, key_or_value]
    return [gemm.n // gemm.products] * gemm.products


def _rows_of_experts(gemm: GroupedGemm) -> list[int]:
    if not gemm.loads:
        return [_rows(gemm)] * gemm.groups
    return [math.ceil(gemm.rows * load) for load in gemm.loads]
