"""Is a name or a file that is nearly right answered with what was meant?"""

from __future__ import annotations

import re

import pytest

from simulator.described.documents import data_folder
from simulator.described.load import load_job, load_model
from simulator.errors import InputError
from simulator.planning.offers.offers_file import load_offers
from simulator.serving.described import load_serving


def test_a_file_of_another_kind_is_one_fault_and_one_of_misspelt_fields_is_not(tmp_path):
    path = tmp_path / "result.json"
    path.write_text('{"schema_version": 1, "title": "a", "step_time_s": 0.9, "mfu": 0.5}')
    with pytest.raises(InputError) as caught:
        load_job(path)
    (fault,) = caught.value.faults
    assert "none of the fields model, cluster, batch" in fault.rule
    assert fault.hint.startswith("give a job")
    path.write_text('{"modell": "gpt2", "clutser": {}, "bach": {}}')
    with pytest.raises(InputError, match="did you mean 'model'"):
        load_job(path)


def test_a_stack_that_is_misspelt_comes_with_those_that_begin_so():
    with pytest.raises(InputError, match="did you mean 'megatron-core' or 'megatron-deepspeed'"):
        load_job("llama3-8b-8xh100", {"plan.stack": "megatron"})


@pytest.mark.parametrize(
    ("stack", "words"),
    [
        ("fsdp2", "the stack for it is 'torch'"),
        ("huggingface", "the stack for it is 'trl'"),
        ("nemo", "the stack for it is 'megatron-core'"),
        ("torchtitan2", "did you mean 'torchtitan'"),
        ("xyz", "zero-bubble"),
    ],
)
def test_a_framework_without_a_stack_is_told_which_one_stands_for_it(stack, words):
    with pytest.raises(InputError) as caught:
        load_job("llama3-8b-8xh100", {"plan.stack": stack})
    assert words in str(caught.value)


def test_the_optimizer_that_is_nearest_is_named():
    with pytest.raises(InputError, match="did you mean 'adam'"):
        load_job("llama3-8b-8xh100", {"plan.optimizer": "adamw"})


def test_a_model_in_place_of_a_job_and_a_job_in_place_of_a_model_are_told_apart(tmp_path):
    with pytest.raises(
        InputError, match="is a model, not a job of training; clustersim init --model llama3-8b"
    ):
        load_job("llama3-8b")
    with pytest.raises(InputError, match="is a job, not a model"):
        load_model(data_folder("workloads") / "llama3-8b-8xh100.yaml")


def test_a_name_like_no_shipped_one_is_told_where_all_are_listed():
    with pytest.raises(InputError, match=r"config\.json, or a name that clustersim models list"):
        load_job("llama3-8b-8xh100", {"model": "somebody/else-9b"})
    with pytest.raises(InputError, match="a name that clustersim profile list shows"):
        load_job("llama3-8b-8xh100", {"cluster.profile": "zz9"})


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "use 'llama3.1-8b'"),
        ("mistralai/Mistral-7B-v0.1", "use 'mistral-7b'"),
        ("codellama/CodeLlama-7b-hf", "use {base: llama2-7b, vocab: 32016}"),
        ("mistral-7b-of-ours", "there is no such name"),
    ],
)
def test_a_name_of_the_hub_is_answered_with_the_shipped_model_of_its_dimensions(name, way_out):
    with pytest.raises(InputError, match=re.escape(way_out)):
        load_model(name)


@pytest.mark.parametrize(
    ("load", "name", "said"),
    [
        (load_job, "llama3-70b-8xh100", "is a serving job, not a job of training; .* serve run"),
        (load_job, "three-clouds", "is a list of offers, not a job of training; .* rent three"),
        (load_serving, "llama3-70b-64xh100", "is a job of training, not a serving job; .* run "),
        (load_serving, "llama3.1-70b", "is a model, not a serving job; give a file with deploy"),
        (load_offers, "llama3-70b-64xh100", "is a job of training, not a list of offers"),
    ],
)
def test_a_shipped_name_of_another_kind_is_told_with_the_command_for_it(load, name, said):
    with pytest.raises(InputError, match=said):
        load(name)
