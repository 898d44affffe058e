"""How far may a predicted step be from a measured one?

The logarithm of measured over predicted step time is taken as a sum: what one source of runs has in
common (its software, clocks, hosts) and what is of the single run, each for the whole step and for
what regimes weigh in it: launches of kernels, exchanges inside layers, and those of stages and
copies of the model. Models with experts add a part of their own to both. Between the two is what
runs of a source have in common only where they are alike: in their network, their number of GPUs,
how they are split, their formats, their microbatches. What the numbers of a hardware profile leave
open adds to what is in common. Their sizes were fitted to runs that nothing was tuned to
(``simulator/facts/step_errors.yaml``).
Most sources are near and a few are far off, so the sum follows Student's t. What nobody told makes
a step longer more often than shorter, so the t is skewed until own runs are known.

Source: random-effects models (N. Laird, J. Ware, "Random-effects models for longitudinal data",
Biometrics 38, 1982) with multivariate t errors (K. Lange, R. Little, J. Taylor, J. Am. Stat. Assoc.
84, 1989).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.described.cluster.hardware import HardwareProfile, SourceKind
from simulator.described.cluster.kernel_parameters import Precision
from simulator.described.job import Job
from simulator.described.plan.shipped_stacks import STACKS
from simulator.facts import shipped_facts
from simulator.program.ir import Category
from simulator.program.price.host_pace import eager_layer_s, unhidden_layers
from simulator.results.students_t import skewed_t_quantile

Floats = NDArray[np.float64]

COVERAGE = 0.8
"""Share of the runs between the ends of a band."""

REGIMES = ("overall", "launches", "exchanges", "fabric")
"""What errors weigh with: the whole step, and the shares of it in :func:`exposure`."""

EXPERTS = "experts"
"""What models with experts add to the error of the whole step, beside the regimes. Own runs do not
tell it from the rest: what they show counts for all jobs of their system."""

ASPECTS = ("network", "gpus", "layout", "formats", "microbatch")
"""In what runs of one source can be alike, of :func:`traits_of`."""

EAGER = "eager"
"""Name of a framework whose model runs PyTorch's own kernels, whatever its stack's are."""

_FILE = "step_errors"

_EXCHANGES = (Category.TENSOR_PARALLEL, Category.CONTEXT_PARALLEL, Category.EXPERT_PARALLEL)
_COMPUTING = (Category.FORWARD, Category.BACKWARD, Category.RECOMPUTE)
_FABRIC = (Category.DATA_PARALLEL, Category.PIPELINE)


@dataclass(frozen=True)
class StepError:
    """What is known of the error of predicted steps: of the logarithm of measured over predicted.

    Attributes:
        covariance: Of what the runs of one source have in common, by regime; shape
            (regimes, regimes).
        noise: Variance of what is of the single run, by regime; shape (regimes,).
        freedom: Degrees of freedom of Student's t.
        alike: Variance of what runs have in common that are alike in an aspect, of the whole step;
            shape (aspects,).
        skew: How much further steps are off that take longer than predicted; 1: as far.
    """

    covariance: Floats
    noise: Floats
    freedom: float
    alike: Floats = field(default_factory=lambda: np.zeros(len(ASPECTS)))
    skew: float = 1.0

    def variance(self, exposed: Floats) -> float:
        """Variance of the error of a step, in which no regime weighs more than the whole.

        Args:
            exposed: How much each regime weighs, shape (regimes,).
        """
        exposed = np.minimum(exposed, 1.0)
        own = exposed**2 @ self.noise + self.alike.sum()
        return float(exposed @ self.covariance @ exposed + own)

    def scale(self, exposed: Floats) -> float:
        """Of Student's t that the error of a step follows; arguments as of :meth:`variance`."""
        return math.sqrt(self.variance(exposed))

    def band(self, exposed: Floats, computed: float = 0.0) -> tuple[float, float]:
        """Ratios of measured to predicted time between which eight of ten runs lie.

        Args:
            exposed: How much each regime weighs, shape (regimes,).
            computed: Share of the step that computes, 0 to 1: however quick hosts and exchanges
                are, the step takes as long as its computation at its quickest.
        """
        low = skewed_t_quantile((1 - COVERAGE) / 2, self.freedom, self.skew)
        high = skewed_t_quantile((1 + COVERAGE) / 2, self.freedom, self.skew)
        scale, alone = self.scale(exposed), self.scale(np.eye(len(exposed))[0])
        least = computed * math.exp(low * alone)
        return max(math.exp(low * scale), least), math.exp(high * scale)


@dataclass(frozen=True)
class FrameworkError:
    """How far runs of one framework were off.

    Attributes:
        sources: Where such runs are published.
        variance: Variance of their runs, over that of all frameworks.
    """

    sources: int = 0
    variance: float = 1.0


