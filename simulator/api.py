"""The public functions: load a job, simulate it, look at the result."""

from __future__ import annotations

from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.program.build import build_program
