"""What do the headers of a batch script ask of its scheduler, and what does Slurm tell the script?

Source: Slurm's sbatch manual, *OUTPUT ENVIRONMENT VARIABLES*; PBS Pro's and LSF's manuals, as
facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NODES = ("--nnodes", "--nnode", "--num_nodes", "--num-nodes", "-N", "--nodes")
TASKS = ("--ntasks-per-node", "--ntasks_per_node", "--npernode", "-npernode")
"""What starts one process for each GPU, or one that starts them."""
_GRES = ("--gres", "--gpus-per-node")


def directives_of(text: str) -> list[str]:
    """Words of a script's headers for Slurm, PBS and LSF; comments behind them are left out."""
    lines = re.findall(r"^#(?:SBATCH|PBS|BSUB)[ \t]+([^#\n]{1,500})", text, re.MULTILINE)
    return [word.strip("'\"") for line in lines for word in line.split()]


def slurm_variables(header: Sequence[str]) -> dict[str, str]:
    """Variables that Slurm sets for a script, as far as its headers say them."""
    nodes = number_said(header, NODES)
    tasks_per_node = number_said(header, TASKS)
    tasks = number_said(header, ("--ntasks", "-n"))
    in_all = tasks or (nodes * tasks_per_node if nodes and tasks_per_node else None)
    said = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_GPUS_ON_NODE": gpus_per_node(header),
        "SLURM_GPUS_PER_NODE": gpus_per_node(header, ("--gpus-per-node",)),
        "SLURM_NTASKS_PER_NODE": tasks_per_node,
        "SLURM_NTASKS": in_all,
        "SLURM_NPROCS": in_all,
        "SLURM_CPUS_PER_TASK": number_said(header, ("--cpus-per-task", "-c")),
        "SLURM_GPUS": number_said(header, ("--gpus", "-G")),
    }
    return {name: str(number) for name, number in said.items() if number}


def number_said(words: Sequence[str], names: Iterable[str]) -> int | None:
    """The whole number of the first of several options that is there."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            return whole(value if equals else next(iter(words[i + 1 :]), ""))
        short = next((n for n in names if len(n) == 2 and word.startswith(n)), "")
        if short and (found := whole(word[2:])):
            return found
    return None


def gpus_per_node(words: Sequence[str], names: Iterable[str] = _GRES) -> int | None:
    """GPUs per node in ``--gres=gpu:a100:8`` or ``--gpus-per-node=h100:8``."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            value = value if equals else next(iter(words[i + 1 :]), "")
            return whole(value.rpartition(":")[2])
    return None


def whole(text: str) -> int | None:
    """A number of at most nine digits; None for any other text."""
    return int(text) if text.isdecimal() and len(text) < 10 else None
