"""What does an engine of a version do where a deployment does not say?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Any

from pydantic import Field

from simulator.described.base import Count, CountOrZero, Flag, Seconds, Spec
from simulator.described.cluster.hardware import Provenance
from simulator.described.documents import validated, yaml_mapping
from simulator.errors import InputError
from simulator.serving.described import Deployment
from simulator.serving.kernels.parameters import version_key
from simulator.serving.schedulers.by_name import SCHEDULERS
from simulator.serving.schedulers.scheduler import Limits
from simulator.units import parse_quantity

_FILE = "engines.yaml"
_LEAST_STEP_TOKENS = 2048
"""Of a step that has room for the longest request. Source: vLLM 0.2.6 to 0.7, ``config.py``,
``SchedulerConfig``: ``max(max_model_len, 2048)``."""
_BySize = Count | Mapping[str, Count]


class Host(Spec):
    """What the processor does for a step."""

    step_s: Seconds
    """For each step: schedule, prepare, read results."""
    request_s: Seconds
    """For each request of a step."""
    launch_s: Seconds
    """For each kernel that is not in a graph."""
    front_s: Seconds
    """From a client's request to the queue, and from its first token back: HTTP, tokens to text."""


class EngineDefaults(Spec):
    """Defaults of an engine from a version on; sizes may depend on the GPU's memory."""

    first_version: Annotated[str, Field(alias="from")]
    year: Count = 1
    """First in which a run that names no version has it."""
    scheduler: str
    chunked_scheduler: str = ""
    """The one that takes over where prompts are computed in pieces, if it is another."""
    max_requests: _BySize
    max_tokens: _BySize
    offline_tokens: _BySize = 0
    """Tokens of a step without a front end, if they are not ``max_tokens``."""
    memory_share: float
    shares_free_memory: Flag = False
    """Whether the share is that of what weights and activations leave, not of the device."""
    block_tokens: Count
    prefix_caching: Flag
    chunked_prefill: Flag
    chunks_above: CountOrZero = 0
    """Longest request above which prompts are computed in pieces all the same; 0 is none. Latent
    attention had no pieces in these releases."""
    chunk_tokens: CountOrZero = 0
    """Tokens of a step with pieces of prompts, if they are not ``max_tokens``."""
    spans_model: Flag = False
    """Whether a step of whole prompts has room for the longest request."""
    plans_ahead: Flag
    pcie_ranks: CountOrZero = 0
    """Most ranks without NVLink that the engine's own all_reduce takes; 0 is any number."""
    captures_graphs: Flag = True
    graph_batches: tuple[tuple[Count, Count, Count], ...] = ()
    """Sizes of batches that graphs are captured for: first, last and step of each range."""
    graphs_prompts: Flag = False
    """Whether a step with prompts runs in graphs too, attention aside, where one is so large."""
    host: Host
    source: Provenance


@lru_cache
def _known() -> Mapping[str, tuple[EngineDefaults, ...]]:
    text = files("simulator.serving").joinpath(_FILE).read_text(encoding="utf-8")
    return {name: tuple(_entries(name, given)) for name, given in yaml_mapping(text, _FILE).items()}


def _entries(name: str, given: Sequence[Mapping[str, Any]]) -> Iterator[EngineDefaults]:
    """Each entry over those before it."""
    said: Mapping[str, Any] = {}
    for entry in given:
        said = {**said, **entry}
        yield validated(EngineDefaults, said, name, file=_FILE)


def engine_defaults(deployment: Deployment) -> EngineDefaults:
    """Defaults of the deployment's engine at its version; an empty one is the newest."""
    entries = _known()[deployment.engine]
    if not deployment.version:
        return entries[-1]
    wanted = version_key(deployment.version)
    return [e for e in entries if version_key(e.first_version) <= wanted][-1]


def version_of_year(engine: str, year: int) -> str:
    """First version of the defaults of an engine in a year; empty before any."""
    return next((e.first_version for e in reversed(_known()[engine]) if e.year <= year), "")


