"""What do ranks with copies of parameters exchange, by the way of data parallelism?

To add a way, write what it exchanges in a file of :mod:`simulator.program.states`, and a line
here. One process for all GPUs of a node has a program of its own
(:mod:`simulator.program.run.single_process`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from simulator.described.job import Job
from simulator.program.run.data_parallel import Exchanges
from simulator.program.states.data_parallel_collectives import Collectives
from simulator.program.states.gather_units import Units
from simulator.program.states.parameter_server import ServerTransfers

EXCHANGES: Mapping[str, Callable[[Job, Units], Exchanges]] = MappingProxyType(
    {"ddp": Collectives, "parameter-server": ServerTransfers}
)
"""Exchanges by the name that ``plan.data_parallel`` uses."""
