"""Published runs: rows in, errors out, and a reason for every row without a prediction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.load import job_from_document, load_model
from simulator.described.plan.plan import Plan
from simulator.errors import InputError
from simulator.results.simulation import run_step
from simulator.validate.accuracy import Accuracy, error_pct
from simulator.validate.published.published_rows import job_document, measured_memory_gib
from simulator.validate.published.published_runs import (
    predicted,
    read_rows,
    row_source,
    validate_published,
)
from tests.csv_files import write_rows
from tests.validate.published_jobs import ROW


@pytest.fixture
def table(tmp_path):
    """Write rows, each the row above with some cells changed; returns the path."""

    def write(*changes: dict[str, str], without: tuple[str, ...] = ()) -> Path:
        rows = [{**ROW, **change} for change in changes]
        names = [name for name in ROW if name not in without]
        return write_rows(rows, tmp_path / "runs.csv", names)

    return write


def test_a_row_is_predicted_as_the_job_that_it_states(table):
    (row,) = validate_published(table({})).rows
    step = run_step(
        job_from_document(
            {
                "model": {
                    "name": "small", "layers": 4, "hidden": 1024, "ffn_hidden": 4096,
                    "heads": 16, "kv_heads": 16, "vocab": 32000, "gated_mlp": True,
                },
                "cluster": {
                    "profile": "h100-sxm-80gb", "gpus": 8,
                    "network": {
                        "gpus_per_node": 8,
                        "fabric": {"nics_per_node": 8, "nic": "400 Gbit/s", "kind": "ib"},
                    },
                },
                "batch": {"global": 8, "micro": 1, "seq_len": 1024},
                "plan": {
                    "tp": 2, "pp": 2, "zero": 1, "sequence_parallel": True,
                    "stack": "megatron-core", "schedule": "1f1b",
                    "overlap_tp": True, "grad_reduce_precision": "bf16",
                },
            }
        )
    )  # fmt: skip
    assert row.skipped == ""
    assert row.predicted_step_s == step.step_time_s
    peak_gib = max(memory.peak_allocated_bytes for memory in step.memory) / 2**30
    assert row.predicted_mem_gib == peak_gib
    assert (row.measured_step_s, row.measured_mem_gib) == (0.5, 20.0)
    assert row.error_pct == pytest.approx(100 * (row.predicted_step_s / 0.5 - 1))
    assert row.mem_error_pct == pytest.approx(100 * (peak_gib / 20 - 1))


def test_memory_is_compared_in_the_kind_that_the_row_states(table):
    kinds = ["allocated", "reserved", "device", ""]
    rows = validate_published(table(*({"mem_kind": kind} for kind in kinds))).rows
    allocated, reserved, device, unsaid = (row.predicted_mem_gib for row in rows)
    assert allocated < reserved < device == unsaid


def test_what_was_measured_never_changes_what_is_predicted(table):
    rows = validate_published(table({}, {"measured_step_s": "50", "measured_mem_gib": "1"})).rows
    assert rows[0].predicted_step_s == rows[1].predicted_step_s
    assert rows[0].predicted_mem_gib == rows[1].predicted_mem_gib


def test_rows_without_a_measurement_are_predicted_but_not_scored(table):
    report = validate_published(table({"measured_step_s": "", "measured_mem_gib": ""}, {}))
    unmeasured = report.rows[0]
    assert unmeasured.predicted_step_s > 0
    assert (unmeasured.error_pct, unmeasured.mem_error_pct) == (None, None)
    assert report.summary.n == report.memory_summary.n == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"profile": "abacus"}, "profile: no hardware profile describes 'abacus'"),
        ({"layers": "many"}, "layers: must be a whole number, not 'many'"),
        ({"layers": "4.5"}, "layers: must be a whole number"),
        ({"layers": "0"}, "model.layers"),
        ({"layers": "-3"}, "layers: must be at least 0, not '-3'"),
        ({"micro_batch": "0"}, "batch.micro"),
        ({"gpus": "nan"}, "gpus: must be a whole number"),
        ({"gpus": "1e999"}, "gpus: must be a whole number"),
        ({"gpus": "7"}, "cluster.gpus: must be a multiple of tp x pp x cp"),
        ({"global_batch": ""}, "global_batch: must be a whole number, not ''"),
        ({"global_batch": "3"}, "batch.global"),
        ({"tp": "3"}, "cluster.gpus"),
        ({"tp": "0"}, "plan.tp"),
        ({"tp": "0", "zero_group": "node"}, "plan.tp"),
        ({"dp": "3"}, "dp: 3 contradicts gpus / (tp x pp x cp) = 2"),
        ({"tp": "8", "pp": "4", "dp": ""}, "cluster.gpus: must be a multiple of tp x pp x cp"),
        ({"zero_group": "some"}, "zero_group: must be a whole number"),
        ({"precision": "bf17"}, "plan.precision"),
        ({"schedule": "magic"}, "plan.schedule"),
        ({"vpp": "2", "schedule": "gpipe"}, "plan.schedule"),
        ({"recompute": "maybe"}, "plan.recompute"),
        ({"nic_gbps": "fast"}, "fast"),
        ({"fabric": "string", "gpus": "16", "dp": "4"}, "cluster.network.fabric.kind"),
        ({"gated_mlp": "perhaps"}, "gated_mlp: must be true or false, not 'perhaps'"),
        ({"model": "t5-11b"}, "t5-11b is not a stack of equal transformer layers"),
        ({"notes": "LoRA of unknown rank"}, "but not their rank"),
        ({"ffn_hidden": ""}, "ffn_hidden: must be a whole number, not ''"),
        ({"measured_step_s": "slow"}, "measured_step_s: must be a positive number, not 'slow'"),
        ({"measured_step_s": "-1"}, "measured_step_s: must be a positive number"),
        ({"measured_step_s": "nan"}, "measured_step_s: must be a positive number"),
        ({"measured_mem_gib": "0"}, "measured_mem_gib: must be a positive number"),
    ],
    ids=str,
)
def test_a_row_that_cannot_run_is_skipped_with_the_reason(table, change, reason):
    report = validate_published(table(change, {}))
    odd, sound = report.rows
    assert reason in odd.skipped
    assert odd.predicted_step_s is None
    assert sound.skipped == ""
    assert (report.summary.n, report.summary.skipped) == (1, 1)


@given(
    st.sampled_from(sorted(set(ROW) - {"id", "profile", "model"})),
    st.sampled_from(["", "0", "-1", "1e400", "nan", "true", "x" * 100, "½", "1;2", "None"]),
)
@settings(deadline=None, max_examples=80)
def test_no_cell_whatever_it_holds_stops_the_table(column, text):
    result = predicted({**ROW, column: text})
    assert result.skipped or result.predicted_step_s > 0


def test_a_missing_column_is_named(table):
    with pytest.raises(InputError, match="lacks the columns layers, seq_len"):
        validate_published(table({}, without=("layers", "seq_len")))


DIMENSIONS = ("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab", "gated_mlp")


@pytest.mark.parametrize("model", ["llama2-7b", "gpt2", "gemma-2b", "mixtral-8x7b", "deepseek-v2"])
def test_columns_of_dimensions_may_be_missing_where_rows_name_shipped_models(table, model):
    (row,) = read_rows(table({"model": model, "tied_embeddings": ""}, without=DIMENSIONS))
    filled = job_from_document(job_document(row)).model
    assert filled == load_model(model)


def test_an_empty_dimension_is_that_of_the_shipped_model_and_a_stated_one_wins(table):
    (row,) = read_rows(table({"model": "llama2-7b", "hidden": "", "gated_mlp": "-"}))
    assert (row["hidden"], row["gated_mlp"]) == ("4096", "True")
    assert (row["layers"], row["heads"]) == (ROW["layers"], ROW["heads"])


@pytest.mark.parametrize("name", ["Llama2-7B", "meta/llama2-7b", "llama2-7b-12L", "llama9"])
def test_dimensions_are_asked_for_where_no_shipped_model_has_exactly_that_name(table, name):
    runs = table({"model": "llama2-7b"}, {"model": name}, without=DIMENSIONS)
    with pytest.raises(InputError, match=r"lacks the columns layers.*clustersim models list"):
        read_rows(runs)


def test_optional_columns_may_be_missing(table):
    optional = ("grade", "notes", "mem_kind", "zero_group", "fabric", "nic_gbps", "experts")
    (row,) = validate_published(table({}, without=optional)).rows
    assert row.skipped == ""


@pytest.mark.parametrize("content", [b"", b"\n", ",".join(ROW).encode()])
def test_a_table_without_rows_is_refused(tmp_path, content):
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"has no rows|is empty"):
        validate_published(path)


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path):
    (tmp_path / "runs.csv").write_bytes(b"id\n\xff\xfe\x00\n")
    for path in (tmp_path / "none.csv", tmp_path, tmp_path / "runs.csv"):
        with pytest.raises(InputError, match="cannot be read") as raised:
            validate_published(path)
        assert raised.value.faults[0].file == str(path)


def test_a_byte_order_mark_and_short_rows_do_no_harm(table):
    path = table({})
    text = path.read_text(encoding="utf-8")
    head, row = text.splitlines()
    path.write_text(f"\ufeff{head}\n{row}\nonly-an-id\n", encoding="utf-8")
    rows = validate_published(path).rows
    assert (rows[0].id, rows[0].skipped) == ("lab-small-001", "")
    assert rows[1].skipped


def test_the_report_is_json_with_the_promised_fields(table):
    report = validate_published(table({}, {"id": "lab-small-002", "profile": "abacus"}))
    document = json.loads(json.dumps(report.to_dict()))
    fields = {
        "id", "gpu", "measured_step_s", "predicted_step_s", "error_pct", "measured_mem_gib",
        "predicted_mem_gib", "mem_error_pct", "skipped",
    }  # fmt: skip
    assert all(fields <= set(row) for row in document["rows"])
    assert document["rows"][0]["skipped"] is None
    summary = {"n", "mape", "median_ape", "worst_ape", "mem_n", "mem_mape", "skipped"}
    assert summary <= set(document["summary"])
    assert document["by_source"]["lab-small"]["n"] == 1


def test_progress_is_told_row_by_row_in_order(table):
    seen = []
    validate_published(table({"id": "a-1"}, {"id": "a-2"}), on_row=lambda r: seen.append(r.id))
    assert seen == ["a-1", "a-2"]


def test_the_lower_bound_without_contention_is_never_above_the_simulation(table):
    path = table({})
    (simulated,), (bound,) = (
        validate_published(path, engine=engine).rows for engine in ("des", "replay")
    )
    assert bound.predicted_step_s <= simulated.predicted_step_s


@pytest.mark.parametrize("version", ["DeepSpeed 0.5", "DeepSpeed 0.9"])
def test_a_model_of_transformers_has_no_kernels_of_its_own_under_any_deepspeed(version):
    row = {**ROW, "framework": "DeepSpeed + HF Trainer", "framework_version": version}
    stack = job_document({**row, "tp": "1", "pp": "1", "dp": "", "gated_mlp": "false"})["plan"][
        "stack"
    ]
    assert stack["fused_elementwise"] is stack["fused_softmax"] is False


def test_empty_cells_leave_the_default_of_the_stack():
    plan = job_document({**ROW, "zero": "", "schedule": "", "overlap_grad_reduce": ""})["plan"]
    assert {"schedule", "overlap_grad_reduce"}.isdisjoint(plan)
    assert plan["zero"] == Plan().zero


def test_states_sharded_inside_a_node_leave_out_the_tensor_ranks():
    many = {**ROW, "gpus": "64", "dp": "16"}
    plan = job_document({**many, "zero_group": "node"})["plan"]
    assert plan["zero_group"] == 8 // 2
    assert job_document({**many, "zero_group": "node", "gpus_per_node": ""})["plan"] == plan


def test_facts_that_only_the_notes_state_are_read():
    plan = job_document({**ROW, "notes": "synchronous p2p; bf16 grad sync"})["plan"]
    assert plan["overlap_p2p"] is False
    assert plan["grad_reduce_precision"] == "bf16"


def test_what_a_version_says_of_settings_is_read_as_notes_are():
    version = "DeepSpeed ZeRO-3 with CPU offload of parameters and optimizer"
    plan = job_document({**ROW, "framework_version": version})["plan"]
    assert plan["offload"] == {"optimizer": "cpu", "parameters": "cpu"}


def test_layers_whose_activations_leave_are_counted_in_the_notes():
    notes = "Megatron-FSDP with activation CPU offload of 20 layers per recipe preset"
    plan = job_document({**ROW, "notes": notes})["plan"]
    assert plan["offload"] == {"activations": "cpu", "activation_layers": 20}
    assert "offload" not in job_document(ROW)["plan"]


def test_modules_that_a_preset_computes_again_are_in_the_notes():
    notes = "router force-balanced; preset recomputes layernorm+moe_act (tag v0.2.0)"
    plan = job_document({**ROW, "recompute": "selective", "attention": "", "notes": notes})["plan"]
    assert (plan["recompute"], plan["recompute_modules"]) == ("selective", ["layernorm", "moe_act"])
    assert "attention" not in plan
    assert "recompute_modules" not in job_document({**ROW, "recompute": "selective"})["plan"]


def test_the_rowwise_recipe_of_float8_gathers_in_16_bits():
    notes = "vanilla TP; torch.compile; precision: float8 rowwise; zero: FSDP2 ZeRO-3"
    stack = job_document({**ROW, "notes": notes})["plan"]["stack"]
    assert stack["float8_scaling"] == "rows"
    assert stack["gathers_casted"] is False


def test_the_source_of_a_row_is_its_id_without_the_number():
    assert row_source("mlperf-v5-llama-012") == "mlperf-v5-llama"
    assert row_source("alone") == "alone"


def test_accuracy_of_signed_errors_worked_out_by_hand():
    accuracy = Accuracy.of([10.0, -20.0, None, 0.0, -30.0])
    assert accuracy.n == 4
    assert accuracy.skipped == 1
    assert accuracy.mape == 15.0
    assert accuracy.median_ape == 15.0
    assert accuracy.worst_ape == 30.0
    assert accuracy.bias == -10.0
    assert accuracy.close_share == 0.5


def test_accuracy_of_nothing_is_unknown_not_perfect():
    accuracy = Accuracy.of([None, None])
    assert (accuracy.n, accuracy.mape, accuracy.skipped) == (0, None, 2)


def test_an_error_is_positive_where_the_prediction_is_too_large():
    assert error_pct(1.1, 1.0) == pytest.approx(10)
    assert error_pct(0.5, 1.0) == pytest.approx(-50)
    assert error_pct(None, 1.0) is None
    assert error_pct(1.0, None) is None


def test_long_rows_are_simulated_first_and_reported_where_they_stand(table):
    rows = [{"id": "a-1"}, {"id": "a-2", "global_batch": "64"}, {"id": "a-3", "tp": "none"}]
    done = []
    report = validate_published(table(*rows), on_row=lambda row: done.append(row.id))
    assert done == ["a-2", "a-1", "a-3"]
    assert [row.id for row in report.rows] == ["a-1", "a-2", "a-3"]


def test_a_run_with_soap_keeps_what_it_rotates_matrices_with():
    job = job_document({**ROW, "notes": "optimizer SOAP for matrices, Adam for the rest"})
    assert job["plan"]["optimizer"] == "soap"


def test_a_run_with_muon_keeps_one_momentum_of_its_matrices():
    job = job_document(
        {**ROW, "notes": "optimizer distributed Muon for matrices, Adam for the rest"}
    )
    assert job["plan"]["optimizer"] == "muon"


def test_memory_that_is_printed_in_decimal_gigabytes_is_less_in_gib():
    notes = "memory: peak allocated (GB)"
    bridge = {"framework_version": "Megatron-Bridge main", "measured_mem_gib": "36", "notes": notes}
    assert measured_memory_gib(ROW | bridge) == 36e9 / 2**30
    assert measured_memory_gib(ROW | bridge | {"notes": ""}) == 36
    assert measured_memory_gib(ROW | {"notes": notes}) == 20


def test_a_time_without_the_update_is_predicted_without_it():
    whole = predicted(ROW).predicted_step_s
    without = predicted({**ROW, "notes": "no optimizer step in the time"}).predicted_step_s
    step = run_step(job_from_document(job_document(ROW)))
    assert without == pytest.approx(whole - step.breakdown["optimizer"])
