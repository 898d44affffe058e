"""clustersim init: how does a first job come to be, from five questions?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from simulator.cli.completion import complete_model, complete_profile
from simulator.cli.console import note, working
from simulator.cli.options import option
from simulator.errors import InputError
from simulator.files import write_whole
from simulator.results.fit_probability import DEFAULT_RISK
from simulator.units import counted, format_bytes, format_count, format_seconds, percent

if TYPE_CHECKING:
    from simulator.described.job import Job
    from simulator.planning.search.search import PlanChoice, PlanSearch

_Answer = TypeVar("_Answer")

_MODEL, _PROFILE, _GPUS = "llama3.1-8b", "h100-sxm-80gb", 8
_SEQUENCES_PER_GPU, _SEQ_LEN = 8, 4096
_MOST_MICRO = 4
_LENGTHS = re.compile(r"(\d+)\s*[x*,]\s*(\d+)")


class Aim(StrEnum):
    """What matters most to the user."""

    FASTEST = "fastest"
    SAFEST = "safest"
    SIMPLEST = "simplest"


_RISKS = {Aim.FASTEST: DEFAULT_RISK, Aim.SAFEST: 0.01, Aim.SIMPLEST: DEFAULT_RISK}
"""Probability of running out of memory that each aim accepts; the last, where its plan fits."""


@dataclass(frozen=True)
class _Answers:
    model: str
    profile: str
    gpus: int
    sequences: int
    seq_len: int
    aim: Aim

    def document(self, plan: Mapping[str, Any], micro: int = 1) -> dict[str, Any]:
        batch = {"global": self.sequences, "micro": micro, "seq_len": self.seq_len}
        cluster = {"profile": self.profile, "gpus": self.gpus}
        return {"model": self.model, "cluster": cluster, "batch": batch, "plan": dict(plan)}


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write the job to.")] = Path(
        "job.yaml"
    ),
    *,
    model: Annotated[
        str | None,
        option("A shipped model, or a config.json.", "NAME|PATH", autocompletion=complete_model),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            "--profile",
            metavar="NAME|PATH",
            help="Hardware profile.",
            autocompletion=complete_profile,
        ),
    ] = None,
    gpus: Annotated[int | None, option("Number of GPUs.", "N", min=1)] = None,
    global_batch: Annotated[
        int | None, option("Sequences per step (global batch size).", "N", min=1)
    ] = None,
    seq_len: Annotated[int | None, option("Tokens per sequence.", "N", min=1)] = None,
    aim: Annotated[
        Aim | None,
        option(
            "Choose the fastest plan, the plan most likely to fit, or the framework's defaults."
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="Ask nothing; use defaults for options that are not given."
        ),
    ] = False,
    force: Annotated[bool, option("Overwrite FILE.", name="--force")] = False,
) -> None:
    """Write a first job from the answers to five questions.

    The questions are model, cluster, GPUs, batch and aim; an option answers its question. The plan
    is searched for among a few kinds of plans; clustersim plan FILE searches all of them.

    Exits with 1 if the job does not fit.

    Example:  clustersim init

    Example:  clustersim init job.yaml --model llama3-70b --cluster h100-sxm-80gb --gpus 64 --yes
    """
    if file.is_dir():
        raise InputError.single("FILE", "is a folder", str(file), f"name {file / 'job.yaml'}")
    if file.exists() and not force:
        hint = "name another file, or add --force to overwrite it"
        raise InputError.single("FILE", "exists already", str(file), hint)
    batch = (global_batch, seq_len)
    answers = _answers(model, cluster, gpus, batch, aim, ask=not yes)
    text, fits = _job_text(answers, file)
    write_whole(file, text)
    note(f"wrote {file}")
    note(f"next: clustersim run {file}")
    if not fits:
        note(f"to see what would make it fit: clustersim advise {file}")
        note(f"or with more GPUs: clustersim plan {file} --set cluster.gpus={2 * answers.gpus}")
        raise typer.Exit(1)


def _answers(
    model: str | None,
    cluster: str | None,
    gpus: int | None,
    batch: tuple[int | None, int | None],
    aim: Aim | None,
    *,
    ask: bool,
) -> _Answers:
    """What the options say, and for the rest the user's answers or the defaults."""

    def answer(
        words: str, given: object, default: object, read: Callable[[str], _Answer]
    ) -> _Answer:
        if given is None and ask:
            return _question(words, str(default), read)
        return read(str(default if given is None else given))

    words = "1/5 Model: a name (clustersim models list) or the path of a config.json"
    network = answer(words, model, _MODEL, _model)
    words = "2/5 Cluster: a hardware profile (clustersim profile list) or its file"
    profile = answer(words, cluster, _PROFILE, _profile)
    count = answer("3/5 GPUs", gpus, _GPUS, lambda text: _gpus(text, profile))
    sequences, length = batch
    usual = f"{sequences or _SEQUENCES_PER_GPU * count} x {length or _SEQ_LEN}"
    words = "4/5 Batch: sequences per step x tokens per sequence"
    tokens = answer(words, usual if sequences and length else None, usual, _batch)
    words = f"5/5 Aim: {' or '.join(Aim)} plan"
    return _Answers(network, profile, count, *tokens, answer(words, aim, Aim.FASTEST, _aim))


