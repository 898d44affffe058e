"""Which kernel parameters do all measured kernels together give each architecture and each GPU?

A parameter is the sum of what all architectures share, what an architecture adds to it and what a
GPU adds to that; each addition costs, so a GPU with few rows stays near its family and one without
is its family. Run as ``python -m reports.make.fit.fit_kernel_families TABLE.csv... [--write]``.
"""

from __future__ import annotations

import math
import random
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from simulator.calibrate.gpu.fit_kernels import Block, family_blocks, with_values
from simulator.cost.kernel_time import without_sustained_clock
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.load import load_profile, profile_names
from simulator.tables.kernel_rows import (
    KernelRow,
    SkippedRowError,
    profile_name_of,
    read_kernel_rows,
)
from simulator.validate.kernel_answers import compared

ROWS_OF_A_KIND = 30
"""Rows of one team, GPU, operation and format that a fit takes, drawn at random: more of the same
teach little."""

_JOULE_PER_HALF_FLOP: Mapping[str, float] = MappingProxyType(
    {
        "pascal": 2.6e-12, "volta": 2.6e-12, "turing": 2.6e-12,
        "ampere": 1.25e-12, "ampere-sm86": 1.5e-12, "cdna2": 1.3e-12,
        "ada": 1.0e-12, "hopper": 1.0e-12, "blackwell": 1.0e-12, "blackwell-sm120": 1.0e-12,
        "cdna3": 1.0e-12, "cdna4": 0.9e-12,
    }
)  # fmt: skip
"""Energy of a 16-bit operation where the fit starts, by process: 16 and 12 nm, 8 and 7 nm, 5 nm.

Source: assumption; what dense products of 90, 250 and 700 TFLOP/s at 250, 300 and 700 W take.
"""

_ENERGY_OF_FORMAT: Mapping[str, float] = MappingProxyType({"fp32": 7.5, "tf32": 2.0, "fp8": 0.6})
"""Energy of an operation over that of a 16-bit one where the fit starts (assumption)."""

_CACHE_BYTES_PER_CYCLE = 16.0
"""Bytes that a multiprocessor streams through the last cache in a cycle where the fit starts.

Source: assumption; a quarter of the widest load, 64 bytes (NVIDIA A100 white paper: 5120 bytes
per cycle for 108 multiprocessors). That times multiprocessors and clock, over the memory's
bandwidth, is what ``cache_speedup`` is fitted around.
"""

_OLD_INSTRUCTIONS_SHARE: Mapping[str, float] = MappingProxyType({"forward_efficiency": 0.63})
"""Rate of Ampere's matrix instructions over those of Hopper, on Hopper.

Source: Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture (arXiv
2402.13499): 62.9 % of the peak on average. FlashAttention 2 uses them.
"""

_SPREAD: Mapping[str, float] = MappingProxyType(
    {
        "efficiency": 0.35, "forward_efficiency": 0.35, "backward_efficiency": 0.35,
        "memory_efficiency": 0.3, "row_reduction_efficiency": 0.4, "row_efficiency": 0.4,
        "tail": 0.8,
        "backward_tail": 0.8, "tile_half": 0.4, "tile_start_s": 0.5, "floor_s": 0.25,
        "memory_floor_s": 0.4, "cache_speedup": 0.3, "joule_per_operation": 0.4, "boost_s": 1.0,
        "softmax_dim": 0.5, "kv_ramp": 0.5, "backward_kv_ramp": 0.5,
    }
)  # fmt: skip
"""How far an addition of an architecture ordinarily goes, in logarithms, of shares in log odds.

Energies differ most: they go with the square of the voltage, which a board's power sets between 0.7
and 1.05 V (assumption; rows of teams left out agree).
"""

_OF_LEVEL: Mapping[str, float] = MappingProxyType({"all": 2.0, "architecture": 1.0, "gpu": 0.5})
"""The same of each level over that of an architecture."""

_SHARED_ENERGY = 0.2
"""What all architectures share of an energy, over that: physics knows it better."""

_WEIGHT_OF_PRIOR = 0.6
"""Weight of the additions. Of 0.02 to 2.0, this foretells other teams' rows and other GPUs best."""

_ROBUST_SCALE = 0.1
_STEP = 0.05
_ITERATIONS = 14
_MOST_DAMPING = 1e4
_LEAST_GAIN = 3e-4

_REPLACED = "before the PR"
"""Notes of a kernel that a faster one replaced: fused Adam before pytorch/pytorch#119842."""

FAMILY_BLOCKS = family_blocks()
"""The blocks that one GPU is fitted with, both 16-bit formats together."""

