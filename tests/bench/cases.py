"""What is measured: one function per thing that people wait for.

``python -m tests.bench.cases NAME`` does one of them in a process of its own and prints the
peak of its resident memory in MiB, and the processor time of the fastest round in seconds.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import simulator as sim
from simulator.described.job import Job
from simulator.results import memory

ROOT = Path(__file__).parents[2]
LARGE = ROOT / "workloads" / "llama3.1-405b-16384xh100.yaml"
MEDIUM = ROOT / "workloads" / "llama3-70b-64xh100.yaml"
SEARCHED = ROOT / "workloads" / "gpt3-175b-1024xa100.yaml"
SMALL = ROOT / "workloads" / "gpt2-1xa100.yaml"
PUBLISHED = ROOT / "reports" / "data" / "runs_open.csv"


@dataclass(frozen=True)
class Case:
    """Something to measure.

    Attributes:
        title: What it is, for the report.
        prepare: Gets ready, unmeasured, and returns what is measured.
        target: What it should stay below, in words; empty where nothing was promised.
        rounds: How often it is measured.
    """

    title: str
    prepare: Callable[[], Callable[[], object]]
    target: str = ""
    rounds: int = 3


def large_job(gpus: int = 16384, changes: Mapping[str, object] | None = None) -> Job:
    """Llama 3.1 405B with tp 8 and pp 16; the batch grows with the GPUs."""
    plan = {"plan": {"tp": 8, "pp": 16}, "cluster.gpus": gpus, "batch.global": gpus // 8}
    return sim.load_job(LARGE, {**plan, **(changes or {})})


def _simulation(gpus: int) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        job = large_job(gpus)
        return lambda: sim.simulate(job)

    return prepare


def _replay() -> Callable[[], object]:
    from simulator.engine.replay import replay
    from simulator.program.build import build_program

    job = large_job()
    return lambda: replay(build_program(job))


def _chunks() -> Callable[[], object]:
    job = sim.load_job(LARGE)
    return lambda: sim.simulate(job)


def _trace() -> Callable[[], object]:
    result = sim.simulate(sim.load_job(MEDIUM))
    folder = tempfile.mkdtemp()
    return lambda: result.write_trace(Path(folder) / "trace.json.gz")


def _sweep() -> Callable[[], object]:
    job = sim.load_job(MEDIUM)
    grid = {"plan.tp": [2, 4, 8], "plan.zero": [1, 3], "plan.recompute": ["none", "full"]}
    return lambda: sim.sweep(job, grid)


def _bounds() -> Callable[[], object]:
    from simulator.planning.search.bound import plan_bounds
    from simulator.planning.search.plan_costs import CostTables
    from simulator.planning.search.space import plan_space

    vary = {
        "plan.overlap_grad_reduce": [False, True],
        "plan.overlap_param_gather": [False, True],
    }
    space = plan_space(sim.load_job(SEARCHED), vary)
    tables = CostTables(space)
    plan_bounds(space, tables)
    return lambda: plan_bounds(space, tables)


def _search(path: Path) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        from simulator.planning.search.search import search_plans

        job = sim.load_job(path)
        return lambda: search_plans(job)

    return prepare


class _AnsweredError(Exception):
    """A search has given its first answer."""


def _first_answer(path: Path) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        from simulator.planning.search.search import search_plans

        job = sim.load_job(path)

        def answered(_: object) -> None:
            raise _AnsweredError

        def search() -> None:
            with suppress(_AnsweredError):
                search_plans(job, on_progress=answered)

        return search

    return prepare


def _configuration(path: Path, changes: Mapping[str, object]) -> Callable[[], Callable[[], object]]:
    """A plan from its job to its memory, without contention, in a process that ran another."""

    def prepare() -> Callable[[], object]:
        from simulator.results.simulation import run_step

        job = sim.load_job(path, changes)
        run_step(sim.load_job(SMALL), "replay")
        return lambda: run_step(job, "replay")

    return prepare


def _sensitivity() -> Callable[[], object]:
    from simulator.planning.changes.profile_numbers import sensitivities

    job = sim.load_job(ROOT / "workloads" / "llama3-8b-8xh100.yaml")
    return lambda: sensitivities(job)


def _diagnosis() -> Callable[[], object]:
    job = sim.load_job(MEDIUM)
    step_s = 1.1 * sim.simulate(job).step_time_s
    return lambda: sim.diagnose(job, step_s)


def _pools() -> Callable[[], object]:
    half = large_job().cluster.gpus // 2
    pools = [{"profile": f"{name}-sxm-80gb", "gpus": half} for name in ("a100", "h100")]
    job = large_job(changes={"cluster": {"pools": pools}})
    return lambda: sim.simulate(job)


def _process(*words: str) -> Callable[[], Callable[[], object]]:
    """A program in a process of its own, its modules compiled before, as an installer does.

    It runs in the folder of this one, whose package comes first.
    """

    def prepare() -> Callable[[], object]:
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": tempfile.mkdtemp()}
        return partial(
            subprocess.run, [sys.executable, *words], env=os.environ | compiled, check=True,
            capture_output=True,
        )  # fmt: skip

    return prepare


def _cold(*words: str) -> Callable[[], Callable[[], object]]:
    """The same, run once before."""

    def prepare() -> Callable[[], object]:
        run = _process(*words)()
        run()
        return run

    return prepare


CASES = {
    "import": Case("`import simulator`", _cold("-c", "import simulator"), "0.3 s"),
    "help": Case("`clustersim --help`, from a cold shell", _cold("-m", "simulator", "--help")),
    "run": Case(
        "`clustersim run` of GPT-2 on one GPU, from a cold shell",
        _cold("-m", "simulator", "run", str(SMALL)),
        "1 s",
    ),
    "gpus_16384": Case(
        "405B, tp 8, pp 16, on 16,384 GPUs, full contention", _simulation(16384), "0.5 s, 500 MB"
    ),
    "gpus_131072": Case("the same on 131,072 GPUs", _simulation(131072), "within 10 %"),
    "gpus_1048576": Case("the same on 1,048,576 GPUs", _simulation(1048576), "within 10 %"),
    "replay": Case("replay of the first: build the program and run it", _replay, "50 ms"),
    "pools": Case("the first on 8,192 A100 and 8,192 H100 in one cluster", _pools),
    "published": Case(
        "`validate published` of all open rows, both workers together",
        _process("-m", "simulator", "validate", "published", str(PUBLISHED), "--workers", "2"),
        "2 min, or 1 min of two cores",
        1,
    ),
    "chunks": Case("405B with vpp 8 and ZeRO 2 (8,451 operations)", _chunks),
    "trace": Case("kernel-level trace of 70B on 64 GPUs, written", _trace),
    "sweep": Case("sweep of 12 combinations of 70B on 64 GPUs, one process", _sweep),
    "bounds": Case(
        "closed-form tier over all plans of 175B with overlap varied, costs known",
        _bounds,
        "120 ms",
    ),
    "search": Case(
        "exact best plan of 175B on 1,024 A100, one process",
        _search(SEARCHED),
        "2 s",
        1,
    ),
    "search_405b": Case(
        "exact best plan of 405B on 16,384 H100, one process",
        _search(LARGE),
        "5 s",
        1,
    ),
    "plan_405b": Case(
        "`clustersim plan` of the same, ten plans and what would help, all processes together",
        _process("-m", "simulator", "plan", str(LARGE)),
        "",
        1,
    ),
    "diagnosis": Case("`diagnose` of 70B on 64 GPUs, all processes together", _diagnosis, "", 1),
    "first_answer": Case("first answer of the search for 175B", _first_answer(SEARCHED), "1 s", 1),
    "first_answer_405b": Case(
        "first answer of the search for 405B", _first_answer(LARGE), "1 s", 1
    ),
    "configuration_8b": Case(
        "8B on 8 GPUs, built, replayed, memory",
        _configuration(ROOT / "workloads" / "llama3-8b-8xh100.yaml", {}),
        "5 ms",
    ),
    "configuration_70b": Case("70B on 64 GPUs, the same", _configuration(MEDIUM, {}), "5 ms"),
    "configuration_405b": Case(
        "405B, tp 8, pp 16, on 16,384 GPUs, the same",
        _configuration(LARGE, {"plan": {"tp": 8, "pp": 16}, "batch.global": 2048}),
        "5 ms",
    ),
    "sensitivity": Case(
        "`sensitivity` of 8B on 8 GPUs, every number of its profile", _sensitivity, "2 s", 1
    ),
}


def forget() -> None:
    """Let the next simulation find nothing of an earlier one of the same job.

    Of earlier commits, which :mod:`tests.bench.against` measures, some kept replays of memory.
    """
    kept = getattr(memory, "repeated_reserved_memory", None)
    if kept is not None:
        kept.cache_clear()


def used_s() -> float:
    """Processor time of this process and of those it has waited for [s].

    Unlike the clock it does not count what other programs take from a shared machine.
    """
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_mib(name: str) -> float:
    """Peak resident memory of a case in a process of its own [MiB]."""
    words = [sys.executable, "-m", "tests.bench.cases", name]
    done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[0])


def _own_peak_mib() -> float:
    """Peak resident memory of this process; Linux counts it from the start of the program."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    case = CASES[sys.argv[1]]
    rounds_s = []
    for _ in range(case.rounds):
        work = case.prepare()
        forget()
        start_s = used_s()
        work()
        rounds_s.append(used_s() - start_s)
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(max(_own_peak_mib(), children), min(rounds_s))