@dataclass(frozen=True)
class ErrorModel:
    """The sizes of errors, as they were fitted.

    Attributes:
        spread: Standard deviation of what the runs of one source have in common, by regime, and
            of what models with experts add to it.
        noise: The same, of what is of the single run.
        alike: Standard deviation of what runs of a source have in common that are alike in an
            aspect.
        freedom: Degrees of freedom of Student's t.
        skew: Of it, for who has no runs of their own.
        frameworks: By name of the stack, or :data:`EAGER`.
        numbers: Share of the step that follows a number of a profile, by regime and path.
        number_spread: Standard deviation of the logarithm of a number, by kind of its source.
        in_view: Errors of sources that were in view when the simulator was built, over those of
            others; for who compares bands with such sources.
    """

    spread: Mapping[str, float]
    noise: Mapping[str, float]
    alike: Mapping[str, float]
    freedom: float
    skew: float
    frameworks: Mapping[str, FrameworkError]
    numbers: Mapping[str, Mapping[str, float]]
    number_spread: Mapping[str, float]
    in_view: float

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> ErrorModel:
        """The model of a file of facts."""
        known = {name: FrameworkError(**each) for name, each in facts["frameworks"].items()}
        plain = {field.name: facts[field.name] for field in fields(cls)}
        return cls(**{**plain, "frameworks": known})

    def step_error(
        self,
        profile: HardwareProfile,
        precision: Precision,
        framework: str,
        *,
        has_experts: bool = False,
    ) -> StepError:
        """The error of steps of a framework on a system, or what its own runs leave open.

        Args:
            profile: The system.
            precision: Format of products with weights.
            framework: Name from :func:`framework_of`; one that is not known is as all together.
            has_experts: Whether the model has experts.
        """
        own = profile.own_runs
        if own is not None and own.framework == framework:
            alike = np.array(own.alike or np.zeros(len(ASPECTS)))
            return StepError(np.array(own.covariance), np.array(own.noise), own.freedom, alike)
        numbers = tuple(self.open_numbers(profile, precision))
        return self.error_of(numbers, framework, has_experts=has_experts)

    def error_of(
        self, numbers: Iterable[OpenNumber], framework: str, *, has_experts: bool = False
    ) -> StepError:
        """The same, where steps follow these numbers."""
        known = self.frameworks.get(framework, FrameworkError())
        common = known.variance * _squares(self.spread, has_experts)
        common += open_variance(numbers, self.number_spread)
        noise = known.variance * _squares(self.noise, has_experts)
        alike = known.variance * np.array([self.alike[aspect] ** 2 for aspect in ASPECTS])
        return StepError(np.diag(common), noise, self.freedom, alike, self.skew)

    def open_numbers(self, profile: HardwareProfile, precision: Precision) -> Iterator[OpenNumber]:
        """The numbers of a profile that steps follow; one that it lacks is assumed."""
        for regime, numbers in self.numbers.items():
            for name, response in numbers.items():
                path = name.format(precision=precision)
                source = profile.provenance.get(path)
                yield OpenNumber(regime, path, response, source.kind if source else "assumed")


class OpenNumber(NamedTuple):
    """A number of a profile that steps follow.

    Attributes:
        regime: What its share of a step goes with.
        path: Where it stands in the profile.
        response: Share of that which follows it.
        kind: Kind of its source.
    """

    regime: str
    path: str
    response: float
    kind: SourceKind


def open_variance(numbers: Iterable[OpenNumber], spread: Mapping[str, float]) -> Floats:
    """What numbers leave open of a step, shape (regimes,), from their spread by kind."""
    found = dict.fromkeys(REGIMES, 0.0)
    for number in numbers:
        found[number.regime] += (number.response * spread[number.kind]) ** 2
    return np.array(list(found.values()))


def _squares(sizes: Mapping[str, float], has_experts: bool) -> Floats:
    """Variances by regime; what experts add is of the whole step."""
    found = np.array([sizes[regime] ** 2 for regime in REGIMES])
    found[0] += has_experts * sizes[EXPERTS] ** 2
    return found


def exposure(
    step_time_s: float, breakdown_s: Mapping[Category, float], layer_passes: float
) -> Floats:
    """How much of a step each regime weighs, shape (regimes,); launches may weigh more than 1.

    Launches weigh what a host that launches a layer's kernels one by one would take, or what the
    device waits for the predicted host if that is more.

    Args:
        step_time_s: The step [s].
        breakdown_s: Where a mean GPU's time goes, by category [s].
        layer_passes: Layers that a mean GPU runs forward and backward in a step.
    """
    parts_s = (
        max(layer_passes * eager_layer_s(), breakdown_s.get(Category.HOST, 0.0)),
        math.fsum(breakdown_s.get(kind, 0.0) for kind in _EXCHANGES),
        math.fsum(breakdown_s.get(kind, 0.0) for kind in _FABRIC),
    )
    return np.array((1.0, *(seconds / step_time_s for seconds in parts_s)))