def keeps_prefixes(deployment: Deployment) -> bool:
    """Whether beginnings of prompts are found again, as the deployment says, or its engine."""
    return _first(deployment.prefix_caching, engine_defaults(deployment).prefix_caching)


def scheduler_name(deployment: Deployment) -> str:
    """The scheduler that the deployment names, or its engine's.

    Raises:
        InputError: There is no such scheduler.
    """
    known = engine_defaults(deployment)
    chunked = known.chunked_scheduler if _is_chunked(deployment, known) else ""
    name = deployment.scheduler or chunked or known.scheduler
    if name not in SCHEDULERS:
        hint = f"choose one of {', '.join(SCHEDULERS)}"
        raise InputError.single("deployment.scheduler", "no such scheduler", name, hint)
    return name


def has_own_all_reduce(deployment: Deployment) -> bool:
    """Whether ranks of a layer add up with the engine's own kernel, not the library's."""
    most = engine_defaults(deployment).pcie_ranks
    is_pcie = deployment.profile.network.scale_up.kind == "pcie"
    is_beyond = is_pcie and 0 < most < deployment.tp
    return deployment.custom_all_reduce and not is_beyond


def limits_of(deployment: Deployment, longest_tokens: int) -> Limits:
    """Settings of the scheduler: what the deployment says, else the engine's defaults.

    Args:
        deployment: What the user says.
        longest_tokens: Prompt and answer of the longest request.
    """
    known = engine_defaults(deployment)
    speculation = deployment.speculation
    # Every group of ranks with requests of its own has the engine's limits.
    groups = deployment.attention_dp
    return Limits(
        max_requests=groups * (deployment.max_requests or _of_gpu(known.max_requests, deployment)),
        max_tokens=groups * (deployment.max_tokens or _step_tokens(deployment, known)),
        max_model_tokens=deployment.max_model_tokens or longest_tokens,
        chunked_prefill=_is_chunked(deployment, known),
        long_prefill_tokens=deployment.long_prefill_tokens,
        tokens_per_step=speculation.tokens_per_step if speculation else 1.0,
        draft_tokens=speculation.draft_tokens if speculation else 0,
        plans_ahead=_first(deployment.plans_ahead, known.plans_ahead),
        receive_steps=deployment.receive_steps,
        groups=groups,
        prompt_wait_steps=deployment.prompt_wait_steps,
        max_adapters=deployment.adapters.loaded if deployment.adapters else 0,
    )


def _is_chunked(deployment: Deployment, known: EngineDefaults) -> bool:
    """Whether prompts are computed in pieces."""
    is_long = 0 < known.chunks_above < deployment.max_model_tokens
    by_default = known.chunked_prefill or (is_long and deployment.model.latent_attention is None)
    return _first(deployment.chunked_prefill, by_default)


def _step_tokens(deployment: Deployment, known: EngineDefaults) -> int:
    """Tokens of a step where the deployment does not say."""
    if known.chunk_tokens and _is_chunked(deployment, known):
        return known.chunk_tokens
    if known.spans_model and deployment.max_model_tokens:
        return max(_LEAST_STEP_TOKENS, deployment.max_model_tokens)
    is_offline = bool(known.offline_tokens) and not deployment.has_front_end
    return _of_gpu(known.offline_tokens if is_offline else known.max_tokens, deployment)


def _first(said: bool | None, default: bool) -> bool:
    return default if said is None else said


def _of_gpu(given: _BySize, deployment: Deployment) -> int:
    """The entry that the GPU's name has in it, else that of the largest memory it has at least."""
    if isinstance(given, int):
        return given
    profile = deployment.profile
    named = [size for key, size in given.items() if not key[0].isdigit() and key in profile.name]
    if named:
        return named[0]
    sizes = {parse_quantity(k, "bytes"): v for k, v in given.items() if k[0].isdigit()}
    fitting = [size for size in sizes if size <= profile.device.memory_bytes]
    return sizes[max(fitting)] if fitting else given["other"]
