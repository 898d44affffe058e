"""The public functions: what scripts and notebooks call, and what the commands print.

one_step           a job simulated: time, memory, pictures, traces
answer             what people do with any answer: table, JSON, page
plan_answers       the fastest plan
plan_sentences     what is said of the plans beside it
strategy_answers   the best plan of every strategy; ways of data parallelism
change_answers     limits, sensitivity
step_comparison    why the steps of several jobs differ
comparison         what that shares with a comparison of deployments
campaign_answers   a whole training run, on one cluster or several
held_answers       memory by owner; a pipeline's order
check_answers      what to check before a run
measured_answers   diagnosis, calibration, validation
grid_page          the page of a sweep
serving_answers    a deployment that serves a workload
serving_rates      the rates that it sustains, its best split, its GPUs
serving_comparison deployments beside each other
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.api.answer import Answer
    from simulator.api.campaign_answers import CapacityAnswer, ClustersAnswer, capacity
    from simulator.api.change_answers import (
        LimitsAnswer,
        SensitivityAnswer,
        limits,
        sensitivity,
    )
    from simulator.api.check_answers import ChecksAnswer, checks
    from simulator.api.grid_page import write_sweep_page
    from simulator.api.held_answers import MemoryAnswer, ScheduleAnswer, memory, schedule
    from simulator.api.measured_answers import (
        CalibrateAnswer,
        DiagnoseAnswer,
        ValidateAnswer,
        calibrate,
        diagnose,
        validate,
    )
    from simulator.api.one_step import Engine, Job, Result, load_job, sample, simulate
    from simulator.api.plan_answers import PlanAnswer, plan
    from simulator.api.rl_answers import RLAnswer, rl
    from simulator.api.serving_answers import ServeAnswer, serve
    from simulator.api.serving_comparison import ServeCompareAnswer, serve_compare
    from simulator.api.serving_rates import (
        ServeCapacityAnswer,
        ServePlanAnswer,
        ServeSweepAnswer,
        serve_capacity,
        serve_plan,
        serve_sweep,
    )
    from simulator.api.step_comparison import CompareAnswer, compare
    from simulator.api.strategy_answers import AdviseAnswer, StrategiesAnswer, advise, strategies
    from simulator.planning.offers.rental import rent
    from simulator.planning.reinforcement.rl_job import RLJob, load_rl
    from simulator.planning.sweep import sweep
    from simulator.serving.described import ServingJob, load_serving

__all__ = [
    "AdviseAnswer",
    "Answer",
    "CalibrateAnswer",
    "CapacityAnswer",
    "ChecksAnswer",
    "ClustersAnswer",
    "CompareAnswer",
    "DiagnoseAnswer",
    "Engine",
    "Job",
    "LimitsAnswer",
    "MemoryAnswer",
    "PlanAnswer",
    "RLAnswer",
    "RLJob",
    "Result",
    "ScheduleAnswer",
    "SensitivityAnswer",
    "ServeAnswer",
    "ServeCapacityAnswer",
    "ServeCompareAnswer",
    "ServePlanAnswer",
    "ServeSweepAnswer",
    "ServingJob",
    "StrategiesAnswer",
    "ValidateAnswer",
    "advise",
    "calibrate",
    "capacity",
    "checks",
    "compare",
    "diagnose",
    "limits",
    "load_job",
    "load_rl",
    "load_serving",
    "memory",
    "plan",
    "rent",
    "rl",
    "sample",
    "schedule",
    "sensitivity",
    "serve",
    "serve_capacity",
    "serve_compare",
    "serve_plan",
    "serve_sweep",
    "simulate",
    "strategies",
    "sweep",
    "validate",
    "write_sweep_page",
]

_MODULES = {
    "api.answer": {"Answer"},
    "api.campaign_answers": {"CapacityAnswer", "ClustersAnswer", "capacity"},
    "api.change_answers": {"LimitsAnswer", "SensitivityAnswer", "limits", "sensitivity"},
    "api.check_answers": {"ChecksAnswer", "checks"},
    "api.grid_page": {"write_sweep_page"},
    "api.held_answers": {"MemoryAnswer", "ScheduleAnswer", "memory", "schedule"},
    "api.measured_answers": {
        "CalibrateAnswer", "DiagnoseAnswer", "ValidateAnswer", "calibrate", "diagnose", "validate",
    },
    "api.one_step": {"Engine", "Job", "Result", "load_job", "sample", "simulate"},
    "api.plan_answers": {"PlanAnswer", "plan"},
    "api.rl_answers": {"RLAnswer", "rl"},
    "api.serving_answers": {"ServeAnswer", "serve"},
    "api.serving_comparison": {"ServeCompareAnswer", "serve_compare"},
    "api.serving_rates": {
        "ServeCapacityAnswer", "ServePlanAnswer", "ServeSweepAnswer", "serve_capacity",
        "serve_plan", "serve_sweep",
    },
    "api.step_comparison": {"CompareAnswer", "compare"},
    "api.strategy_answers": {"AdviseAnswer", "StrategiesAnswer", "advise", "strategies"},
    "planning.offers.rental": {"rent"},
    "planning.reinforcement.rl_job": {"RLJob", "load_rl"},
    "planning.sweep": {"sweep"},
    "serving.described": {"ServingJob", "load_serving"},
}  # fmt: skip
"""Where each name stands: one that is not used costs nothing."""


def __getattr__(name: str) -> Any:
    """A public name, loaded when it is first used."""
    for module, names in _MODULES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(f"simulator.{module}"), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