def teaching_exposure(
    step_time_s: float, breakdown_s: Mapping[Category, float], layer_passes: float
) -> Floats:
    """How much of a step each regime weighs in what its measured time tells; as :func:`exposure`.

    Host work that is hidden behind what the device does cannot have made a step longer, however
    slow a host may be (:func:`~simulator.program.price.host_pace.unhidden_layers`).
    """
    busy_s = math.fsum(breakdown_s.get(kind, 0.0) for kind in (*_COMPUTING, *_EXCHANGES))
    return exposure(step_time_s, breakdown_s, unhidden_layers(layer_passes, busy_s))


def computed_share(step_time_s: float, breakdown_s: Mapping[Category, float]) -> float:
    """Share of a step that a mean GPU computes, 0 to 1."""
    return math.fsum(breakdown_s.get(kind, 0.0) for kind in _COMPUTING) / step_time_s


def job_exposure(job: Job, step_time_s: float, breakdown_s: Mapping[Category, float]) -> Floats:
    """How much of a job's step each regime weighs."""
    return exposure(step_time_s, breakdown_s, _layer_passes(job))


def job_teaching_exposure(
    job: Job, step_time_s: float, breakdown_s: Mapping[Category, float]
) -> Floats:
    """The same in what its measured time tells."""
    return teaching_exposure(step_time_s, _by_links(job, breakdown_s), _layer_passes(job))


def _by_links(job: Job, breakdown_s: Mapping[Category, float]) -> Mapping[Category, float]:
    """The same times; where no fabric joins the GPUs, it carries no exchange, so none tells of it.

    All are then counted as those inside layers, which the same links carry. For what is left open
    they stay apart: how much of gradients and gathered weights hides is less certain than a link.
    """
    if job.cluster.pools or job.cluster.gpus > job.cluster.network.scale_up.gpus:
        return breakdown_s
    inside_s = math.fsum(breakdown_s.get(kind, 0.0) for kind in (*_EXCHANGES, *_FABRIC))
    others = {kind: s for kind, s in breakdown_s.items() if kind not in (*_EXCHANGES, *_FABRIC)}
    return {**others, _EXCHANGES[0]: inside_s}


def _layer_passes(job: Job) -> float:
    """Layers that a mean GPU runs forward and backward in a step."""
    return job.microbatches * job.model.layers / job.plan.pp


def traits_of(job: Job) -> tuple[Hashable, ...]:
    """What a run has to share with another one to be alike in each of :data:`ASPECTS`."""
    model, plan, batch, choices = job.model, job.plan, job.batch, job.choices
    shards = choices.shards_states, choices.shards_gradients, choices.shards_weights
    experts = 0 if model.experts is None else model.experts.count
    return (
        (model.layers, model.hidden, model.ffn_hidden, model.vocab, experts),
        job.cluster.gpus,
        (plan.tp, plan.pp, plan.cp, plan.ep, *shards),
        (plan.precision, plan.recompute),
        (batch.micro_batch, batch.seq_len),
    )


def alike_covariance(traits: Sequence[tuple[Hashable, ...]], alike: Floats) -> Floats:
    """What runs have in common where they are alike, shape (runs, runs).

    Args:
        traits: Of each run, from :func:`traits_of`; of an empty one nothing is known, and no run is
            like it.
        alike: Variance by aspect, shape (aspects,).
    """
    found = np.zeros((len(traits), len(traits)))
    for aspect, variance in enumerate(alike.tolist()):
        for one, of_one in enumerate(traits):
            for other, of_other in enumerate(traits):
                is_known = bool(of_one and of_other)
                if one == other or (is_known and of_one[aspect] == of_other[aspect]):
                    found[one, other] += variance
    return found


def framework_of(job: Job) -> str:
    """The stack that a job's began as, or :data:`EAGER` if it runs a model's own kernels."""
    base = STACKS.get(job.stack_name)
    is_eager = base is not None and base.fused_rmsnorm and not job.plan.stack.fused_rmsnorm
    return EAGER if is_eager else job.stack_name


def job_error(job: Job, profile: HardwareProfile | None = None) -> StepError:
    """The error of a job's steps on one kind of GPU; by default that of its first pool."""
    profile = profile or job.cluster.profile
    has_experts = job.model.experts is not None
    return shipped_errors().step_error(
        profile, job.plan.precision, framework_of(job), has_experts=has_experts
    )


def step_time_band_s(
    job: Job, step_time_s: float, breakdown_s: Mapping[Category, float]
) -> tuple[float, float] | None:
    """Between which times eight of ten such runs of a source nobody tuned to would lie [s].

    None where there are several kinds of GPUs, of which no runs are published.
    """
    if job.cluster.pools:
        return None
    exposed = job_exposure(job, step_time_s, breakdown_s)
    computed = computed_share(step_time_s, breakdown_s)
    fastest, slowest = job_error(job).band(exposed, computed)
    return fastest * step_time_s, slowest * step_time_s


@cache
def shipped_errors() -> ErrorModel:
    """The model that is shipped."""
    return ErrorModel.of_facts(shipped_facts(_FILE))
