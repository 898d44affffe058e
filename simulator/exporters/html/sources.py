"""Which numbers of the hardware profiles does an operation rest on?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from simulator.described.cluster.hardware import HardwareProfile, Provenance
from simulator.described.job import Job
from simulator.program.ir import COMMUNICATION, Operation

_COMPUTING = "kernels"
_PORT_BLOCKS = {"scale_up": "network.scale_up", "fabric": "network.fabric"}


def source_blocks(job: Job) -> dict[str, str]:
    """The blocks of the profiles that this job uses, and in words where their numbers come from."""
    found: dict[str, Counter[str]] = {}
    for _, path, source in used_numbers(job):
        block = next((b for b in (_COMPUTING, *_PORT_BLOCKS.values()) if path.startswith(b)), None)
        if block:
            found.setdefault(block, Counter())[source.kind] += 1
    return {
        block: ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        for block, kinds in found.items()
    }


def profiles(job: Job) -> list[HardwareProfile]:
    """The kinds of GPUs of a job's cluster, each once."""
    kinds = [pool.profile for pool in job.cluster.pools or (job.cluster,)]
    return list({profile.name: profile for profile in kinds}.values())


def used_numbers(job: Job) -> Iterator[tuple[HardwareProfile, str, Provenance]]:
    """Profile, path and source of every number but those of products in other formats."""
    for profile in profiles(job):
        gemm = "kernels.gemm."
        used = f"{gemm}{job.plan.precision}."
        for path, source in profile.provenance.items():
            if path.startswith(used) or not path.startswith(gemm):
                yield profile, path, source


def rests_on(operation: Operation, blocks: Sequence[str]) -> list[str]:
    """Those of the blocks that decide how long an operation takes."""
    work = operation.work
    used = set()
    if any(part.category not in COMMUNICATION and part.seconds for part in work.parts):
        used.add(_COMPUTING)
    exchanges = [collective.port_bytes for collective in work.collectives]
    if work.traffic is not None:
        exchanges.append(work.traffic.port_bytes)
    for port_bytes in exchanges:
        used |= {
            # Whatever climbs the fabric's tiers also passes the NIC.
            _PORT_BLOCKS["scale_up" if port == "scale_up" else "fabric"]
            for port, num_bytes in port_bytes.items()
            if num_bytes
        }
    return [block for block in blocks if block in used]
