"""Facts about published runs that lie beside their table, and those beside ours."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from simulator.cells import Row, read_table
from simulator.errors import InputError
from simulator.facts import EVIDENCE
from simulator.validate.published.published_rows import job_document, memory_kind
from simulator.validate.published.published_runs import read_rows
from simulator.validate.published.row_facts import RowFacts, with_known_facts
from tests.validate.published_jobs import ROW, job_of

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "reports" / "data" / "runs_open.csv"


@cache
def kept_rows() -> list[Row]:
    return read_table(RUNS, ["id", "source"])


def known_row(row: Row) -> Row:
    """The row as it would be read if it stood in our table."""
    return with_known_facts([*kept_rows(), row], RUNS)[-1]


def known_job(row: Row) -> dict[str, Any]:
    return job_document(known_row(row))


@pytest.fixture
def table(tmp_path):
    """Write a table of two rows and facts about them; returns the path of the table."""

    def write(facts: str) -> Path:
        path = tmp_path / "runs.csv"
        rows = [ROW, {**ROW, "id": "lab-small-002", "tp": "1", "dp": "4"}]
        lines = [",".join(ROW), *(",".join(row.values()) for row in rows)]
        path.write_text("\n".join(lines), encoding="utf-8")
        (tmp_path / "runs.facts.yaml").write_text(facts, encoding="utf-8")
        return path

    return write


def test_facts_beside_a_table_hold_for_the_rows_that_they_are_about(table):
    facts = """
    groups:
    - {where: {id: "lab-*"}, job: {plan: {overlap_tp: true}}, source: assumed}
    - where: {id: lab-*, tp: ["1", "8"]}
      job: {plan: {overlap_tp: false, recompute: full}}
      cells: {mem_kind: device}
      source: documentation
    """
    rows = read_rows(table(facts))
    plans = [job_document(row)["plan"] for row in rows]
    assert [plan["overlap_tp"] for plan in plans] == [True, False]
    assert [plan["recompute"] for plan in plans] == ["none", "full"]
    assert [memory_kind(row) for row in rows] == ["allocated", "device"]


def test_a_table_may_state_facts_in_a_column_of_its_own():
    row = {**ROW, "facts": json.dumps({"plan": {"overlap_tp": True}})}
    assert job_document(row)["plan"]["overlap_tp"] is True
    with pytest.raises(InputError, match="column facts"):
        job_document({**ROW, "facts": "[1"})


@pytest.mark.parametrize("positions", ["rotary", "alibi"])
def test_a_model_without_gates_whose_positions_are_stated_has_no_table_of_them(positions):
    row = {**ROW, "gated_mlp": "false", "facts": json.dumps({"model": {"positions": positions}})}
    assert job_of({**ROW, "gated_mlp": "false"}).model.max_positions == 1024
    assert job_of(row).model.max_positions == 0


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ("groups: [{where: {id: nobody}, source: assumed}]", "groups.0.where"),
        ("groups: [{where: {id: lab-*}}]", "groups.0.source"),
        ("groups: [{where: {id: lab-*}, source: hearsay}]", "groups.0.source"),
        ("groups: [{where: {id: lab-*}, source: assumed, speed: 3}]", "groups.0.speed"),
    ],
)
def test_facts_about_no_row_without_evidence_or_of_unknown_kind_are_refused(table, facts, fault):
    path = table(facts)
    with pytest.raises(InputError) as raised:
        read_rows(path)
    assert raised.value.faults[0].path == fault
    assert raised.value.faults[0].file.endswith("runs.facts.yaml")


def test_evidence_of_rows_is_of_the_kinds_that_evidence_of_frameworks_is():
    assert get_args(RowFacts.model_fields["source"].annotation) == EVIDENCE


PROJECTS = ("vtrain", "sailor", "simumax", "mlperf", "bigscience", "dgx cloud", "jean zay")
"""Authors of tables that are no framework."""


STILL_NAMED = {
    # The rules of the benchmark fix the lengths of its data sets and how it counts.
    "serving_rows.py: mlperf",
    "serving.py: mlperf",
    # A fitted factor says which runs found it, so that it can be left out with them.
    "kernels.yaml: mlperf",
}
"""Files that name a project all the same; no new one may be added."""


def test_nothing_that_is_shipped_as_code_or_fact_names_a_published_source():
    repositories = {
        name.lower()
        for row in kept_rows()
        for name in re.findall(r"\(repo ([\w./-]+)", row["source"])
    }
    names = (*PROJECTS, *repositories)
    files = [*(ROOT / "simulator").rglob("*.py"), *(ROOT / "simulator").rglob("*.yaml")]
    texts = {path: path.read_text(encoding="utf-8").lower() for path in files}
    found = {
        f"{path.name}: {name}" for path, said in texts.items() for name in names if name in said
    }
    assert found - STILL_NAMED == set()


def test_a_log_that_names_used_device_memory_total_is_compared_with_device_memory():
    source = "Sailor validation data, simulations/validation/clariden"
    assert memory_kind(known_row({**ROW, "source": source})) == "device"


def test_launchers_of_nemo_1_keep_remainders_of_weights_where_they_run_apexs_optimizer():
    names = {
        "NeMo Framework Launcher README scaling tables": True,
        "DGX Cloud benchmarking recipes 25.02, nemotron/README_340b.md": True,
        "DGX Cloud benchmarking recipes 25.02, nemotron/README_15b.md": False,
        "DGX Cloud benchmarking recipes 25.02, grok1/README_314b.md": False,
    }
    for source, keeps in names.items():
        stack = known_job({**ROW, "source": source})["plan"]["stack"]
        assert stack.get("keeps_weight_remainders", False) is keeps


@pytest.mark.parametrize(
    ("recipe", "facts"),
    [
        ("nemo_megatron/README_175b.md", ("flash-2", "in-place", True)),
        ("grok1/README_314b.md", ("flash-2", "in-place", None)),
        ("nemotron/README_340b.md", ("flash-2", None, None)),
        ("nemotron/README_15b.md", (None, None, None)),
        ("llama3.1/README_405b.md", (None, None, None)),
    ],
)
def test_recipes_say_which_attention_loss_and_dropout_they_run(recipe, facts):
    source = f"DGX Cloud benchmarking recipes 25.02, {recipe}"
    stack = known_job({**ROW, "source": source})["plan"]["stack"]
    assert tuple(map(stack.get, ("flash_kernel", "cross_entropy", "dropout"))) == facts


def test_attention_of_mlperfs_gpt_3_is_of_its_time():
    source = "MLPerf Training v3.{} logs, NVIDIA/dgxh100_n64_nemo/gpt3"
    stacks = [known_job({**ROW, "source": source.format(n)})["plan"]["stack"] for n in (0, 1)]
    assert [stack.get("flash_kernel") for stack in stacks] == ["flash-1", None]
    assert [stack["cross_entropy"] for stack in stacks] == ["in-place"] * 2


def test_products_of_sailor_are_in_tf32_where_the_device_has_it():
    source = "Sailor validation data, simulations/validation/clariden"
    row = {**ROW, "source": source, "precision": "fp32", "model": "opt-350m"}
    document = known_job(row)
    assert document["plan"]["precision"] == "tf32"
    assert document["model"]["embedding_dim"] == 0


def test_paxml_saves_what_its_recipe_says_and_not_what_that_of_another_model_does():
    source = "DGX Cloud benchmarking recipes 24.11, paxml/README_175b.md"
    plan = known_job({**ROW, "framework": "jax", "source": source})["plan"]
    assert plan["zero_group"] == 16 * 8
    assert plan["stack"] == {"base": "jax", "selective_policy": "all-but-projections"}


@pytest.mark.parametrize(("tp", "parts"), [("1", None), ("4", True)])
def test_checkpoints_of_bigscience_leave_for_the_cpu_in_parts_if_there_are_any(tp, parts):
    source = "BigScience Jean Zay V100 experiments, experiments/gpt2.md ZeRO section"
    plan = known_job({**ROW, "source": source, "tp": tp, "dp": ""})["plan"]
    assert plan["offload"] == {"activations": "cpu"}
    assert plan.get("partition_activations") is parts
    assert plan["stack"]["base"] == "deepspeed-2021"


def test_the_launchers_table_of_175b_is_of_a_release_without_interleaving():
    source = "NeMo Framework Launcher README scaling tables (repo NVIDIA/NeMo-Framework-Launcher)"
    cells = {"gpus": "64", "tp": "4", "pp": "8", "vpp": "12", "dp": "2", "zero": "1"}
    row = {**ROW, **cells, "source": source, "schedule": "interleaved-1f1b", "global_batch": "2048"}
    plan = known_job({**row, "model": "gpt3-175b"})["plan"]
    layout = [plan[name] for name in ("tp", "pp", "vpp", "schedule", "zero")]
    assert layout == [8, 8, 1, "1f1b", 0]
    assert known_job({**row, "model": "gpt3-5b"})["plan"]["vpp"] == 12


@pytest.mark.parametrize(
    ("change", "micro"),
    [({}, 1), ({"precision": "fp8"}, 2), ({"source": "Megatron-Bridge, container 25.11"}, 2)],
)
def test_a_preset_says_the_micro_batch_where_the_table_contradicts_itself(change, micro):
    source = (
        "Megatron-Bridge performance summary, container 25.09 (repo NVIDIA-NeMo/Megatron-Bridge)"
    )
    cells = {"model": "llama3-70b", "profile": "gb200-nvl72", "precision": "mxfp8"}
    row = {**ROW, **cells, "source": source, "micro_batch": "2", **change}
    assert known_job(row)["batch"]["micro"] == micro


@pytest.mark.parametrize(
    ("container", "notes", "model", "profile", "graphs"),
    [
        ("25.09", "variant (tokendrop)", "qwen3-30b-a3b", "b200-sxm-180gb", "full"),
        ("25.09", "variant (tokendrop)", "qwen3-235b-a22b", "gb200-nvl72", "full"),
        ("25.09", "variant (tokendrop)", "qwen3-235b-a22b", "b200-sxm-180gb", None),
        ("25.09", "variant (tokendrop)", "qwen3-30b-a3b", "h100-sxm-80gb", None),
        ("25.11", "", "qwen3-30b-a3b", "b200-sxm-180gb", "layer"),
        ("26.02", "", "qwen3-235b-a22b", "b300-sxm", None),
    ],
)
def test_presets_capture_whole_steps_of_dropped_tokens_and_layers_of_others_on_some_devices(
    container, notes, model, profile, graphs
):
    source = f"Megatron-Bridge performance summary, container {container} (repo Megatron-Bridge)"
    cells = {"source": source, "notes": notes, "model": model, "profile": profile}
    assert known_job({**ROW, **cells})["plan"].get("cuda_graphs") == graphs


def test_facts_that_hold_for_all_runs_of_a_source_are_read():
    source = "vTrain shipped validation data, data/ground_truth_single.csv"
    document = known_job({**ROW, "source": source, "recompute": "full"})
    plan = document["plan"]
    assert plan["recompute"] == "none"
    assert document["cluster"]["kernels"] == {"sustained_clock": 1.0}
    assert plan["stack"] == {
        "base": "megatron-core", "pads_vocab": False, "fused_softmax": False,
        "launches_ahead": False, "keeps_cast_weights": False,
        "widens_moments": True,
    }  # fmt: skip
    assert known_job({**ROW, "recompute": "full"})["plan"]["recompute"] == "full"


def test_what_is_stated_of_a_row_goes_over_the_words_of_its_notes():
    row = {**ROW, "notes": "Liger kernels"}
    assert job_document(row)["plan"]["cross_entropy"] == "linear-fused"
    stated = {**row, "facts": '{"plan": {"cross_entropy": "overwritten"}}'}
    assert job_document(stated)["plan"]["cross_entropy"] == "overwritten"


@pytest.mark.parametrize(("tp", "vocab"), [("1", 50257), ("2", 50256), ("8", 50256)])
def test_ranks_of_vtrains_model_have_a_whole_number_of_tokens_each(tp, vocab):
    source = "vTrain shipped validation data, data/ground_truth_single.csv"
    row = {**ROW, "source": source, "tp": tp, "dp": "", "vocab": "50257"}
    assert known_job(row)["model"]["vocab"] == vocab
    assert known_job({**row, "source": "Narayanan et al."})["model"]["vocab"] == 50257


def test_nanotrons_runs_that_its_script_repeated_compare_collectives_on_the_host():
    """All with pipelines over nodes, and ten without a pipeline, whose first try failed."""
    table = RUNS.with_name("runs_opened.csv")
    rows = [row for row in read_rows(table) if row["framework"] == "nanotron"]
    checked = {row["id"] for row in rows if "exchange_check" in row.get("facts", "")}
    over_nodes = {row["id"] for row in rows if row["pp"] != "1" and int(row["gpus"]) > 8}
    without_pipeline = {row["id"] for row in rows if row["pp"] == "1"}
    assert checked - without_pipeline == over_nodes
    assert len(over_nodes) == 51
    assert len(checked & without_pipeline) == 10


def test_nanotrons_exchanges_over_nodes_take_what_an_old_library_takes_on_its_fabric():
    table = RUNS.with_name("runs_opened.csv")
    rows = [row for row in read_rows(table) if row["framework"] == "nanotron"]
    fabrics = {
        row["id"]: job_document(row)["cluster"].get("network", {}).get("fabric", {}) for row in rows
    }
    slow = {name for name, fabric in fabrics.items() if "ring_piece" in fabric}
    assert slow == {row["id"] for row in rows if int(row["gpus"]) > 8}
