"""Which perturbations can a job name, and what is said about the others?"""

from __future__ import annotations

import pytest

from simulator.described.load import load_job
from simulator.described.variation import Perturbation
from simulator.errors import InputError

JOB = """
    model: llama3.1-8b
    cluster: {profile: h100-sxm-80gb, gpus: 16}
    batch: {global: 32, seq_len: 4096}
    plan: {tp: 2, pp: 2}
"""


def faults(write, *perturbations: object) -> dict[str, str]:
    """Faults of the job with these perturbations, by path."""
    with pytest.raises(InputError) as raised:
        load_job(write(JOB), {"perturbations": list(perturbations)})
    return {fault.path.removeprefix("perturbations."): fault.rule for fault in raised.value.faults}


@pytest.mark.parametrize(
    ("given", "meant"), [(3, (3, 3)), ("3", None), ("0-7", (0, 7)), (" 2 - 2 ", (2, 2))]
)
def test_gpus_are_named_by_number_or_range(write, given, meant):
    document = {"gpu": given, "slowdown": 0.2}
    if meant is None:
        assert "0.gpu" in faults(write, document)
    else:
        job = load_job(write(JOB), {"perturbations": [document]})
        assert job.perturbations[0].gpu == meant


def test_only_gpus_and_nodes_of_the_job_can_be_perturbed(write):
    found = faults(write, {"gpu": 16, "slowdown": 0.2}, {"node": "1-2", "nic_share": 0.5})
    assert found == {
        "0.gpu": "the job has 16, numbered 0 to 15",
        "1.node": "the job has 2, numbered 0 to 1",
    }


def test_a_perturbation_says_who_and_what(write):
    found = faults(
        write,
        {"gpu": 1},
        {"slowdown": 0.1},
        {"gpu": 1, "node": 0, "slowdown": 0.1},
        {"gpu": 1, "slowdown": 0.1, "seed": 3},
        {"gpu": "7-3", "slowdown": 0.1},
    )
    assert found == {
        "0": "must change something: give slowdown, nic_share, scale_up_share or jitter",
        "1": "must name what is slower; give gpu or node",
        "2": "must name gpu or node, not both; write two perturbations",
        "3": "has a seed but no jitter; the seed is for jitter only",
        "4.gpu": "must start with the smaller number; write 3-7",
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"slowdown": -0.1},
        {"slowdown": float("inf")},
        {"nic_share": 0},
        {"nic_share": 1.1},
        {"scale_up_share": 0},
        {"jitter": -1},
    ],
)
def test_sizes_are_in_range(write, wrong):
    assert set(faults(write, {"gpu": 0, **wrong})) == {f"0.{next(iter(wrong))}"}


def test_perturbations_are_a_list(write):
    with pytest.raises(InputError, match=r"perturbations.* must be a list"):
        load_job(write(JOB), {"perturbations": {"gpu": 1, "slowdown": 0.1}})


def test_a_misspelt_field_comes_with_the_right_one(write):
    with pytest.raises(InputError, match="did you mean 'slowdown'"):
        load_job(write(JOB), {"perturbations": [{"gpu": 1, "slow_down": 0.1}]})


def test_a_perturbation_is_written_as_it_is_read():
    for document in ({"gpu": 3, "slowdown": 0.2}, {"node": "0-1", "nic_share": 0.5}):
        perturbation = Perturbation.model_validate(document)
        assert perturbation.model_dump(exclude_unset=True) == document
