"""Does a step of reinforcement learning do what its halves do?"""

from __future__ import annotations

from typing import Any

import pytest

import simulator as sim
from simulator.errors import InputError
from simulator.planning.reinforcement.policy_passes import forward_s
from simulator.planning.reinforcement.rl_job import load_rl
from simulator.planning.reinforcement.rl_step import rl_step
from simulator.planning.reinforcement.sequences import microbatches, rollout_requests
from simulator.planning.reinforcement.weight_refit import refit_s
from simulator.program.layer.model_totals import parameter_count

DOCUMENT: dict[str, Any] = {
    "training": {
        "model": "llama3.2-1b",
        "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
        "batch": {"global": 32, "seq_len": 1024},
        "plan": {"stack": "megatron-core"},
    },
    "generation": {"engine": "vllm", "tp": 1},
    "rollout": {
        "prompts": 16,
        "answers_per_prompt": 4,
        "prompt": {"mean": 100, "variation": 0.3},
        "answer": {"mean": 300, "variation": 0.6, "longest": 800},
    },
}


@pytest.fixture(scope="module")
def job():
    return load_rl(DOCUMENT)


@pytest.fixture(scope="module")
def step(job):
    return rl_step(job)


def test_the_longest_sequence_comes_first_into_the_first_microbatch_with_room():
    packed = microbatches([6, 5, 4, 3, 2], most_tokens=10, micro=1, packed=True)
    assert (packed.count, packed.mean_tokens) == (2, 10.0)  # 6 + 4 and 5 + 3 + 2
    assert packed.filled_share == 1
    assert packed.sequence_tokens == pytest.approx((36 + 25 + 16 + 9 + 4) / 20)


def test_padded_sequences_are_as_long_as_the_longest_beside_them():
    padded = microbatches([6, 2, 4, 4], most_tokens=0, micro=2, packed=False)
    assert (padded.count, padded.mean_tokens) == (2, 10.0)
    assert padded.filled_share == 16 / 20


def test_answers_of_a_group_share_their_prompt(job):
    requests = rollout_requests(job)
    assert len(requests) == 64
    for first in range(0, 64, 4):
        assert len({request.prefix for request in requests[first : first + 4]}) == 1
    assert all(request.prompt_tokens + request.output_tokens <= 1024 for request in requests)


def test_phases_add_up_where_gpus_are_shared(step):
    assert step.step_time_s == pytest.approx(sum(step.phases_s.values()))
    assert step.tokens_per_s_per_gpu == pytest.approx(step.tokens / step.step_time_s / 8)
    assert step.generation_s == step.answer_ends_s[-1] > step.tail_s > 0


def test_the_longer_half_decides_where_generation_goes_on_with_old_weights(job):
    apart = job.replace({"generation.gpus": 8, "order": "one-step-off"})
    step = rl_step(apart)
    trained_s = step.logprobs_s + step.training_s
    assert step.step_time_s == max(step.generation_s, trained_s) + step.refit_s
    assert apart.gpus == 16
    assert 0 < step.idle_share < 1


def test_phases_of_shared_gpus_follow_each_other_to_the_end_of_the_step(step):
    (lane,) = step.lanes.values()
    assert [begin for _, begin, _ in lane] == [0.0, *(end for _, _, end in lane[:-1])]
    assert lane[-1][2] == pytest.approx(step.step_time_s)


def test_training_is_as_many_updates_as_fill_the_rollout(job, step):
    assert job.updates == 2
    assert step.training_s == 2 * step.update.step_time_s


def test_a_pipeline_is_full_after_as_many_microbatches_as_it_has_more_stages(job):
    def of(count, **plan):
        training = job.training.replace({f"plan.{name}": value for name, value in plan.items()})
        full = microbatches([1024] * count, most_tokens=1024, micro=1, packed=True)
        return forward_s(training, full)

    assert of(128) == pytest.approx(2 * of(64))
    stage_s = (of(128, pp=2) - of(64, pp=2)) / 16
    assert of(64, pp=2) == pytest.approx((16 + 1) * stage_s)


def test_forward_takes_a_microbatch_less_than_training_does(job):
    full = microbatches([1024] * 64, most_tokens=1024, micro=1, packed=True)
    step_s = sim.simulate(job.training.replace({"batch.global": 64})).step_time_s
    assert 0.2 * step_s < forward_s(job.training, full) < 0.5 * step_s


def test_without_networks_nothing_is_scored(job):
    assert "log-probabilities" not in rl_step(job.replace({"logprobs.networks": []})).phases_s


def test_other_gpus_get_all_weights_over_one_card(job):
    fabric = job.training.cluster.profile.network.fabric
    weights_bytes = 2 * parameter_count(job.training.model)
    apart = job.replace({"generation.gpus": 8})
    assert refit_s(apart) == weights_bytes / (fabric.nic_bytes_per_s * fabric.efficiency)
    assert refit_s(job) == 0  # every GPU of training holds all weights


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rollout.prompts": 10}, "must be a multiple of the 32 sequences of an update"),
        ({"order": "one-step-off"}, "needs GPUs that only generate"),
        ({"shares_gpus": False}, "no such field"),
        ({"generation.model": "llama3.2-1b"}, "is that of training"),
        ({"training.plan.tp": 3}, "training.plan.tp = 3: must divide"),
        ({"training": 3}, "must be a job or its name"),
    ],
)
def test_a_wrong_job_names_the_field_and_the_way_out(changes, words):
    with pytest.raises(InputError, match=words):
        load_rl(DOCUMENT, changes)


def test_prompts_must_leave_room_for_answers(job):
    with pytest.raises(InputError, match="leaves no room for an answer"):
        rl_step(job.replace({"rollout.prompt": {"mean": 2000}}))
