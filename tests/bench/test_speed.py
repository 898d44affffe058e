"""How long does everything take that people wait for? Measured, not judged.

python -m pytest -n 0 -m bench tests/bench
"""

from __future__ import annotations

import pytest

pytest.importorskip("pytest_benchmark")

from tests.bench.cases import CASES, forget, peak_mib, used_s


@pytest.mark.bench
@pytest.mark.benchmark(timer=used_s)
@pytest.mark.parametrize("name", CASES)
def test_speed(name, benchmark):
    case = CASES[name]
    benchmark.extra_info |= {"title": case.title, "target": case.target}
    benchmark.extra_info["peak_mib"] = peak_mib(name)

    def begin():
        work = case.prepare()
        forget()
        return (work,), {}

    benchmark.pedantic(lambda work: work(), setup=begin, rounds=case.rounds)
