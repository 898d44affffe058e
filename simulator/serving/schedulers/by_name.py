"""Which schedulers are there, by the name that a deployment gives?"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simulator.serving.schedulers.reserving import (
    LmiRollingBatch,
    Orca,
    OrcaOracle,
    OrcaPow2,
    Static,
    TrtllmMaxUtilisation,
    TrtllmNoEvict,
)
from simulator.serving.schedulers.scheduler import Scheduler
from simulator.serving.schedulers.sglang import Sglang
from simulator.serving.schedulers.turbomind import TurboMind
from simulator.serving.schedulers.vllm import FastGen, VllmV0, VllmV1

SCHEDULERS: Mapping[str, type[Scheduler]] = MappingProxyType(
    {
        "vllm-v1": VllmV1,
        "vllm-v0": VllmV0,
        "sglang": Sglang,
        "trtllm": TrtllmNoEvict,
        "trtllm-max-utilisation": TrtllmMaxUtilisation,
        "turbomind": TurboMind,
        "orca": Orca,
        "orca-pow2": OrcaPow2,
        "orca-oracle": OrcaOracle,
        "static": Static,
        "lmi": LmiRollingBatch,
        "fastgen": FastGen,
    }
)
"""Scheduler by name."""
