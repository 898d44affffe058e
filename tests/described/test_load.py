"""Does a file become the job its author meant, and a broken one a list of what to mend?"""

from __future__ import annotations

import json
from functools import cache
from itertools import product
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from simulator.described.documents import data_folder, read_yaml
from simulator.described.json_schemas import job_schema, model_schema, profile_schema
from simulator.described.load import (
    job_from_document,
    job_names,
    load_job,
    load_model,
    load_profile,
    model_names,
    profile_names,
)
from simulator.described.rules.profile_rules import profile_faults
from simulator.errors import InputError
from simulator.planning.offers.offers_file import offers_schema

JOB = """
    model: llama3.1-8b
    cluster: {profile: h100-sxm-80gb, gpus: 16}
    batch: {global: 32, seq_len: 4096}
    plan: {tp: 2, pp: 2}
"""
MODEL = """
    {layers: 2, hidden: 64, heads: 4, ffn_hidden: 256, vocab: 1000}
"""


def faults_of(path: Path, **changes: object) -> dict[str, str]:
    """Faults of a job file by path, as ``rule; hint``."""
    with pytest.raises(InputError) as raised:
        load_job(path, {key.replace("__", "."): value for key, value in changes.items()})
    return {fault.path: f"{fault.rule}; {fault.hint}" for fault in raised.value.faults}


def write_field(document: dict[str, object], path: str, value: object) -> None:
    """Set a field by its dotted path; what stands in its way becomes a block."""
    *blocks, last = path.split(".")
    node = document
    for block in blocks:
        if not isinstance(node.get(block), dict):
            node[block] = {}
        node = node[block]
    node[last] = value


def test_a_job_is_its_file(write):
    job = load_job(write(JOB))
    assert (job.model.layers, job.cluster.gpus, job.batch.tokens) == (32, 16, 32 * 4096)
    assert (job.dp, job.microbatches, job.batch.micro_batch) == (4, 8, 1)
    assert job.title == "llama3.1-8b on 16 x h100-sxm-80gb, tp2 pp2 dp4"


@pytest.mark.parametrize("name", job_names())
def test_a_shipped_job_is_loaded_by_its_name_from_any_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_job(name) == load_job(data_folder("workloads") / f"{name}.yaml")


def test_faults_of_a_shipped_job_name_it_and_no_folder_of_the_package():
    with pytest.raises(InputError) as refused:
        load_job("llama3-8b-8xh100", {"plan.ep": 2})
    assert str(refused.value).splitlines()[-1].startswith("  - llama3-8b-8xh100: plan.ep = 2: ")


def test_a_file_goes_before_a_shipped_job_of_its_name(write, monkeypatch):
    path = write(JOB, "llama3-8b-8xh100")
    monkeypatch.chdir(path.parent)
    assert load_job(path.name).cluster.gpus == 16