Level = tuple[str, str]
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A measured kernel with the GPU that it ran on.

    Attributes:
        row: As the table has it.
        gpu: Name of its profile.
        team: Who measured it.
    """

    row: KernelRow
    gpu: str
    team: str

    @property
    def kind(self) -> tuple[str, ...]:
        """Rows that weigh as much together as the square root of their number."""
        text = self.row.text
        return (self.team, self.gpu, text("op"), text("dtype"), text("direction"))


@dataclass(frozen=True)
class FamilyFit:
    """What each level adds to the typical parameters of one block, in logarithms or log odds.

    Attributes:
        block: The parameters.
        additions: Of each level, one number per parameter.
        rows: How many rows were fitted.
    """

    block: Block
    additions: Mapping[Level, Vector]
    rows: int

    def values(self, gpu: str, architecture: str) -> dict[str, float]:
        """Parameters of a GPU; of its family where nothing is known of it."""
        levels = _levels(gpu, architecture)
        point = _typical(self.block, gpu, architecture)
        point = sum((self.additions[each] for each in levels if each in self.additions), point)
        return _values(self.block, point)


def measured_kernels(paths: Iterable[str | Path]) -> list[Measured]:
    """All rows of the tables whose GPU has a profile with an architecture, of kernels still run."""
    found = []
    read = (row for path in paths for row in read_kernel_rows(path))
    for row in (row for row in read if _REPLACED not in row.text("notes")):
        with suppress(SkippedRowError):
            gpu = profile_name_of(row)
            if architecture_of(gpu):
                found.append(Measured(row, gpu, re.split(r"[:@ ]", row.text("source"))[0]))
    return found


@cache
def cool_profile(gpu: str) -> HardwareProfile:
    """The shipped profile of a name as benchmarks see it."""
    return without_sustained_clock(load_profile(gpu))


def architecture_of(gpu: str) -> str:
    """The family of a shipped profile; empty where it has none."""
    return cool_profile(gpu).device.architecture or ""


def families_with_a_prior(names: Iterable[str]) -> list[str]:
    """Those architectures whose energy of an operation is known well enough to start a fit."""
    return [name for name in names if name in _JOULE_PER_HALF_FLOP]


def sampled(rows: Sequence[Measured], most: int = ROWS_OF_A_KIND) -> list[Measured]:
    """At most so many rows of each kind."""
    kinds: dict[tuple[str, ...], list[Measured]] = defaultdict(list)
    for one in rows:
        kinds[one.kind].append(one)
    draw = random.Random(0)
    return [one for rows in kinds.values() for one in draw.sample(rows, min(most, len(rows)))]


def fit_families(rows: Sequence[Measured], known: Sequence[FamilyFit] = ()) -> list[FamilyFit]:
    """All blocks in order, each with those before it as found.

    Args:
        rows: Measured kernels of all GPUs.
        known: Fits to these rows and more: of a block that lost none, the fit is kept; the others
            start from theirs.
    """
    fits: list[FamilyFit] = []
    for place, shipped in enumerate(FAMILY_BLOCKS):
        block = _after_older_kernels(shipped, fits)
        profiles = {gpu: profile_with(gpu, fits) for gpu in {one.gpu for one in rows}}
        of_block = [one for one in rows if block.rows(one.row) and _answers(one, block, profiles)]
        if known and known[place].rows == len(of_block):
            fits.append(known[place])
        else:
            start = known[place].additions if known else {}
            fits.append(_fit_block(block, of_block, profiles, start))
    return fits


def _after_older_kernels(block: Block, fits: Sequence[FamilyFit]) -> Block:
    """FlashAttention 2 is believed to be what it is on Ampere, whose instructions it uses."""
    if block.path != ("flash_attention_2",) or "forward_efficiency" not in block.prior:
        return block
    on_ampere = next(fit for fit in fits if fit.block.prior.keys() == block.prior.keys())
    values = on_ampere.values("", "ampere")
    prior = {name: value * _OLD_INSTRUCTIONS_SHARE.get(name, 1.0) for name, value in values.items()}
    return replace(block, prior=prior)


def profile_with(gpu: str, fits: Sequence[FamilyFit]) -> HardwareProfile:
    """The profile of a GPU with all that the fits say of it and of its family."""
    profile = cool_profile(gpu)
    for fit in fits:
        profile = _with_block(profile, fit.block, fit.values(gpu, architecture_of(gpu)))
    return profile


def error_of(one: Measured, profile: HardwareProfile) -> float:
    """Logarithm of predicted over measured time."""
    pair = compared(one.row, profile)
    return math.log(pair.predicted_s / pair.measured_s)


def _fit_block(
    block: Block,
    rows: Sequence[Measured],
    profiles: Mapping[str, HardwareProfile],
    start: Mapping[Level, Vector],
) -> FamilyFit:
    """Gauss-Newton on a robust loss of the logarithm of predicted over measured, with priors."""
    gpus = {one.gpu: architecture_of(one.gpu) for one in rows}
    levels = sorted({level for gpu in gpus.items() for level in _levels(*gpu)})
    member = np.array(
        [[each in _levels(one.gpu, gpus[one.gpu]) for each in levels] for one in rows]
    )
    member = member.reshape(len(rows), len(levels)).astype(float)
    names, size = list(block.prior), (len(block.prior), len(levels))
    kinds = Counter(one.kind for one in rows)
    weights = np.array([kinds[one.kind] ** -0.5 for one in rows])
    costs = np.array([[_WEIGHT_OF_PRIOR / _spread(n, each) for each in levels] for n in names]) ** 2

    def errors(additions: Vector, moved: int | None = None) -> Vector:
        step = np.array([_STEP if place == moved else 0.0 for place in range(len(names))])
        candidates = {}
        for gpu, architecture in gpus.items():
            of_gpu = [
                place for place, each in enumerate(levels) if each in _levels(gpu, architecture)
            ]
            point = _typical(block, gpu, architecture) + additions[:, of_gpu].sum(axis=1) + step
            candidates[gpu] = _with_block(profiles[gpu], block, _values(block, point))
        return np.array([error_of(one, candidates[one.gpu]) for one in rows])

    def loss(additions: Vector, found: Vector) -> float:
        robust = np.sqrt(1.0 + (found / _ROBUST_SCALE) ** 2) - 1.0
        return float(_ROBUST_SCALE**2 * weights @ robust + 0.5 * (costs * additions**2).sum())

    if not rows:
        return FamilyFit(block, {}, 0)
    additions = np.array([start.get(each, np.zeros(size[0])) for each in levels]).T
    found = errors(additions)
    best, damping = loss(additions, found), 1e-3
    for _ in range(_ITERATIONS):
        slopes = [(errors(additions, p) - found) / _STEP for p in range(len(names))]
        jacobian = np.concatenate([member * slope[:, None] for slope in slopes], axis=1)
        robust = weights / np.sqrt(1.0 + (found / _ROBUST_SCALE) ** 2)
        curvature = jacobian.T @ (jacobian * robust[:, None]) + np.diag(costs.ravel())
        gradient = jacobian.T @ (robust * found) + (costs * additions).ravel()
        improved = False
        while not improved and damping < _MOST_DAMPING:
            damped = curvature + damping * np.diag(np.diag(curvature))
            trial = additions - np.linalg.solve(damped, gradient).reshape(size)
            trial_errors = errors(trial)
            value = loss(trial, trial_errors)
            improved = value < best
            damping = max(damping / 6, 1e-4) if improved else damping * 4
        if not improved:
            break
        gain, best, additions, found = best - value, value, trial, trial_errors
        if gain < _LEAST_GAIN * best:
            break
    return FamilyFit(block, dict(zip(levels, additions.T, strict=True)), len(rows))


def _levels(gpu: str, architecture: str) -> tuple[Level, ...]:
    return (("all", ""), ("architecture", architecture), ("gpu", gpu))


def _spread(name: str, level: Level) -> float:
    shared = _SHARED_ENERGY if name == "joule_per_operation" and level[0] == "all" else 1.0
    return _SPREAD[name] * _OF_LEVEL[level[0]] * shared


def _typical(block: Block, gpu: str, architecture: str) -> Vector:
    typical = dict(block.prior)
    if "cache_speedup" in typical:
        typical["cache_speedup"] = _cache_speedup(gpu, architecture)
    if "joule_per_operation" in typical:
        of_format = _ENERGY_OF_FORMAT.get(block.path[-1], 1.0)
        typical["joule_per_operation"] = of_format * _JOULE_PER_HALF_FLOP[architecture]
    return np.array([_odds(v) if _is_share(n) else math.log(v) for n, v in typical.items()])


def _cache_speedup(gpu: str, architecture: str) -> float:
    """How much faster than the memory the cache is by data sheets; of a family, the median."""
    family = [gpu] if gpu else [n for n in profile_names() if architecture_of(n) == architecture]
    devices = [cool_profile(name).device for name in family]
    return _CACHE_BYTES_PER_CYCLE * statistics.median(
        d.sm_count * d.boost_clock_hz / d.memory_bandwidth_bytes_per_s for d in devices
    )


def _values(block: Block, point: Vector) -> dict[str, float]:
    pairs = zip(block.prior, point, strict=True)
    plain = {n: 1.0 / (1.0 + math.exp(-x)) if _is_share(n) else math.exp(x) for n, x in pairs}
    if "cache_speedup" in plain:
        plain["cache_speedup"] = max(1.0, plain["cache_speedup"])
    return {name: float(f"{value:.3g}") for name, value in plain.items()}


def _is_share(name: str) -> bool:
    return name.endswith(("efficiency", "tail"))


def _odds(share: float) -> float:
    return math.log(share / (1.0 - share))


def _with_block(
    profile: HardwareProfile, block: Block, values: Mapping[str, float]
) -> HardwareProfile:
    for path in (block.path, *block.also):
        if has_block(profile, path):
            profile = with_values(profile, replace(block, path=path), values)
    return profile


def has_block(profile: HardwareProfile, path: tuple[str, ...]) -> bool:
    """Whether a profile has the block that a fit would change."""
    match path:
        case ("gemm", precision):
            return precision in profile.kernels.gemm
        case (family,):
            return getattr(profile.kernels, family) is not None
    return True


def _answers(one: Measured, block: Block, profiles: Mapping[str, HardwareProfile]) -> bool:
    profile = profiles[one.gpu]
    if not any(has_block(profile, path) for path in (block.path, *block.also)):
        return False
    try:
        compared(one.row, profile)
    except SkippedRowError:
        return False
    return True
