"""Which options does a command give, and on how many GPUs does its launcher start it?

Launchers set it themselves (torchrun, srun, mpirun, deepspeed), and so do headers of Slurm, PBS and
LSF, and variables that programs take for it.

Source: torchrun's, Slurm's (sbatch), PBS Pro's (qsub -l select) and LSF's (bsub) manuals, as facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from simulator.importers.interpolation import typed
from simulator.importers.shell.launch_script import Script
from simulator.importers.shell.scheduler_headers import (
    NODES,
    TASKS,
    gpus_per_node,
    number_said,
    whole,
)

_PROCESSES = ("--nproc_per_node", "--nproc-per-node", "--num_gpus", "--num-gpus")
_IN_ALL = ("-n", "-np", "--np", "--ntasks", "--num_processes", "--gpus", "-G")
_NODE_VARIABLES = ("NNODES", "NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_PER_NODE_VARIABLES = ("NPROC_PER_NODE", "GPUS_PER_NODE", "NGPUS_PER_NODE", "SLURM_GPUS_ON_NODE")
_ONE_NODE = r"(.*/)?torchrun|torch\.distributed\.(run|launch)"
"""Launchers that start on one node unless they are told otherwise."""


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Options by name, underscores for dashes; one without a value is true."""
    values: dict[str, list[str]] = {}
    name = ""
    for word in (part for item in words for part in _split_option(item)):
        if re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            values[name] = [value] if equals else []
        elif name:
            values[name].append(word)
    return {key: _value(value) for key, value in values.items()}


def launched_gpus(launcher: Sequence[str], script: Script) -> int | None:
    """GPUs that a launcher starts a command on; None where nothing says it.

    Args:
        launcher: Words up to the program that is started.
        script: The script around it.
    """
    if script.gpus:
        return script.gpus
    header = script.directives
    nodes = number_said(launcher, NODES) or number_said(header, NODES) or _selected(header, "")
    per_node = number_said(launcher, _PROCESSES) or gpus_per_node([*launcher, *header])
    per_node = per_node or _selected(header, "n?gpus")
    nodes = nodes or _variable(script, _NODE_VARIABLES)
    per_node = per_node or _variable(script, _PER_NODE_VARIABLES) or _visible(script)
    per_node = per_node or number_said(launcher, TASKS) or number_said(header, TASKS)
    if nodes and per_node:
        return nodes * per_node
    in_all = number_said(launcher, _IN_ALL) or number_said(header, _IN_ALL)
    if in_all := in_all or _variable(script, ("WORLD_SIZE",)):
        return in_all
    says_nodes = any(word.partition("=")[0] in NODES for word in launcher)
    says_nodes = says_nodes or any("$" in script.variables.get(n, "") for n in _NODE_VARIABLES)
    is_alone = any(re.fullmatch(_ONE_NODE, word) for word in launcher) or not launcher
    return per_node if per_node and is_alone and not says_nodes else None


def _split_option(word: str) -> list[str]:
    """An option and its value where an array holds them as one word."""
    return word.split() if word.startswith("--") and " " in word else [word]


def _value(words: list[str]) -> Any:
    values = [typed(word.strip("'\"")) if _is_number(word) else word.strip("'\"") for word in words]
    if not values:
        return True
    return values[0] if len(values) == 1 else values


def _is_number(word: str) -> bool:
    return word.strip("'\"").lower() not in ("true", "false")


def _selected(words: Sequence[str], resource: str) -> int | None:
    """Chunks of PBS' ``-l select=4:ngpus=8`` (no resource), or a resource of each.

    LSF's ``-nnodes 4`` and ``-gpu num=8`` are read, too.
    """
    text = " ".join(words)
    if resource:
        found = re.search(rf"(?:select=\d+:\S*?|-gpu\s+\"?\S*?){resource}=(\d{{1,4}})", text)
        return int(found[1]) if found else _lsf(text, r"-gpu\s+\"?num=(\d{1,4})")
    found = re.search(r"select=(\d{1,6})", text)
    return int(found[1]) if found else _lsf(text, r"-nnodes\s+(\d{1,6})")


def _lsf(text: str, pattern: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) if found else None


def _variable(script: Script, names: Iterable[str]) -> int | None:
    for name in names:
        value = script.variables.get(name, "")
        if isinstance(value, str) and (found := whole(value)):
            return found
    return None


def _visible(script: Script) -> int | None:
    """Devices in ``CUDA_VISIBLE_DEVICES=0,1,2,3``."""
    value = script.variables.get("CUDA_VISIBLE_DEVICES", "")
    is_list = isinstance(value, str) and re.fullmatch(r"\d{1,3}(,\d{1,3}){0,63}", value)
    return len(str(value).split(",")) if is_list else None