@pytest.mark.parametrize(
    ("given", "way_out"),
    [
        ("llama3-70b-64xh10", "did you mean 'llama3-70b-64xh100'?"),
        ("workloads/llama3-8b-8xh100.yaml", "is called llama3-8b-8xh100, without folder"),
        ("nowhere/job", "No such file"),
        ("job.yaml", "No such file"),
    ],
)
def test_a_job_that_is_neither_file_nor_name_says_what_is_there(
    given, way_out, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as raised:
        load_job(given)
    assert given in str(raised.value)
    assert way_out in str(raised.value)


def test_a_mistyped_batch_is_refused_before_it_takes_hours(write):
    path = write(JOB)
    assert faults_of(path, batch__global=400_004) == {
        "batch.global": "makes 100,001 microbatches per rank, of at most 100,000; "
        "use at most 400000, more GPUs, or a larger batch.micro"
    }
    assert load_job(path, {"batch.global": 400_000}).microbatches == 100_000


def test_a_plan_may_be_left_out_or_empty(write):
    text = JOB.replace("plan: {tp: 2, pp: 2}", "")
    assert load_job(write(text)).plan == load_job(write(text + "    plan: {}\n")).plan


def test_a_what_if_is_a_changed_job_checked_anew(write):
    job = load_job(write(JOB))
    assert job.replace({"plan.tp": 4}).plan.tp == 4
    assert job.replace(**{"model.layers": 8}).model.layers == 8
    assert job.plan.tp == 2
    with pytest.raises(InputError, match=r"plan.tp = 5: must divide the model's 32 heads"):
        job.replace({"plan.tp": 5})


def test_the_document_of_a_job_reads_back_to_the_same_job(write):
    job = load_job(write(JOB), {"plan.zero": 3})
    again = job_from_document(yaml.safe_load(yaml.safe_dump(dict(job.document))))
    assert again.model_dump() == job.model_dump()


def test_every_fault_of_a_job_is_reported_at_once_under_the_path_that_was_written(write):
    path = write(
        """
        model: {base: llama3.1-8b, layer: 4, hidden: wide}
        cluster:
          profile: h100-sxm-80gb
          gpu: 16
          network: {scale_up: {bandwidth: 450, latency: 2 parsec, efficency: 0.8}}
          device: {memory_bytes: 80 GiB}
        batch: {global: 32, seq_len: 4096.5}
        plan: {tp: "2", precision: bf15}
        plna: {}
        """
    )
    faults = faults_of(path)
    assert set(faults) == {
        "model.layer",
        "model.hidden",
        "cluster.gpus",
        "cluster.gpu",
        "cluster.network.scale_up.bandwidth",
        "cluster.network.scale_up.latency",
        "cluster.network.scale_up.efficency",
        "cluster.device.memory_bytes",
        "batch.seq_len",
        "plan.tp",
        "plan.precision",
        "plna",
    }
    assert "did you mean 'layers'" in faults["model.layer"]
    assert "did you mean 'gpus'" in faults["cluster.gpu"]
    assert "did you mean 'efficiency'" in faults["cluster.network.scale_up.efficency"]
    assert "did you mean 'memory'" in faults["cluster.device.memory_bytes"]
    assert "did you mean 'plan'" in faults["plna"]
    assert "needs its unit" in faults["cluster.network.scale_up.bandwidth"]
    assert "unknown unit 'parsec'" in faults["cluster.network.scale_up.latency"]


def test_rules_between_fields_are_reported_together(write):
    faults = faults_of(write(JOB), plan__tp=3, batch__global=33, plan__vpp=2, plan__ep=2)
    assert {"cluster.gpus", "plan.tp", "plan.ep"} <= set(faults)


@pytest.mark.parametrize(
    ("field", "value", "path", "says"),
    [
        ("model", "llama3.1-8", "model", "did you mean 'llama3.1-8b'"),
        ("model", 8, "model", "must be a name, a path"),
        ("model", None, "model", "must be a name, a path"),
        ("model", ["a"], "model", "must be a name, a path"),
        ("model.base", "nope", "model.base", "no such name"),
        ("model.base", 3, "model.base", "must be a name or a path"),
        ("cluster", None, "cluster", "must be a block of fields"),
        ("cluster", [1], "cluster", "must be a block of fields"),
        ("cluster.profile", "h100-sxm-80", "cluster.profile", "did you mean 'h100-sxm-80gb'"),
        ("cluster.profile", "h100", "cluster.profile", "or 'h100-pcie-80gb'"),
        ("tp", 4, "tp", "did you mean plan.tp?"),
        ("seq_len", 4096, "seq_len", "did you mean batch.seq_len?"),
        ("plan.share", 0.5, "plan.share", "did you mean plan.offload.share?"),
        ("cluster.profile", {"name": "x"}, "cluster.profile", "must be a name or a path"),
        ("cluster.profile", "missing.yaml", "", "cannot be read"),
        ("cluster.gpus", 0, "cluster.gpus", "greater than or equal to 1"),
        ("cluster.gpus", True, "cluster.gpus", "valid integer"),
        ("cluster.network", 3, "cluster.network", "must be a block of fields"),
        ("cluster.provenance", {"x": 1}, "cluster.provenance", "no such field"),
        ("cluster.device.memory", "-80 GiB", "cluster.device.memory", "greater than 0"),
        ("cluster.device.memory", "1e999999999 B", "cluster.device.memory", "is not a number"),
        ("cluster.device.source", "me", "cluster.device.source", "must be a block of fields"),
        ("batch.global", 2.0e300, "batch.global", "valid integer"),
        ("batch", "big", "batch", "must be a block of fields"),
        ("plan", "tp8", "plan", "must be a block of fields"),
        ("plan.lora", 16, "plan.lora", "known: rank, targets"),
        ("plan.schedule", "1f2b", "plan.schedule", "did you mean '1f1b'"),
    ],
)
def test_a_wrong_value_is_one_fault_with_its_path(write, field, value, path, says):
    document = yaml.safe_load(JOB)
    write_field(document, field, value)
    with pytest.raises(InputError) as raised:
        job_from_document(document, source=str(write("")))
    assert [fault.path for fault in raised.value.faults] == [path]
    assert says in str(raised.value)


@pytest.mark.parametrize("block", ["model", "cluster", "batch"])
def test_a_missing_block_is_named_with_one_that_would_do(write, block):
    document = yaml.safe_load(JOB)
    del document[block]
    [(path, said)] = faults_of(write(yaml.safe_dump(document))).items()
    assert path == block
    example = said.removeprefix("is missing; add it, such as ")
    job_from_document({**document, **yaml.safe_load(example)})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    [
        "model", "model.base", "model.experts", "cluster", "cluster.profile", "cluster.gpus",
        "cluster.network.scale_up", "cluster.kernels.gemm", "cluster.device.peak.bf16", "batch",
        "batch.micro", "plan", "plan.tp", "plan.zero_group", "plan.cp", "new",
    ]
)  # fmt: skip


