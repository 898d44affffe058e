"""How does the job of the page leave it: as YAML, a shell line, or a framework's settings?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import yaml

from simulator.described.job import Job
from simulator.errors import InputError
from simulator.exporters.deepspeed import deepspeed_config
from simulator.exporters.megatron import megatron_script
from simulator.exporters.torchtitan import schedule_csv, torchtitan_config
from simulator.studio.controls import State, job_of


def job_copy(state: State, form: str) -> str:
    """The job of a state in one of the :data:`FORMS`.

    Raises:
        InputError: There is no such format, or the framework cannot say what the job says.
    """
    if form not in FORMS:
        raise InputError.single("form", "no such format", form, f"use one of {', '.join(FORMS)}")
    return FORMS[form](job_of(state))


def _yaml(job: Job) -> str:
    return yaml.safe_dump(dict(job.document), sort_keys=False, allow_unicode=True)


def _shell(job: Job) -> str:
    return f"cat > job.yaml <<'END'\n{_yaml(job)}END\nclustersim run job.yaml\n"


def _torchtitan(job: Job) -> str:
    text = torchtitan_config(job)
    if schedule_csv(job) is not None:
        rule = "has no name in torchtitan and goes into a CSV file beside the TOML"
        hint = "copy the YAML, then run clustersim export torchtitan job.yaml --out job.toml"
        raise InputError.single("plan.schedule", rule, str(job.plan.schedule), hint)
    return text


FORMS: Mapping[str, Callable[[Job], str]] = {
    "YAML": _yaml,
    "Command line": _shell,
    "Megatron-LM": megatron_script,
    "torchtitan": _torchtitan,
    "DeepSpeed": deepspeed_config,
}
"""What makes a copy of each kind."""
