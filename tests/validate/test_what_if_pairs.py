"""What two runs of one source say of a change, against ratios that a person can see."""

from __future__ import annotations

from typing import Any

import pytest

from reports.make.accuracy.band_coverage import Banded
from reports.make.accuracy.what_if_pairs import Pair, RatioErrors, run_pairs


def document(
    *, gpus: int = 8, batch: int = 8, micro: int = 1, model: str = "gpt", **plan: Any
) -> dict[str, Any]:
    return {
        "model": {"name": model, "base": model, "layers": 12},
        "cluster": {"profile": "a100-sxm-80gb", "gpus": gpus},
        "batch": {"global": batch, "micro": micro, "seq_len": 128},
        "plan": {"tp": 1, **plan},
    }


def pair(first: dict[str, Any], second: dict[str, Any]) -> Pair:
    """Of a run of 2 s that is predicted at 1 s, and one of 6 s that is predicted at 4 s."""
    runs = [Banded("a-1", "torch", 2.0, 1.0, 0.8, 1.3), Banded("a-2", "torch", 6.0, 4.0, 0.8, 1.3)]
    (found,) = run_pairs(runs, {"a-1": first, "a-2": second})
    return found


def test_a_common_factor_leaves_the_ratio_right() -> None:
    runs = [Banded(f"a-{i}", "torch", i, 7.0 * i, 0.8, 1.3) for i in (1.0, 2.0)]
    (found,) = run_pairs(runs, {"a-1.0": document(), "a-2.0": document(tp=2)})
    assert found.error_pct == pytest.approx(0.0)


def test_the_error_of_a_ratio_is_the_same_whichever_run_comes_first() -> None:
    forth, back = pair(document(), document(tp=2)), Pair("a-2", "a-1", "", True, 1 / 3, 1 / 4)
    assert forth.measured == pytest.approx(3.0)
    assert forth.predicted == pytest.approx(4.0)
    assert forth.error_pct == pytest.approx(100 / 3) == pytest.approx(back.error_pct)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"tp": 2}, "tensor parallelism"),
        ({"tp": 2, "sequence_parallel": True}, "tensor parallelism"),
        ({"pp": 2, "vpp": 4, "schedule": "interleaved-1f1b"}, "pipeline"),
        ({"gpus": 16}, "number of GPUs"),
        ({"gpus": 16, "batch": 16}, "number of GPUs"),
        ({"micro": 2}, "microbatch"),
        ({"micro": 2, "batch": 16}, "microbatch"),
        ({"batch": 16}, "global batch"),
        ({"model": "llama"}, "model"),
        ({"stack": {"base": "torch", "compiled": True}}, "software"),
        ({"tp": 2, "pp": 2}, ""),
        ({"gpus": 16, "tp": 2}, ""),
    ],
)
def test_a_change_has_the_name_of_the_one_thing_that_differs(
    changes: dict[str, Any], name: str
) -> None:
    assert pair(document(), document(**changes)).change == name


def test_only_the_plan_differs_where_model_cluster_and_software_are_the_same() -> None:
    assert pair(document(), document(tp=2, micro=4)).is_plan_only
    assert not pair(document(), document(tp=2, gpus=16)).is_plan_only


def test_times_are_compared_by_token() -> None:
    found = pair(document(), document(batch=24))
    assert found.measured == pytest.approx(1.0)


def test_equal_jobs_and_runs_of_other_sources_are_no_pairs() -> None:
    runs = [Banded(name, "torch", 2.0, 1.0, 0.8, 1.3) for name in ("a-1", "a-2", "b-1")]
    documents = {"a-1": document(), "a-2": document(), "b-1": document(tp=2)}
    assert run_pairs(runs, documents) == []


def test_sources_count_the_same_in_the_last_figure() -> None:
    near = [Pair(f"a-{i}", "a-9", "", True, 1.0, 1.01) for i in range(9)]
    far = [Pair("b-1", "b-2", "", True, 1.0, 1.21)]
    errors = RatioErrors.of([*near, *far])
    assert (errors.pairs, errors.sources) == (10, 2)
    assert errors.median_pct == pytest.approx(1.0)
    assert errors.by_source_median_pct == pytest.approx(11.0)
