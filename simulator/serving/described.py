"""What does a user, or a file, say about serving: the deployment, and a job of it and traffic?"""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator

from simulator.described.base import (
    Bytes,
    Count,
    CountOrZero,
    Flag,
    PositiveFraction,
    Ratio,
    Spec,
)
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.documents import (
    given_or_shipped_file,
    name_in_errors,
    read_naming_yaml,
    validated,
    with_changes,
)
from simulator.described.json_schemas import DIALECT, schema_of
from simulator.described.load import load_model, load_profile, model_of
from simulator.described.model import Model
from simulator.described.other_kinds import refuse_shipped_of_another_kind
from simulator.errors import InputError
from simulator.files import is_there
from simulator.serving.workload import Workload

Engine = Literal[
    "vllm", "sglang", "tensorrt-llm", "atom", "lmdeploy", "tgi", "fastgen", "lmi", "orca", "static"
]
WeightFormat = Literal["fp32", "fp16", "bf16", "fp8", "fp8_block", "int8", "int4", "nvfp4", "mxfp4"]
CacheFormat = Literal["fp16", "bf16", "fp8", "nvfp4"]
Routing = Literal["round-robin", "least-loaded", "prefix-aware"]
_DEGREES = ("tp", "pp", "attention_dp")
"""What the GPUs of a pool are divided by, in the order of their fields."""


class Speculation(Spec):
    """Draft tokens that the model checks instead of making one at a time."""

    draft_tokens: Count
    """Tokens proposed to each request in a step."""
    acceptance: tuple[Annotated[float, Field(ge=0, le=1)], ...]
    """Chance that a draft is right if all before it were, by place; the last one repeats."""
    draft_layers: Annotated[float, Field(ge=0)] = 1.0
    """Layers of the model that one draft costs: 1 for multi-token prediction and EAGLE."""

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens of a request in a step, the one that is always right included.

        Source: Leviathan et al., arXiv 2211.17192, equation 1, with a rate for each place.
        """
        total, chance = 1.0, 1.0
        for place in range(self.draft_tokens):
            chance *= self.acceptance[min(place, len(self.acceptance) - 1)]
            total += chance
        return total

    @field_validator("acceptance")
    @classmethod
    def _is_given(cls, acceptance: tuple[float, ...]) -> tuple[float, ...]:
        if not acceptance:
            raise ValueError("needs at least one probability, for example [0.8]")
        return acceptance


class Adapters(Spec):
    """Low-rank adapters (LoRA) that an engine holds beside the model."""

    rank: Count
    """Rank of each."""
    loaded: Count = 1
    """Adapters that the requests of one step may have between them (``max_loras``)."""


class PrefillPool(Spec):
    """GPUs that compute prompts only and hand their keys and values to those that make tokens."""

    gpus: Count
    """GPUs of all its replicas together."""
    tp: Count = 1
    """Ranks that share every head and product."""
    pp: Count = Field(default=1, validate_default=True)
    """Pipeline stages."""
    attention_dp: Count = Field(default=1, validate_default=True)
    """Groups of ``tp`` ranks that attend to prompts of their own and share the experts."""
    ep: Count = 1
    """Ranks over which whole experts lie; 1 cuts every expert over all ranks of a replica."""
    max_tokens: CountOrZero = 0
    """Tokens of a step; 0 is the engine's own."""
    layer_wise: Flag = False
    """Whether a prompt's keys and values are sent layer by layer while its last step computes them
    (Splitwise, Mooncake); by default after it (DistServe, NIXL)."""

    @field_validator("tp", "pp", "attention_dp")
    @classmethod
    def _fill_whole_replicas(cls, degree: int, info: ValidationInfo) -> int:
        return _divides_the_gpus(degree, info)

    @field_validator("ep")
    @classmethod
    def _divides_the_ranks_of_a_stage(cls, ep: int, info: ValidationInfo) -> int:
        return _divides_a_stage(ep, info)