@given(changes=st.dictionaries(FIELDS, VALUES, min_size=1, max_size=3))
def test_no_value_anywhere_makes_anything_but_a_job_or_an_input_error(changes):
    document = yaml.safe_load(JOB)
    for field, value in changes.items():
        write_field(document, field, value)
    message = "a job"
    try:
        job_from_document(document)
    except InputError as error:
        message = str(error)
    assert 0 < len(message) < 5000


def test_faults_of_a_profile_file_are_reported_in_that_file(write):
    document = yaml.safe_load((data_folder("hardware_profiles") / "h100-sxm-80gb.yaml").read_text())
    document["device"]["sm_cont"] = document["device"].pop("sm_count")
    profile = write(yaml.safe_dump(document), "mine.yaml")
    with pytest.raises(InputError) as raised:
        load_job(write(JOB), {"cluster.profile": "mine.yaml", "plan.tp": 0})
    assert {(fault.file, fault.path) for fault in raised.value.faults} == {
        (str(profile), "device.sm_count"),
        (str(profile), "device.sm_cont"),
        (str(profile.parent / "job.yaml"), "plan.tp"),
    }


def test_faults_of_a_model_file_are_reported_in_that_file(write):
    model = write(MODEL.replace("layers", "layer"), "mine.yaml")
    with pytest.raises(InputError) as raised:
        load_job(write(JOB), {"model": "mine.yaml"})
    assert {fault.file for fault in raised.value.faults} == {str(model)}


def test_an_override_replaces_one_number_and_says_that_it_comes_from_the_job(write):
    plain = load_job(write(JOB)).cluster.profile
    changed = load_job(write(JOB), {"cluster.network.scale_up.bandwidth": "100 GB/s"})
    network = changed.cluster.profile.network
    assert network.scale_up.bandwidth_bytes_per_s == 100e9
    assert network.fabric == plain.network.fabric
    provenance = changed.cluster.profile.provenance
    assert provenance["network.scale_up.bandwidth"].reference == "set in the job"
    assert provenance["network.fabric.nic"] == plain.provenance["network.fabric.nic"]


def test_an_override_may_bring_its_own_source(write):
    source = {"kind": "measured", "reference": "our cluster"}
    job = load_job(write(JOB), {"cluster.device.memory": {"value": "79 GiB", "source": source}})
    assert job.cluster.profile.device.memory_bytes == 79 * 2**30
    assert job.cluster.profile.provenance["device.memory"].reference == "our cluster"


def test_fields_that_a_base_model_leaves_out_follow_the_changed_ones(write):
    write(MODEL, "small.yaml")
    model = load_job(write(JOB), {"model": {"base": "small.yaml", "heads": 8}}).model
    assert (model.heads, model.kv_heads, model.head_dim) == (8, 8, 8)


def test_a_hugging_face_config_can_be_a_model_or_the_base_of_one(write):
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 256,
        "vocab_size": 1000,
    }
    write(json.dumps(config), "config.json")
    assert load_job(write(JOB), {"model": "config.json"}).model.layers == 2
    changed = load_job(write(JOB), {"model": {"base": "config.json", "layers": 6}})
    assert (changed.model.layers, changed.model.hidden) == (6, 64)


def test_sources_are_inherited_by_every_number_of_their_block():
    profile = load_profile("h100-sxm-80gb")
    assert profile.provenance["device.sm_count"].kind == "datasheet"
    assert "device.source" not in profile.provenance


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_is_sound(name):
    profile = load_profile(name)
    assert profile.name == name
    assert profile_faults(profile) == []


@pytest.mark.parametrize("name", model_names())
def test_every_shipped_model_is_readable_under_its_name(name):
    assert load_model(name).name == name


def test_a_number_without_a_source_is_a_fault(write):
    document = read_yaml(data_folder("hardware_profiles") / "h100-sxm-80gb.yaml")
    document["host"].pop("source")
    path = write(yaml.safe_dump(document), "mine.yaml")
    assert [fault.path for fault in profile_faults(load_profile(path))] == ["host.memory"]


def test_a_source_without_a_reference_is_a_fault_unless_assumed(write):
    document = read_yaml(data_folder("hardware_profiles") / "h100-sxm-80gb.yaml")
    document["host"] = {"source": {"kind": "measured"}, "memory": "1 TB", "pcie": "50 GB/s"}
    path = write(yaml.safe_dump(document), "mine.yaml")
    faults = profile_faults(load_profile(path), file="mine.yaml")
    assert [(fault.path, fault.file) for fault in faults] == [
        ("host.memory", "mine.yaml"),
        ("host.pcie", "mine.yaml"),
    ]