def _model(name: str) -> str:
    from simulator.described.load import load_model

    load_model(name)
    return name


def _profile(name: str) -> str:
    from simulator.described.load import load_profile

    load_profile(name)
    return name


def _question(words: str, default: str, read: Callable[[str], _Answer]) -> _Answer:
    """Ask until the answer can be read; the question goes to stderr.

    Raises:
        InputError: There is nobody who answers.
    """
    while True:
        try:
            text = typer.prompt(words, default=default, err=True)
        except typer.Abort:
            note("")  # ends the line of the question
            hint = "answer it, or give options and add --yes"
            raise InputError.single("clustersim init", "has no answer", words, hint) from None
        try:
            return read(text.strip())
        except InputError as error:
            note("\n".join(str(fault) for fault in error.faults))


def _whole(text: str, what: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InputError.single(what, "must be a whole number of 1 or more", text)
    return int(text)


def _gpus(text: str, profile: str) -> int:
    """GPUs that fill nodes, or a part of one."""
    from simulator.described.load import load_profile

    count = _whole(text, "GPUs")
    per_node = load_profile(profile).network.gpus_per_node
    if count > per_node and count % per_node:
        full = count // per_node * per_node
        hint = f"give {full} or {full + per_node}"
        raise InputError.single("GPUs", f"must be whole nodes of {per_node} GPUs", text, hint)
    return count


def _batch(text: str) -> tuple[int, int]:
    match = _LENGTHS.fullmatch(text)
    if match is None:
        hint = "for example 64 x 4096"
        raise InputError.single("batch", "must be two whole numbers", text, hint)
    return _whole(match[1], "sequences"), _whole(match[2], "tokens")


def _aim(text: str) -> Aim:
    from simulator.described.faults import nearest_hint

    known = [each.value for each in Aim]
    if text not in known:
        raise InputError.single("aim", "is not one of the aims", text, nearest_hint(text, known))
    return Aim(text)


def _job_text(answers: _Answers, file: Path) -> tuple[str, bool]:
    """The job as a commented file, and whether it fits."""
    from simulator.described.load import job_from_document
    from simulator.results.simulation import run_step

    if answers.aim is Aim.SIMPLEST:
        try:
            job = job_from_document(answers.document({}), str(file))
            result = run_step(job)
        except InputError:
            pass
        else:
            if result.fits:
                why = _why_text(result.step_time_s, result.fits_probability)
                return _commented(job, answers, {}, 1, f"The framework's defaults: {why}"), True
    with working("searching for a plan that fits"):
        found = _search(answers, file)
    if not found.choices:
        gpus = counted(answers.gpus, "GPU")
        said = f"No plan fits on {gpus}; this one needs the least memory."
        note(said)
        changes = found.smallest or {}
        return _file_of(answers, changes, said, file), False
    best = found.choices[0]
    kind = f"The fastest of {found.plans} plans that fit"
    why = f"{kind}: {_why_text(best.step_time_s, best.fits_probability, best)}"
    note(why)
    return _file_of(answers, best.changes, why, file), True


def _why_text(step_s: float, probability: float, choice: PlanChoice | None = None) -> str:
    held = f" with {format_bytes(choice.peak_device_bytes)} on the fullest GPU" if choice else ""
    return f"{format_seconds(step_s)} per step, {percent(probability, 0)} likely to fit{held}."


def _search(answers: _Answers, file: Path) -> PlanSearch:
    """The fastest plan among few kinds of plans: a search that takes seconds."""
    from simulator.described.documents import with_changes
    from simulator.described.load import job_from_document
    from simulator.planning.search.search import search_plans
    from simulator.planning.search.space import default_axes, searchable_job

    document = answers.document({})
    job = searchable_job(
        lambda changes: job_from_document(with_changes(document, changes), str(file))
    )
    known = default_axes(job)
    few = {"plan.vpp": [1], "plan.cp": [1]}
    vary: dict[str, list[Any]] = {path: few[path] for path in few if path in known}
    vary["batch.micro"] = [micro for micro in known["batch.micro"] if micro <= _MOST_MICRO]
    return search_plans(job, vary, risk=_RISKS[answers.aim])


def _file_of(answers: _Answers, changes: Mapping[str, Any], why: str, file: Path) -> str:
    from simulator.described.load import job_from_document

    neutral = {"plan.vpp": 1, "plan.cp": 1, "plan.ep": 1}
    plan = {
        path.removeprefix("plan."): value
        for path, value in changes.items()
        if path.startswith("plan.") and neutral.get(path) != value
    }
    micro = int(changes.get("batch.micro", 1))
    job = job_from_document(answers.document(plan, micro), str(file))
    return _commented(job, answers, plan, micro, why)


_MEANINGS = {
    "tp": "tensor parallelism: GPUs that share every layer",
    "pp": "pipeline stages",
    "ep": "expert parallelism: GPUs that share the experts",
    "zero": "ZeRO stage: 0 shards nothing, 1 optimizer states, 2 also gradients, 3 also weights",
    "recompute": "recompute activations: none, selective or full",
}


def _commented(job: Job, answers: _Answers, plan: Mapping[str, Any], micro: int, why: str) -> str:
    import yaml

    from simulator.program.layer.model_totals import parameter_count

    def quoted(name: str) -> str:
        return yaml.safe_dump(name, default_flow_style=True).splitlines()[0]

    size = format_count(parameter_count(job.model))
    lines = [
        "# A job of clustersim: model, cluster, batch and plan. Every field: docs/fields.md",
        f"model: {quoted(answers.model)}  # {size} parameters",
        "cluster:",
        f"  profile: {quoted(answers.profile)}  # see clustersim profile show",
        f"  gpus: {answers.gpus}",
        "batch:",
        f"  global: {answers.sequences}  # sequences per step, over all GPUs",
        f"  micro: {micro}  # sequences per microbatch",
        f"  seq_len: {answers.seq_len}  # tokens per sequence",
        f"# {why}",
    ]
    if not plan:
        return "\n".join([*lines, "plan: {}", ""])
    lines.append(f"plan:  # the data-parallel degree follows from the GPUs: {job.dp}")
    lines += [
        f"  {name}: {value}" + (f"  # {_MEANINGS[name]}" if name in _MEANINGS else "")
        for name, value in plan.items()
    ]
    return "\n".join([*lines, ""])