def _divides_the_gpus(degree: int, info: ValidationInfo) -> int:
    """A degree that, times those before it, leaves whole replicas of the GPUs.

    Raises:
        ValueError: It does not.
    """
    others = [*itertools.takewhile(lambda name: name != info.field_name, _DEGREES)]
    gpus, degrees = info.data.get("gpus"), [info.data.get(name) for name in others]
    ranks = degree * math.prod(each or 1 for each in degrees)
    if gpus and None not in degrees and gpus % ranks:
        names = f"{' x '.join((*others, str(info.field_name)))} = {ranks} " if others else ""
        raise ValueError(f"{names}must divide the {gpus} GPUs")
    return degree


def _divides_a_stage(ep: int, info: ValidationInfo) -> int:
    """A degree of experts that the ranks of a stage are a multiple of.

    Raises:
        ValueError: They are not.
    """
    tp, dp = info.data.get("tp", 1), info.data.get("attention_dp", 1)
    if (tp * dp) % ep:
        raise ValueError(f"must divide tp x attention_dp = {tp * dp}")
    return ep


class Deployment(Spec):
    """A model on GPUs behind an engine; settings left out are the engine's own."""

    model: Model
    """The network."""
    profile: HardwareProfile
    """The system."""
    gpus: Count
    """GPUs of all replicas together, those of ``prefill`` not counted."""
    engine: Engine = "vllm"
    """Whose scheduler, defaults and overheads hold."""
    version: str = ""
    """The engine's version, for example ``0.6.0``; empty is the newest known."""
    scheduler: str = ""
    """Scheduler by name; empty is the engine's own."""
    tp: Count = 1
    """Ranks that share every head and product."""
    pp: Count = Field(default=1, validate_default=True)
    """Pipeline stages."""
    attention_dp: Count = Field(default=1, validate_default=True)
    """Groups of ``tp`` ranks that attend to requests of their own and share the experts."""
    ep: Count = 1
    """Ranks over which whole experts lie; 1 cuts every expert over all ranks of a replica."""
    weights: WeightFormat = "bf16"
    """Format of the products' weights; ``fp8_block`` has a scale for each block of 128 x 128, as
    Qwen's own checkpoints in 8 bits. DeepSeek's have it where this says ``fp8``, too."""
    cache: CacheFormat = "bf16"
    """Format of keys and values."""
    memory_share: PositiveFraction | None = None
    """Share of a GPU's memory that the engine may use."""
    kv_blocks: CountOrZero = 0
    """Blocks of the cache; 0 asks the memory model."""
    block_tokens: CountOrZero = 0
    """Tokens of a block; 0 is the engine's own."""
    swap_bytes: Bytes = 0.0
    """Host memory of each GPU, to which preempted requests move (``swap_space`` of vLLM's first
    engine with ``preemption_mode=swap``); with none they are computed anew."""
    max_requests: CountOrZero = 0
    """Requests that run at once on a replica; 0 is the engine's own."""
    max_tokens: CountOrZero = 0
    """Tokens of a step; 0 is the engine's own."""
    max_model_tokens: CountOrZero = 0
    """Longest prompt and answer together, beyond which a request is refused; 0 is the longest of
    the workload. vLLM's first engine (before 0.8) takes the tokens of a step from it, and cuts
    prompts into pieces above 32,768."""
    long_prefill_tokens: CountOrZero = 0
    """Tokens of one prompt in a step while others wait; 0 is no limit."""
    receive_steps: CountOrZero = 0
    """Steps of answers between two looks at what has arrived (SGLang); 0 looks every step."""
    prompt_wait_steps: CountOrZero = 0
    """Steps that prompts wait at most until each group of ``attention_dp`` has one (TensorRT-LLM's
    ``enable_balance`` and ``timeout_iters``); 0 waits for nobody."""
    graph_batches: tuple[tuple[Count, Count, Count], ...] = ()
    """Sizes of batches that graphs are captured for: first, last and step of each range; empty is
    the engine's own. A batch of answers is padded to the next size."""
    prefix_caching: Flag | None = None
    """Whether beginnings of prompts are found again."""
    chunked_prefill: Flag | None = None
    """Whether prompts are computed in pieces."""
    plans_ahead: Flag | None = None
    """Whether a step is planned while the one before runs (asynchronous scheduling)."""
    has_front_end: Flag = True
    """Whether clients talk to it over HTTP; a benchmark in the same process does not."""
    graphs: Flag = True
    """Whether steps of answers only are launched as one graph."""
    custom_all_reduce: Flag = True
    """Whether ranks add up with the engine's own kernel where it takes it; else the library's."""
    routing: Routing = "round-robin"
    """Which replica gets a request."""
    prefill: PrefillPool | None = None
    """Prefill apart from decode: these GPUs compute prompts, ``gpus`` make the tokens after the
    first. By default each replica does both."""
    speculation: Speculation | None = None
    """Drafts; by default every token is made alone."""
    adapters: Adapters | None = None
    """Adapters; by default there are none."""
    usd_per_gpu_hour: Ratio | None = None
    """Price, for money per token."""

    @property
    def title(self) -> str:
        """One line: the model, the GPUs, the engine and the split."""
        pool = f" + {self.prefill.gpus} for prompts" if self.prefill else ""
        gpus = f"{self.gpus}{pool} x {self.profile.name}"
        split = f"tp {self.tp}, pp {self.pp}"
        if self.attention_dp > 1:
            split += f", attention dp {self.attention_dp}"
        if self.ep > 1:
            split += f", ep {self.ep}"
        return f"{self.model.name} on {gpus}, {self.engine}, {split}"

    @property
    def ranks(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp * self.attention_dp

    @property
    def replicas(self) -> int:
        """Copies of the model."""
        return self.gpus // self.ranks

    @property
    def unit(self) -> Deployment:
        """What copies are made of: a replica, or all where a pool for prompts feeds them."""
        return self if self.prefill else self.model_copy(update={"gpus": self.ranks})

    @property
    def all_gpus(self) -> int:
        """GPUs of both pools."""
        return self.gpus + (self.prefill.gpus if self.prefill else 0)

    @property
    def prefill_deployment(self) -> Deployment:
        """The pool that computes prompts as a deployment of its own."""
        assert self.prefill is not None
        alone = {"prefill": None, "speculation": None, "kv_blocks": 0}
        pool = self.prefill.model_dump(exclude={"layer_wise"})
        return self.model_copy(update={**alone, **pool})

    @field_validator("model")
    @classmethod
    def _keeps_keys_and_values(cls, model: Model) -> Model:
        if model.ssm is not None:
            raise ValueError("serving does not support Mamba-2 layers; use a model without ssm")
        return model

    @field_validator("tp", "pp", "attention_dp")
    @classmethod
    def _fill_whole_replicas(cls, degree: int, info: ValidationInfo) -> int:
        return _divides_the_gpus(degree, info)

    @field_validator("ep")
    @classmethod
    def _divides_the_ranks_of_a_stage(cls, ep: int, info: ValidationInfo) -> int:
        model = info.data.get("model")
        if ep > 1 and model is not None and model.experts is None:
            raise ValueError("needs a model with experts; remove it")
        return _divides_a_stage(ep, info)


class ServingJob(Spec):
    """A deployment and its workload; :func:`load_serving` reads one."""

    deployment: Deployment
    workload: Workload = Workload()

    _document: Mapping[str, Any] = PrivateAttr(default_factory=dict)
    _source: str = PrivateAttr(default="")

    @property
    def title(self) -> str:
        """One line that describes the deployment."""
        return self.deployment.title

    @property
    def document(self) -> Mapping[str, Any]:
        """The job as it was written, ready to be saved as YAML."""
        return self._document

    def __repr__(self) -> str:
        """The job as a notebook or a script prints it."""
        return f"ServingJob({self.title}, {self.workload.title})"

    __str__ = __repr__

    def replace(self, changes: Mapping[str, Any] | None = None, /, **more: Any) -> ServingJob:
        """A copy of the job with changed fields.

        Args:
            changes: New values by dotted path, for example ``{"deployment.tp": 4}``.
            more: The same as keywords: ``job.replace(**{"deployment.tp": 4})``.

        Raises:
            InputError: A path or value is wrong.
        """
        changed = with_changes(self._document, {**(changes or {}), **more})
        return _job_of(changed, self._source)


def load_serving(
    source: str | Path | Mapping[str, Any], changes: Mapping[str, Any] | None = None
) -> ServingJob:
    """A serving job from a YAML file, a shipped name, or what such a file says as a dictionary.

    ``deployment.model`` and ``deployment.profile`` are shipped names or paths; a model may also be
    written in place, or as a ``base`` with what differs.

    Args:
        source: The file, a shipped name, or the document of a file.
        changes: New values by dotted path, for example ``{"deployment.tp": 4}``.

    Raises:
        InputError: With every fault of the job.
    """
    changes = changes or {}
    if isinstance(source, Mapping):
        file, document = "", dict(source)
    else:
        refuse_shipped_of_another_kind("serving job", Path(source))
        path = given_or_shipped_file("serving job", Path(source), "serving")
        file, document = str(path), read_naming_yaml(path, _WANTED, changes)
    return _job_of(with_changes(document, changes), file)


def _job_of(document: Mapping[str, Any], file: str) -> ServingJob:
    """The job of a document; what it names is beside the file, or shipped."""
    written = copy.deepcopy(dict(document))
    deployment = document.get("deployment")
    if deployment is None and "model" in document:
        raise InputError.single("", "is a job of training", hint=_WANTED, file=file)
    if isinstance(deployment, Mapping):
        document = {**document, "deployment": _resolved(deployment, Path(file).parent)}
    workload = document.get("workload")
    if isinstance(workload, Mapping) and isinstance(trace := workload.get("trace"), str):
        beside = Path(file).parent / trace
        if trace and is_there(beside):
            document = {**document, "workload": {**workload, "trace": str(beside)}}
    job = validated(ServingJob, dict(document), file=name_in_errors(file))
    job._document, job._source = written, file
    return job


_WANTED = "give a YAML file with a deployment and a workload"


def _resolved(deployment: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    resolved = dict(deployment)
    for field, load, rule, example in _NAMED:
        given, path = deployment.get(field), f"deployment.{field}"
        if isinstance(given, str):
            beside = folder / given
            resolved[field] = load(beside if is_there(beside) else given)
        elif field == "model" and isinstance(given, Mapping):
            resolved[field] = model_of(given, folder, path)
        else:
            raise InputError.single(path, rule, given, f"for example {example}")
    return resolved


_NAMED: tuple[tuple[str, Callable[[str | Path], Any], str, str], ...] = (
    ("model", load_model, "must be a name, a path, or a block of fields", "llama3.1-70b"),
    ("profile", load_profile, "must be a name or a path", "h100-sxm-80gb"),
)
"""What a deployment names, how it is read, what it must be, and an example."""
_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "model": {
        "type": ["string", "object"],
        "description": "A shipped model, a path to a .yaml file or to a Hugging Face config.json, "
        "or the fields of a model, as a job of training writes them.",
    },
    "profile": {
        "type": "string",
        "description": "A shipped hardware profile, or a path to a .yaml file.",
    },
}


def serving_schema() -> dict[str, Any]:
    """JSON schema of a serving job's file."""
    schema = schema_of(ServingJob)
    blocks = schema["$defs"]
    blocks["Deployment"]["properties"] |= _SCHEMAS
    return {"$schema": DIALECT, **schema, "$defs": _reached(schema["properties"], blocks)}


def _reached(node: Mapping[str, Any], blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Blocks that a schema refers to, directly or through others."""
    names = set(re.findall(r"#/\$defs/(\w+)", json.dumps(node)))
    known: set[str] = set()
    while names - known:
        known |= names
        names |= set(re.findall(r"#/\$defs/(\w+)", json.dumps([blocks[name] for name in names])))
    return {name: block for name, block in blocks.items() if name in known}
