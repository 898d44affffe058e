"""What does a step cost where hosts without GPUs hold and update the parameters?

Every worker (a GPU) pushes its gradients to the servers as its buckets are ready, the servers
add them up, update, and every worker pulls the new weights: synchronous training, the same as
with all_reduce. Parameters are dealt out evenly over the servers. A worker moves its model
once each way, whatever their number, but n workers meet at s servers: each server's cards carry
n/s models each way, which is the limit as soon as servers are fewer than nodes.

A server is a host like that of a node, with its network cards. Gradients go into its memory, are
read again, and the sum is read and written: four bytes of memory traffic for each that arrives.
Its update is bound by its memory. Workers keep weights and gradients; masters and moments are the
servers'.

Ignores: servers beside the workers on their own hosts, adding up inside a node before pushing,
asynchronous updates, switches above the leafs, and whether a server's memory is large enough.
A bucket is pushed by all workers at once, when the last of them has it.
Source: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014,
sections 2 and 3; :mod:`simulator.cost.host` for how fast CPUs update.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Category, Collective, Kind, Part, Traffic, Work
from simulator.program.states.gather_units import Unit, Units
from simulator.program.states.resident import ParameterCount, optimizer_traffic_bytes, state_bytes

SERVER_PORT = "server"
"""Every worker's share of the ports of all servers."""

_HOST_MEMORY_BYTES_PER_S = 410e9
"""Of a host whose profile does not say. Assumption: two sockets of eight DDR4-3200 channels."""

_MEMORY_BYTES_PER_ARRIVING_BYTE = 4.0


class ServerRates(NamedTuple):
    """How fast the servers are for one worker when all of them push or pull.

    Attributes:
        push_bytes_per_s: Gradients that they take in [B/s].
        pull_bytes_per_s: Weights that they send [B/s].
    """

    push_bytes_per_s: float
    pull_bytes_per_s: float


def server_count(job: Job) -> int:
    """Hosts that hold the parameters: as many as the plan says, or one per node of GPUs."""
    return job.plan.parameter_servers or job.cluster.nodes


def server_memory_bytes_per_s(job: Job) -> float:
    """Rate at which a server passes over gradients and states: as CPUs do in an update [B/s]."""
    host = job.cluster.profile.host
    return host.optimizer_efficiency * (
        host.memory_bandwidth_bytes_per_s or _HOST_MEMORY_BYTES_PER_S
    )


def server_rates(job: Job) -> ServerRates:
    """Shares of one worker in the ports and the memory of all servers."""
    network = job.cluster.profile.network
    share = server_count(job) / job.cluster.gpus
    port = network.fabric_bytes_per_s * network.gpus_per_node
    memory = server_memory_bytes_per_s(job)
    return ServerRates(
        share * min(port, memory / _MEMORY_BYTES_PER_ARRIVING_BYTE), share * min(port, memory)
    )


def server_update_work(job: Job, parameters: ParameterCount) -> Work:
    """The optimizer on the servers, each with its part of the parameters."""
    num_bytes = optimizer_traffic_bytes(job, parameters) / server_count(job)
    seconds = num_bytes / server_memory_bytes_per_s(job)
    return Work(seconds, (Part("server_update", Category.HOST, seconds),))


class ServerTransfers:
    """Pushes of gradients and pulls of weights, in place of collectives.

    The :class:`~simulator.program.run.data_parallel.Exchanges` of workers with servers.
    """

    is_needed = True
    """A single worker has servers, too."""
    hands_out = gathers_ahead = True
    reduction_kind, gather_kind = Kind.REDUCE, Kind.BROADCAST

    def __init__(self, job: Job, units: Units) -> None:
        self._job, self._units = job, units
        self._state = state_bytes(job)
        self._rates = server_rates(job)

    def reduction(self, units: Sequence[Unit]) -> Work:
        """Pushes the gradients of units."""
        num_bytes = _total_numel(units) * self._state.reduced
        return self._transfer("push", self.reduction_kind, num_bytes, self._rates.push_bytes_per_s)

    def gather(self, units: Sequence[Unit], *, is_forward: bool = True) -> Work:
        """Pulls the weights of units."""
        del is_forward
        num_bytes = _total_numel(units) * self._state.gathered
        return self._transfer("pull", self.gather_kind, num_bytes, self._rates.pull_bytes_per_s)

    def hand_out(self, run: Slice) -> tuple[Kind, Work]:
        """Pulls the updated weights of a run."""
        return self.gather_kind, self.gather([self._units.whole(run)])

    def gather_small(self, runs: Sequence[Slice]) -> None:
        """Nothing: workers do not shard weights."""
        del runs

    def _transfer(self, name: str, kind: Kind, num_bytes: float, rate_bytes_per_s: float) -> Work:
        """One message between each worker and the servers, at the pace of the slower end."""
        network, workers = self._job.cluster.profile.network, self._job.cluster.gpus
        latency_s = network.fabric.bulk_latency_s
        seconds = latency_s + num_bytes / min(network.fabric_bytes_per_s, rate_bytes_per_s)
        ports = {"fabric": num_bytes, SERVER_PORT: num_bytes}
        return Work(
            seconds,
            (Part(name, Category.DATA_PARALLEL, seconds),),
            num_bytes=num_bytes,
            traffic=Traffic(ports, latency_s),
            collectives=(Collective(name, kind, "server", workers + 1, num_bytes, ports),),
        )


def _total_numel(units: Sequence[Unit]) -> float:
    return math.fsum(unit.parameters.total for unit in units)
