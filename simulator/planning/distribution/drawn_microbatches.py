"""How long is each microbatch of each pipeline and sample?

What a padded microbatch costs follows from its longest sequence; what a packed one costs, from the
mean length of its documents, weighted by tokens, because a token attends to its own alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.described.variation import Lengths
from simulator.planning.drawn_lengths import padded_multiple

Floats = NDArray[np.float64]


class DrawnMicrobatches(NamedTuple):
    """Microbatches of some samples.

    Attributes:
        tokens: Length that decides what each costs, shape (microbatches, pipelines, samples).
    """

    tokens: Floats

    def of(self, microbatch: int, layers: tuple[int, int]) -> Floats:
        """Those of one microbatch, whatever the layers; shape (pipelines, samples) [tokens]."""
        del layers
        tokens: Floats = self.tokens[microbatch]
        return tokens

    def kept(self, in_flight: int) -> Floats:
        """Largest mean length of so many microbatches in a row, shape (samples,) [tokens]."""
        count = len(self.tokens)
        window = min(max(1, in_flight), count)
        sums = np.cumsum(self.tokens, axis=0)
        sums[window:] = sums[window:] - sums[:-window]
        largest: Floats = sums[window - 1 :].max(axis=(0, 1)) / window
        return largest


def drawn_microbatches(
    job: Job, lengths: Lengths, shape: tuple[int, int], random: np.random.Generator
) -> DrawnMicrobatches:
    """Microbatches of so many pipelines and samples."""
    micro, count = job.batch.micro_batch, job.microbatches
    if lengths.layout == "packed":
        return DrawnMicrobatches(
            np.stack([_packed(job, lengths, micro, shape, random) for _ in range(count)])
        )
    drawn = _lengths(job, lengths, (count * micro, *shape), random)
    if lengths.layout == "bucketed":
        drawn.sort(axis=0)
    longest = drawn.reshape(count, micro, *shape).max(axis=1)
    multiple = padded_multiple(job)
    padded = np.minimum(np.ceil(longest / multiple) * multiple, job.batch.seq_len)
    return DrawnMicrobatches(padded)


def _lengths(
    job: Job, lengths: Lengths, shape: tuple[int, ...], random: np.random.Generator
) -> Floats:
    """Lengths of sequences [tokens]."""
    of = lengths.lognormal
    if of is None:
        drawn = random.choice(np.asarray(lengths.values, dtype=float), shape)
    else:
        drawn = np.maximum(
            1.0, np.rint(of.median * np.exp(of.sigma * random.standard_normal(shape)))
        )
    lengths_of: Floats = np.minimum(drawn, job.batch.seq_len)
    return lengths_of


def _packed(
    job: Job, lengths: Lengths, micro: int, shape: tuple[int, int], random: np.random.Generator
) -> Floats:
    """Mean length of documents, weighted by tokens, of packed microbatches of a shape."""
    seq_len = job.batch.seq_len
    room = np.full((micro, *shape), float(seq_len))
    squares = np.zeros_like(room)
    while room.any():
        length = np.minimum(room, _lengths(job, lengths, room.shape, random))
        squares += length**2
        room -= length
    mean: Floats = squares.mean(axis=0) / seq_len
    return mean
