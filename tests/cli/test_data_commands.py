"""Do the commands around jobs do what they say: import, profile, models, schedule, schema?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from simulator.cli.shipped import SchemaName, schema_text
from simulator.described.documents import data_folder
from simulator.described.load import load_job, load_profile, model_names, profile_names
from simulator.engine.chunk_algorithms import CHUNK_ALGORITHMS
from simulator.schedule import SCHEDULES, schedule_order
from simulator.schedule.written import read_order

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "vocab_size": 1000,
    "rope_theta": 10000.0,
}


def test_an_imported_config_is_a_job_that_loads(clustersim, write):
    config = write(json.dumps(CONFIG), "config.json")
    outcome = clustersim("import", "hf", config, "--gpus", 16, "--global-batch", 32)
    job = load_job(write(outcome.out))
    assert outcome.code == 0
    assert (job.model.layers, job.model.kv_heads, job.cluster.gpus) == (2, 2, 16)
    assert "understood" in outcome.err


def test_an_imported_config_gets_a_sequence_for_every_gpu(clustersim, write):
    config = write(json.dumps(CONFIG), "config.json")
    job = load_job(write(clustersim("import", "hf", config, "--gpus", 24).out))
    assert (job.batch.global_batch, job.microbatches) == (24, 1)


def test_an_imported_config_must_suit_the_cluster_it_is_put_on(clustersim, write):
    config = write(json.dumps(CONFIG), "config.json")
    outcome = clustersim("import", "hf", config, "--gpus", 3, "--global-batch", 8)
    assert (outcome.code, outcome.out) == (2, "")
    assert "batch.global" in outcome.err


@pytest.mark.parametrize("content", ["", "[]", "{", '{"model_type": "mamba", "state_size": 16}'])
def test_a_config_that_cannot_be_read_ends_with_2(clustersim, write, content):
    outcome = clustersim("import", "hf", write(content, "config.json"))
    assert (outcome.code, outcome.out) == (2, "")


def test_every_shipped_profile_is_listed(clustersim):
    lines = clustersim("profile", "list").out.splitlines()[2:]
    assert [line.split()[0] for line in lines if line] == profile_names()


@pytest.mark.parametrize(
    ("command", "rows", "names"),
    [
        ("profile list", "profiles", profile_names()),
        ("models list", "models", model_names()),
        ("schedule list", "schedules", list(SCHEDULES)),
        ("collective list", "algorithms", list(CHUNK_ALGORITHMS)),
    ],
)
def test_a_list_is_also_one_json_object(clustersim, command, rows, names):
    listed = json.loads(clustersim(*command.split(), "--json").out)[rows]
    assert [each["name"] for each in listed] == names


def test_numbers_of_a_profile_in_json_keep_their_sources(clustersim):
    numbers = json.loads(clustersim("profile", "show", "l40s", "--json").out)["numbers"]
    shown = {each["field"]: (each["source"], each["reference"]) for each in numbers}
    provenance = load_profile("l40s").provenance
    assert shown.items() >= {
        (path, (source.kind, source.reference)) for path, source in provenance.items()
    }


def test_showing_a_profile_gives_every_number_its_source(clustersim):
    outcome = clustersim("profile", "show", "h100-sxm-80gb")
    provenance = load_profile("h100-sxm-80gb").provenance
    for path, source in provenance.items():
        line = next(line for line in outcome.out.splitlines() if line.split()[:1] == [path])
        assert source.kind in line
        assert source.reference in line


def test_a_profile_is_written_as_the_file_that_it_is(clustersim, write):
    own = write(clustersim("profile", "show", "l40s", "--yaml").out, "own.yaml")
    assert load_profile(own) == load_profile("l40s")


def test_checking_shipped_profiles_finds_nothing(clustersim):
    outcome = clustersim("profile", "check", "h100-sxm-80gb", "mi300x")
    assert (outcome.code, outcome.out) == (0, "h100-sxm-80gb: ok\nmi300x: ok\n")


def test_checking_a_broken_profile_lists_every_fault_and_ends_with_2(clustersim, write):
    document = yaml.safe_load((data_folder("hardware_profiles") / "h100-sxm-80gb.yaml").read_text())
    del document["host"]["source"]
    document["device"]["peak"]["bf16"] = "1979 TFLOP/s"
    path = write(yaml.safe_dump(document), "mine.yaml")
    outcome = clustersim("profile", "check", path, "h100-sxm-80gb", "nope")
    assert outcome.code == 2
    assert outcome.out == f"{path}: not valid\nh100-sxm-80gb: ok\nnope: not valid\n"
    assert "host.memory = '2 TB': has no source" in outcome.err
    assert "device.peak.bf16" in outcome.err
    assert "profile = 'nope': there is no such name" in outcome.err


def test_what_is_strange_is_remarked_upon_without_failing(clustersim, write):
    text = (data_folder("hardware_profiles") / "h100-sxm-80gb.yaml").read_text()
    slow = "kernels:\n  launch: {value: 90 us, source: {kind: assumed}}\n"
    path = write(text.replace("kernels:\n", slow, 1), "mine.yaml")
    outcome = clustersim("profile", "check", path)
    assert outcome.code == 0
    assert "unlike: launch of a kernel [s]: 9e-05, and 5.73e-06" in outcome.out
    document = json.loads(clustersim("profile", "check", path, "--json").out)
    (profile,) = document["profiles"]
    assert profile["sound"]
    assert profile["remarks"][0]["kind"] == "unlike"


def test_every_shipped_model_is_listed(clustersim):
    lines = clustersim("models", "list").out.splitlines()[2:]
    assert [line.split()[0] for line in lines if line] == model_names()


def test_every_schedule_is_listed(clustersim):
    lines = clustersim("schedule", "list").out.splitlines()[2:]
    assert [line.split()[0] for line in lines if line] == list(SCHEDULES)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_can_be_shown_with_its_fewest_chunks(clustersim, name):
    outcome = clustersim("schedule", "show", name, "--pp", 4, "--microbatches", 8)
    assert outcome.code == 0
    assert len([line for line in outcome.out.splitlines() if line.startswith("rank ")]) == 4 + 1


def test_the_csv_of_a_schedule_holds_its_order(clustersim, tmp_path):
    path = tmp_path / "deep" / "order.csv"
    sizes = ("--pp", 4, "--vpp", 2, "--microbatches", 8)
    clustersim("schedule", "show", "interleaved-1f1b", *sizes, "--csv", path)
    assert read_order(path.read_text()) == schedule_order("interleaved-1f1b", 4, 2, 8)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("1f2b", "--pp", 2, "--microbatches", 2), "no such schedule"),
        (("1f1b", "--pp", 0, "--microbatches", 2), "must be 1 or more"),
        (("1f1b", "--pp", 2, "--vpp", 3, "--microbatches", 2), "chunk"),
    ],
)
def test_an_impossible_schedule_ends_with_2(clustersim, words, says):
    outcome = clustersim("schedule", "show", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err


@pytest.mark.parametrize("name", SchemaName)
def test_a_schema_is_printed_as_json(clustersim, name):
    outcome = clustersim("schema", name)
    assert json.loads(outcome.out)["$schema"].startswith("https://json-schema.org/")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (SchemaName.PROFILE, "hardware_profiles/schema.json"),
        (SchemaName.JOB, "workloads/schema.json"),
        (SchemaName.MODEL, "workloads/models/schema.json"),
        (SchemaName.OFFERS, "workloads/offers/schema.json"),
        (SchemaName.SERVING, "workloads/serving/schema.json"),
    ],
)
def test_the_shipped_schemas_are_those_of_the_specifications(name, path):
    shipped = Path(__file__).parents[2] / path
    assert shipped.read_text(encoding="utf-8") == schema_text(name), "run make generated"


def test_a_profile_is_drawn_where_it_was_asked_for(clustersim, tmp_path):
    picture = tmp_path / "new" / "system.png"
    assert clustersim("profile", "show", "h100-sxm-80gb", "--plot", picture).code == 0
    assert picture.stat().st_size > 10_000


def test_parameters_of_a_config_are_counted_part_by_part(clustersim, write):
    config = write(json.dumps(CONFIG), "config.json")
    counted = json.loads(clustersim("models", "count", config, "--json").out)
    assert counted["by_part"] == {
        "embedding": 1000 * 64,
        "head": 1000 * 64,
        "attention": 2 * (2 * 64 * 64 + 2 * 64 * 32),
        "mlp": 2 * 3 * 64 * 256,
        "norms": 2 * 2 * 64,
        "final_norm": 64,
    }
    assert counted["parameters"] == counted["active_parameters"] == 251_200


def test_a_shipped_model_has_the_parameters_that_transformers_gives_it(clustersim):
    counted = json.loads(clustersim("models", "count", "deepseek-v3", "--json").out)
    assert counted["parameters"] == 671_026_404_352
    assert sum(counted["by_part"].values()) == counted["parameters"]


@pytest.mark.parametrize("name", ["llama3-8b", "nope", "nope.json"])
def test_what_is_no_config_is_not_counted_by_transformers(clustersim, name):
    assert clustersim("models", "count", name, "--with-transformers").code == 2


def test_a_config_of_an_unknown_network_ends_with_2_and_says_what_would_do(clustersim, write):
    config = write(json.dumps({**CONFIG, "model_type": "lama9"}), "config.json")
    outcome = clustersim("models", "count", config)
    assert (outcome.code, outcome.out) == (2, "")
    assert "--with-transformers" in outcome.err


def test_a_count_says_which_network_it_is_of_where_the_file_names_another(clustersim, write):
    document = {**CONFIG, "architectures": ["LlamaForSequenceClassification"]}
    outcome = clustersim("models", "count", write(json.dumps(document), "config.json"), "--json")
    assert json.loads(outcome.out)["network"] == "LlamaForCausalLM"
    assert "the file is of LlamaForSequenceClassification" in outcome.err


def test_a_profile_is_shown_in_one_form(clustersim):
    refused = clustersim("profile", "show", "l40s", "--yaml", "--json")
    assert refused.code == 2
    assert "cannot be combined with --json" in refused.err