@pytest.mark.parametrize("sparse", ["tf32", "bf16", "fp8", "int8"])
def test_one_sparse_peak_among_dense_ones_is_a_fault(write, sparse):
    dense = {"tf32": 494.5, "bf16": 989.0, "fp8": 1979.0, "int8": 1979.0}
    document = read_yaml(data_folder("hardware_profiles") / "h100-sxm-80gb.yaml")
    for name, rate in dense.items():
        doubled = 2 * rate if name == sparse else rate
        document["device"]["peak"][name] = f"{doubled} TFLOP/s"
    faults = profile_faults(load_profile(write(yaml.safe_dump(document), "mine.yaml")))
    suspicious = [] if sparse == "tf32" else [f"device.peak.{sparse}"]
    assert [fault.path for fault in faults] == suspicious


ASSUMED = {"kind": "assumed", "reference": "a test"}
A_PRODUCT = {"efficiency": 0.5, "memory_efficiency": 0.8, "floor": "4 us"}


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        ("kernels.gemm.nvfp4", A_PRODUCT, "no peak"),
        ("kernels.launch", "50 ms", "one kernel's"),
        ("network.scale_up.bandwidth", "4500 GB/s", "its source of data"),
        ("host.pcie", "4 TB/s", "its source of data"),
        ("device.context", "100 GiB", "does not fit"),
        ("device.l2_cache", "50 TB", "does not fit"),
    ],
)  # fmt: skip
def test_what_no_machine_can_be_is_a_fault(write, path, value, rule):
    document = read_yaml(data_folder("hardware_profiles") / "h100-sxm-80gb.yaml")
    said = value if isinstance(value, dict) else {"value": value}
    write_field(document, path, {**said, "source": ASSUMED})
    faults = profile_faults(load_profile(write(yaml.safe_dump(document), "mine.yaml")))
    assert [fault.path for fault in faults] == [path]
    assert rule in faults[0].rule


def shipped_files() -> list[tuple[str, Path]]:
    """Every shipped file with the schema that describes it."""
    folders = {
        "profile": data_folder("hardware_profiles"),
        "job": data_folder("workloads"),
        "model": data_folder("workloads") / "models",
        "offers": data_folder("workloads") / "offers",
    }
    return [(kind, path) for kind, folder in folders.items() for path in folder.glob("*.yaml")]


SCHEMAS = {
    "profile": profile_schema,
    "job": job_schema,
    "model": model_schema,
    "offers": offers_schema,
}


@cache
def validator(kind):
    """The schema of a kind of file; that it is one takes a second to check, and is checked once."""
    schema = SCHEMAS[kind]()
    of_its_draft = jsonschema.validators.validator_for(schema)
    of_its_draft.check_schema(schema)
    return of_its_draft(schema)


@pytest.mark.parametrize(
    ("kind", "path"), shipped_files(), ids=lambda value: getattr(value, "stem", value)
)
def test_the_schemas_accept_every_shipped_file(kind, path):
    validator(kind).validate(read_yaml(path))


@pytest.mark.parametrize(
    ("field", "value"),
    [("plna", {}), ("batch", {"global": 0, "seq_len": 1}), ("plan", {"tp": "2"}), ("model", 3)],
)
def test_the_job_schema_refuses_what_loading_refuses(field, value):
    document = yaml.safe_load(JOB) | {field: value}
    with pytest.raises(InputError):
        job_from_document(document)
    with pytest.raises(jsonschema.ValidationError):
        validator("job").validate(document)


def test_the_job_schema_allows_names_bases_and_overrides():
    models = ["llama3.1-8b", {"base": "llama3.1-8b", "layers": 2}, yaml.safe_load(MODEL)]
    memories = ["80 GiB", {"value": "80 GiB", "source": {"kind": "assumed"}}]
    for model, memory in product(models, memories):
        document = yaml.safe_load(JOB) | {"model": model}
        document["cluster"]["device"] = {"memory": memory}
        job_from_document(document)
        validator("job").validate(document)


def test_a_file_that_a_change_names_lies_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = (data_folder("hardware_profiles") / "l40s.yaml").read_text()
    (tmp_path / "ours.yaml").write_text(shipped.replace("name: l40s", "name: ours", 1))
    job = load_job("llama3-8b-8xh100", {"cluster.profile": "ours.yaml"})
    assert job.cluster.profile.name == "ours"
    with pytest.raises(InputError, match=r"theirs\.yaml: cannot be read"):
        load_job("llama3-8b-8xh100", {"cluster.profile": "theirs.yaml"})


def test_a_job_prints_as_a_line_that_says_what_it_is():
    job = load_job("llama3-8b-8xh100")
    assert str(job) == repr(job)
    assert str(job).startswith(f"Job({job.title}, ")
    assert str(job.batch.seq_len) in str(job)
