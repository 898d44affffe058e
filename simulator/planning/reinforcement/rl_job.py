"""What does a file say about reinforcement learning?"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import PrivateAttr, ValidationInfo, field_validator

from simulator.described.base import Count, CountOrZero, Flag, Spec
from simulator.described.documents import (
    given_or_shipped_file,
    name_in_errors,
    read_naming_yaml,
    validated,
    with_changes,
)
from simulator.described.job import Job
from simulator.described.load import job_from_document, load_job
from simulator.described.other_kinds import refuse_shipped_of_another_kind
from simulator.errors import InputError
from simulator.files import is_there
from simulator.serving.described import Deployment
from simulator.serving.workload import Lengths

Order = Literal["alternating", "one-step-off"]
Network = Literal["policy", "reference"]
FOLDER = "rl"
"""Of shipped files, in ``workloads``."""
_WANTED = "give a YAML file with training, generation and rollout"
_OWN = ("model", "profile")
"""Fields of a deployment that training gives."""


class Rollout(Spec):
    """What is generated for one step."""

    prompts: Count
    """Different prompts (``num_prompts_per_step``)."""
    answers_per_prompt: Count
    """Answers to each: the group that they are compared in (``num_generations_per_prompt``)."""
    prompt: Lengths
    """How long prompts are."""
    answer: Lengths
    """How long answers are; ``longest`` cuts them (``max_new_tokens``)."""
    seed: CountOrZero = 0
    """Draws of the same seed are the same."""

    @property
    def sequences(self) -> int:
        """Answers of a step."""
        return self.prompts * self.answers_per_prompt


class Logprobs(Spec):
    """Probabilities of what was generated, computed anew before training."""

    networks: tuple[Network, ...] = ("policy", "reference")
    """Who computes them: ``policy`` where training differs from the engine's numbers or has several
    updates, ``reference`` where the loss has a divergence from it."""
    micro: Count = 1
    """Sequences of a microbatch, or as many longest ones where sequences are packed."""


class RLJob(Spec):
    """A policy that is trained on what it generates; :func:`load_rl` reads one."""

    training: Job
    """One update of the policy: ``batch.global`` sequences, none longer than ``batch.seq_len``."""
    generation: Deployment
    """Who generates. Without ``gpus`` these are the GPUs of training, one after the other."""
    rollout: Rollout
    logprobs: Logprobs = Logprobs()
    packed: Flag = True
    """Whether sequences are joined until they fill ``batch.seq_len``; else each is a microbatch's,
    padded to the longest one in it."""
    order: Order = "alternating"
    """``alternating``: generation waits for the newest weights. ``one-step-off``: it goes on with
    those of the step before while these are trained."""
    moves_states: Flag = True
    """Whether shared GPUs move optimizer states to the host while they generate, and back."""

    _document: Mapping[str, Any] = PrivateAttr(default_factory=dict)
    _source: str = PrivateAttr(default="")

    @property
    def title(self) -> str:
        """One line: what is trained, and who generates."""
        where = "on the same GPUs" if self.shares_gpus else f"on {self.generation.gpus} others"
        return (
            f"{self.training.title}; {self.generation.engine} tp{self.generation.tp} {where}, "
            f"{self.order}"
        )

    @property
    def document(self) -> Mapping[str, Any]:
        """The job as it was written, ready to be saved as YAML."""
        return self._document

    @property
    def shares_gpus(self) -> bool:
        """Whether training and generation have the same GPUs."""
        return "gpus" not in self._document["generation"]

    @property
    def gpus(self) -> int:
        """GPUs of training and generation."""
        return self.training.cluster.gpus + (0 if self.shares_gpus else self.generation.gpus)

    @property
    def updates(self) -> int:
        """Optimizer steps on what one rollout generates."""
        return self.rollout.sequences // self.training.batch.global_batch

    def replace(self, changes: Mapping[str, Any] | None = None, /, **more: Any) -> RLJob:
        """A copy with changed fields, by dotted path such as ``generation.tp``.

        Raises:
            InputError: A path or value is wrong.
        """
        changed = with_changes(self._document, {**(changes or {}), **more})
        return _job_of(changed, self._source)

    def __repr__(self) -> str:
        """The job as a notebook or a script prints it."""
        return f"RLJob({self.title})"

    __str__ = __repr__

    @field_validator("rollout")
    @classmethod
    def _fills_whole_updates(cls, rollout: Rollout, info: ValidationInfo) -> Rollout:
        training = info.data.get("training")
        if training is not None and rollout.sequences % training.batch.global_batch:
            raise ValueError(
                f"prompts x answers_per_prompt = {rollout.sequences} must be a multiple of the "
                f"{training.batch.global_batch} sequences of an update (training.batch.global)"
            )
        return rollout


def load_rl(
    source: str | Path | Mapping[str, Any], changes: Mapping[str, Any] | None = None
) -> RLJob:
    """A job of reinforcement learning from a YAML file, a shipped name, or a dictionary.

    ``training`` is a job, written in place or by its name; ``generation`` is a deployment without
    model and profile, which are those of training.

    Args:
        source: The file, a shipped name, or the document of a file.
        changes: New values by dotted path, for example ``{"generation.tp": 4}``.

    Raises:
        InputError: With the faults of the job.
    """
    changes = changes or {}
    if isinstance(source, Mapping):
        return _job_of(with_changes(source, changes), "")
    refuse_shipped_of_another_kind("RL job", Path(source))
    path = given_or_shipped_file("RL job", Path(source), FOLDER)
    document = read_naming_yaml(path, _WANTED, changes)
    return _job_of(with_changes(document, changes), str(path))


def _job_of(document: Mapping[str, Any], file: str) -> RLJob:
    written = copy.deepcopy(dict(document))
    for block in ("training", "generation", "rollout"):
        if block not in document:
            raise InputError.single(block, "is missing", hint=_WANTED, file=name_in_errors(file))
    training = _training(document["training"], file)
    given = document["generation"]
    if not isinstance(given, Mapping):
        hint = "for example {engine: vllm, tp: 1}"
        raise InputError.single("generation", "must be a block of fields", given, hint, file=file)
    for field in _OWN:
        if field in given:
            rule, hint = "is that of training", "remove it"
            raise InputError.single(f"generation.{field}", rule, given[field], hint, file=file)
    gpus = given.get("gpus", training.cluster.gpus)
    deployment = {"has_front_end": False, **given, "gpus": gpus}
    deployment |= {"model": training.model, "profile": training.cluster.profile}
    resolved = {**document, "training": training, "generation": deployment}
    job = validated(RLJob, resolved, file=name_in_errors(file))
    job._document, job._source = written, file
    if job.order == "one-step-off" and job.shares_gpus:
        rule, hint = "needs GPUs that only generate", "give generation.gpus, or alternate"
        raise InputError.single("order", rule, job.order, hint, file=name_in_errors(file))
    return job


def _training(given: object, file: str) -> Job:
    """The job of training, written in place or named; files it names are beside this one."""
    if isinstance(given, Mapping):
        try:
            return job_from_document(given, source=file)
        except InputError as error:
            faults = [replace(each, path=f"training.{each.path}") for each in error.faults]
            raise InputError(faults) from error
    if isinstance(given, str):
        beside = Path(file).parent / given
        return load_job(beside if is_there(beside) else given)
    raise InputError.single("training", "must be a job or its name", given, _WANTED, file=file)
