"""Which sizes does a schedule run with, and how many activations does a rank hold?

Bounds count activations of one chunk and one microbatch. They are reached with enough
microbatches; tests hold that no order exceeds them.
"""

from __future__ import annotations

from simulator.schedule.orders.controllable_memory import v_half_in_flight, v_min_in_flight
from simulator.schedule.orders.one_f_one_b import round_length


def one_in_flight(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """One: a microbatch ends before the next starts."""
    del rank, stages, chunks, microbatches
    return 1


def all_in_flight(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """All microbatches on all chunks."""
    del rank, stages
    return chunks * microbatches


def one_f_one_b_in_flight(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """The fewer the deeper the rank: p - r (arXiv 2006.09503, section 2.1)."""
    del chunks
    return min(stages - rank, microbatches)


def interleaved_in_flight(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """One more than run ahead: a round through all chunks but one, and the way there and back."""
    ahead = (chunks - 1) * round_length(stages, microbatches) + 2 * (stages - 1 - rank)
    return min(ahead + 1, chunks * microbatches)


def zb_1p_in_flight(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """A round through all chunks but one, and p; the same on every rank."""
    del rank
    ahead = (chunks - 1) * round_length(stages, microbatches) + stages
    return min(ahead, chunks * microbatches)


def zb_h1_in_flight(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """On every rank p: what 1F1B holds on its first (arXiv 2401.10241, section 2)."""
    del rank, chunks
    return min(stages, microbatches)


def zb_h2_in_flight(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """2p - 1 on every rank (arXiv 2401.10241, section 2)."""
    del rank, chunks
    return min(2 * stages - 1, microbatches)


def zb_2p_in_flight(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """2p on every rank, its limit (arXiv 2401.10241, section 5.1)."""
    del rank, chunks
    return min(2 * stages, microbatches)


def zb_v_in_flight(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """2p chunks: what 1F1B holds on its first rank, on every rank (arXiv 2401.10241, section 6)."""
    del rank
    return min(2 * stages, chunks * microbatches)


def v_half(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """About p chunks on every rank, half of 1F1B's (arXiv 2405.15362, project page)."""
    del rank
    return min(v_half_in_flight(stages), chunks * microbatches)


def v_min(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """About 2p/3 chunks on every rank, a third of 1F1B's (arXiv 2405.15362, project page)."""
    del rank
    return min(v_min_in_flight(stages), chunks * microbatches)


def dualpipe_in_flight(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """One more than the stages of the model (arXiv 2412.19437, table 2)."""
    del rank
    return min(stages * chunks + 1, chunks * microbatches)


def chimera_in_flight(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """p/2 + 1 on the outer ranks, p on the middle ones (arXiv 2107.06925, section 3)."""
    del chunks
    from_end = min(rank, stages - 1 - rank)
    return min(stages // 2 + 1 + from_end, microbatches)


def varuna_in_flight(rank: int, stages: int, chunks: int, microbatches: int) -> int:
    """Three per rank behind, since a gradient takes three ticks per rank there and back.

    Derived from the ticks of its generator (:func:`simulator.schedule.orders.varuna.varuna`).
    """
    del chunks
    behind = stages - 1 - rank
    return min(max(1, 3 * behind), microbatches)


def whole_rounds(stages: int, chunks: int, microbatches: int) -> tuple[str, str] | None:
    """Microbatches fill whole rounds."""
    del chunks
    rounds = max(1, microbatches // stages)
    if microbatches % rounds == 0:
        return None
    rule = f"microbatches must be a multiple of microbatches // pp = {rounds}"
    return rule, f"take {microbatches // stages * stages} microbatches"


def fills_pipeline(stages: int, chunks: int, microbatches: int) -> tuple[str, str] | None:
    """No more than one update lies between a forward and its backward (arXiv 2006.09503, 3.1)."""
    del chunks
    if microbatches >= stages:
        return None
    return "needs at least pp microbatches per update", f"take {stages} microbatches"


def even_directions(stages: int, chunks: int, microbatches: int) -> tuple[str, str] | None:
    """Both directions have the same ranks and microbatches to themselves."""
    del chunks
    if stages % 2:
        return "plan.pp must be even", f"take plan.pp = {stages + 1}"
    if microbatches % 2:
        return "the number of microbatches must be even", f"take {microbatches + 1} microbatches"
    return None


def two_per_rank(stages: int, chunks: int, microbatches: int) -> tuple[str, str] | None:
    """The pipeline fills before it drains."""
    del chunks
    if microbatches >= 2 * stages:
        return None
    return "needs at least 2 pp microbatches", f"take {2 * stages} microbatches, or a smaller pp"


def dualpipe_sizes(stages: int, chunks: int, microbatches: int) -> tuple[str, str] | None:
    """Even, and two microbatches per rank."""
    sizes = (stages, chunks, microbatches)
    return even_directions(*sizes) or two_per_rank(*sizes)


def stashed_versions(rank: int, stages: int) -> int:
    """PipeDream: one weight version per microbatch in flight (arXiv 1806.03377, section 3.3)."""
    return stages - rank


def microbatches_ahead(rank: int, stages: int) -> int:
    """PipeDream: one update for each later microbatch in flight (arXiv 1806.03377, section 3.3)."""
    return stages - 1 - rank


def one_update(rank: int, stages: int) -> int:
    """PipeDream-2BW: gradients are of the weights before the last update, on every rank.

    Source: arXiv 2006.09503, section 3.1. One rank alone would not be stale.
    """
    del rank
    return min(1, stages - 1)


def two_versions(rank: int, stages: int) -> int:
    """PipeDream-2BW: the newest weights and those that old microbatches use."""
    del rank, stages
    return 2


def one_message(stages: int, chunks: int, microbatches: int) -> int:
    """Two neighbours send to each other at once, while none of them receives."""
    del chunks, microbatches
    return min(1, stages - 1)


def interleaved_messages(stages: int, chunks: int, microbatches: int) -> int:
    """Rounds longer than p come back to the first rank before it turns to them.

    Where a forward and a backward exchange in one call, as in Megatron's, none are needed.
    """
    del chunks
    length = round_length(stages, microbatches)
    return 0 if stages == 1 or microbatches < 2 * stages else max(1, length - stages)


def zb_1p_messages(stages: int, chunks: int, microbatches: int) -> int:
    """With one chunk none, as zb-h1; with several p/2, and what rounds are longer than p."""
    length = round_length(stages, microbatches)
    if chunks == 1 or not 1 < stages <= length:
        return 0
    return (stages + 1) // 2 + length - stages


def looped_bfs_messages(stages: int, chunks: int, microbatches: int) -> int:
    """What comes back to the first rank while it has microbatches of the chunk before to run."""
    return 0 if chunks == 1 or stages == 1 else max(0, microbatches // stages - 1)


def varuna_messages(stages: int, chunks: int, microbatches: int) -> int:
    """Two, where there is a rank between the first and the last: forwards run ahead."""
    del chunks, microbatches
    return min(2, 2 * max(0, stages - 2))
