"""What is different for one rank that runs without the others, beside offloading?

Its exchanges take no time, because nothing comes, and its node is its own: copies and CPUs
share links, memory and cores with no other rank. Copies and the update on the CPU are real, so
that what hides behind what cannot be told from a step in which the exchanges take time.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.described.job import Job
from simulator.program.ir import COMMUNICATION, Category, Program

_SILENT = COMMUNICATION - {Category.OFFLOAD}


def alone_on_its_node(job: Job) -> Job:
    """The job with one rank per node, which has all of its host."""
    return job.replace({"cluster.network.gpus_per_node": 1})


def silence(program: Program) -> None:
    """Exchanges between ranks take no time and load no links; all else stays."""
    for operation in program.operations:
        work = operation.work
        heard = tuple(part for part in work.parts if part.category not in _SILENT)
        if len(heard) < len(work.parts):
            seconds = sum(part.seconds for part in heard)
            operation.work = replace(
                work, seconds=seconds, parts=heard, traffic=None, collectives=()
            )
