"""What is run beside the longest sequences, where others are shorter?

A caching allocator keeps the blocks of one microbatch for the next. Where that is longer, none of
them may be large enough, and it asks the device for more; so what it reserves depends on which
lengths came before, most where few sequences are as long as the longest.

Lengths stand for equal parts of all microbatches, each by the middle of its part. They come in a
few orders, the longest possible one somewhere among them, and what is reserved is the mean over
these: a run has one order of its own, which nobody knows.

Ignores: sequences that are packed, which are all full; pipelines, whose stages pad to the longest;
that ranks differ, of which the one that reserves the most counts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from statistics import NormalDist

from simulator.described.job import Job
from simulator.described.variation import Lengths
from simulator.program.build import build_program
from simulator.program.ir import Program
from simulator.results.allocator.exchanges import Exchanges, one_after_another

_PARTS = 8
"""Parts of all microbatches that have a length each."""
_ORDERS = 4
"""Orders in which they come; more change the mean by a few percent."""
_MICROBATCHES = 2
"""Of each length in a step at most: the first makes gradients, and another adds to them."""
_MULTIPLE = 8
"""Padded lengths are multiples of this many tokens for each rank that shares a sequence."""


def padded_multiple(job: Job) -> int:
    """What padded lengths are multiples of [tokens]."""
    return _MULTIPLE * job.plan.tp * job.plan.cp


def shorter_programs(job: Job, *, unfolded: bool = False) -> tuple[Program, ...]:
    """Steps of each length; none where all sequences are as long as the longest."""
    known: dict[int, Program] = {}
    lengths = microbatch_lengths(job)
    for each in lengths:
        if each not in known:
            known[each] = build_program(_of_length(job, each), steps=1, unfolded=unfolded)
    return tuple(known[each] for each in lengths)


def microbatch_lengths(job: Job) -> tuple[int, ...]:
    """Of the middle microbatch of each part of all; none where no lengths are given [tokens]."""
    lengths, longest, multiple = job.batch.lengths, job.batch.seq_len, padded_multiple(job)
    if lengths is None or lengths.layout == "packed" or job.plan.pp > 1:
        return ()
    together = 1 if lengths.layout == "bucketed" else job.batch.micro_batch
    shares = (((part + 0.5) / _PARTS) ** (1 / together) for part in range(_PARTS))
    found = (_length(lengths, share) for share in shares)
    return tuple(min(longest, max(1, math.ceil(each / multiple)) * multiple) for each in found)


def in_several_orders(longest: Exchanges, shorter: Sequence[Exchanges]) -> Iterator[Exchanges]:
    """What is asked of an allocator, order by order; just the longest where nothing is shorter."""
    if not shorter:
        yield longest
        return
    for number in range(_ORDERS):
        steps = [longest, *shorter]
        random.Random(number).shuffle(steps)
        yield one_after_another(steps)


def _length(lengths: Lengths, share: float) -> float:
    """What such a share of all sequences does not exceed [tokens]."""
    if lengths.lognormal is None:
        values = sorted(lengths.values)
        return values[min(len(values) - 1, int(share * len(values)))]
    deviations = NormalDist().inv_cdf(share)
    return lengths.lognormal.median * math.exp(lengths.lognormal.sigma * deviations)


def _of_length(job: Job, seq_len: int) -> Job:
    microbatches = min(_MICROBATCHES, job.microbatches)
    changes = {
        "seq_len": seq_len,
        "lengths": None,
        "global_batch": job.batch.micro_batch * job.dp * microbatches,
    }
    return job.model_copy(update={"batch": job.batch.model_copy(update=changes)})
