"""Is whatever a person or a stranger hands in either read faithfully or refused kindly?"""

from __future__ import annotations

import string
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.network import ScaleUp
from simulator.described.documents import (
    data_folder,
    merged,
    moved,
    named_file,
    names_in,
    parse_yaml,
    read_yaml,
    validated,
    with_changes,
)
from simulator.described.faults import nearest_hint
from simulator.described.load import job_from_document
from simulator.described.plan.plan import Plan
from simulator.errors import InputError

BILLION_LAUGHS = "\n".join(
    ["a0: &a0 [lol, lol]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
)
MERGE_BOMB = "\n".join(
    ["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 40))]
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\na: 2", "the key 'a' appears twice \\(line 2, column 1\\)"),
        ("a:\n\t- 1", "not valid YAML: .*\\(line 2, column 1\\)"),
        ("a: [1, 2", "not valid YAML"),
        ("a: b: c", "not valid YAML: mapping values"),
        ("1: a", "the key 1 is not text"),
        ("yes: a", "the key True is not text"),
        ("[a]: b", "is not text"),
        ("a: *nothing", "undefined alias"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: 2026-13-45", "not valid YAML: '2026-13-45': month must be"),
        ("a: 1\n---\nb: 2", "found another document"),
        ("a: \x00", "characters are not allowed"),
        ("a: &a [*a]", "nested too deeply"),
        ("a: &a {b: *a}", "nested too deeply"),
        (BILLION_LAUGHS, "expands to more than 50000 values"),
        (MERGE_BOMB, "merge keys \\(<<\\) are not supported"),
        ("[" * 5000, "nested too deeply"),
        ("{a: " * 60 + "1" + "}" * 60, "nested too deeply"),
        ("a: " + "9" * 5000, "not valid YAML"),
    ],
)
def test_broken_or_hostile_yaml_is_refused_with_the_reason(text, says):
    with pytest.raises(InputError, match=says):
        parse_yaml(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a:\n  b: 1\n c: 2\n", "look at the indentation of lines 2 and 3"),
        ("a:\n\t- 1", "look at the indentation of lines 1 and 2.*no tabs"),
        ("a: b: c\nd: 1\n", "look at the indentation of line 1: .*a blank follows each colon"),
    ],
)
def test_broken_syntax_says_where_to_look_at_the_indentation(text, hint):
    with pytest.raises(InputError, match=hint):
        parse_yaml(text)


@pytest.mark.parametrize("text", ["a: 1\na: 2", "a: 1\n1: 2\n", "a: b: c"])
def test_a_fault_of_the_content_or_of_one_value_is_no_question_of_indentation(text):
    with pytest.raises(InputError) as error:
        parse_yaml(text)
    assert error.value.faults[0].hint == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:8", "1:8"), ("1:30.5", "1:30.5"), ("010", "010"), ("-08", "-08"), ("0", 0),
        ("-3", -3), ("1_000", 1000), ("0x10", 16), ("0.5", 0.5), ("00.5", 0.5), ("1.5e+3", 1500.0),
    ],
)  # fmt: skip
def test_what_only_yaml_takes_for_a_number_stays_text(text, value):
    assert parse_yaml(text) == value


@given(st.text(alphabet=string.printable, max_size=60))
def test_any_text_is_a_value_or_an_input_error(text):
    with suppress(InputError):
        parse_yaml(text)


@given(st.binary(max_size=200))
def test_any_file_is_a_mapping_or_an_input_error_that_names_it(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "job.yaml"
    path.write_bytes(content)
    document, named = {}, str(path)
    try:
        document = read_yaml(path)
    except InputError as error:
        named = error.faults[0].file
    assert (type(document), named) == (dict, str(path))


@pytest.mark.parametrize("text", ["# nothing\n", "- a\n- b\n", "just words", "3", "null"])
def test_a_file_that_is_no_mapping_is_refused(write, text):
    with pytest.raises(InputError, match="must be a mapping of fields"):
        read_yaml(write(text))


def test_an_empty_file_is_refused_with_what_would_do(write):
    with pytest.raises(InputError, match="is empty; give a job"):
        read_yaml(write(" \n"), "give a job")


def test_a_file_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_yaml(tmp_path / "missing.yaml")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_yaml(tmp_path)


def test_a_path_with_a_zero_byte_is_an_input_error():
    with pytest.raises(InputError, match="cannot be read"):
        read_yaml(data_folder("workloads") / "a\0b.yaml")


def test_a_huge_file_is_refused_without_reading_all_of_it(tmp_path):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(InputError, match="more than 1,048,576 bytes"):
        read_yaml(path)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbfmodel: gpt2\n")
    assert read_yaml(path) == {"model": "gpt2"}


def test_aliases_of_a_reasonable_size_are_fine():
    assert parse_yaml("a: &x {b: 1}\nc: *x") == {"a": {"b": 1}, "c": {"b": 1}}


def test_shipped_data_is_found_in_a_checkout_and_inside_an_installed_package(tmp_path, monkeypatch):
    package = tmp_path / "simulator"
    (tmp_path / "workloads").mkdir()
    package.mkdir()
    monkeypatch.setattr("simulator.__file__", str(package / "__init__.py"))
    assert data_folder("workloads") == tmp_path / "workloads"
    (package / "workloads").mkdir()
    assert data_folder("workloads") == package / "workloads"


def test_a_name_is_a_shipped_file_and_a_path_starts_at_the_folder(tmp_path, write):
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    (shipped / "gpt2.yaml").write_text("layers: 12")
    write("layers: 3", "mine.yaml")
    assert names_in(shipped) == ["gpt2"]
    assert named_file("model", "gpt2", shipped, tmp_path) == shipped / "gpt2.yaml"
    assert named_file("model", "mine.yaml", shipped, tmp_path) == tmp_path / "mine.yaml"
    with pytest.raises(
        InputError, match=r"model = 'gtp2': there is no such name.*did you mean 'gpt2'\?"
    ):
        named_file("model", "gtp2", shipped, tmp_path)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("h100", "did you mean 'h100-sxm-80gb' or 'h100-pcie-80gb'?"),
        ("H200-SXM", "did you mean 'h200-sxm-141gb'?"),
        ("h100-sxm-80g", "did you mean 'h100-sxm-80gb'?"),
        ("h100-sxm-80gb-nvl", "did you mean 'h100-sxm-80gb'?"),
        ("tpu", "known: h100-sxm-80gb, h100-pcie-80gb, h200-sxm-141gb"),
    ],
)
def test_a_misspelt_name_gets_the_nearest_right_ones(word, hint):
    assert nearest_hint(word, ["h100-sxm-80gb", "h100-pcie-80gb", "h200-sxm-141gb"]) == hint


def test_all_of_five_names_that_begin_so_are_offered():
    names = [f"h100-{kind}" for kind in ("hbm2e", "nvl", "pcie", "sxm", "sxm-64gb")]
    assert all(name in nearest_hint("h100", names) for name in names)


def test_where_nothing_is_known_there_is_no_hint():
    assert nearest_hint("x", []) == ""


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"plan.tp": 0}, "use 1 or more"),
        ({"plan.tp": -2}, "leave out the minus sign"),
        ({"plan.zero": 7}, "use 3 or less"),
        ({"plan.offload": {"share": 2}}, "use 1 or less"),
        ({"plan.tp": 1.5}, "write a whole number"),
        ({"plan.tp": "8"}, "write 8, without quotes"),
        (
            {"campaign": {"systems": [{"power": {}}]}},
            "write NAME: {...} for each in place of a list",
        ),
        ({"plan.stack": {"base": "torch", "host_work_per_launch": "high"}}, "write a number"),
        ({"plan.clip_gradients": "maybe"}, "write true or false"),
    ],
)
def test_a_value_out_of_bounds_or_of_another_type_gets_the_way_out(changes, hint):
    document = {
        "model": "llama3.2-1b",
        "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
        "batch": {"global": 8, "seq_len": 512},
    }
    with pytest.raises(InputError) as refused:
        job_from_document(with_changes(document, changes))
    assert [fault.hint for fault in refused.value.faults] == [hint]


def test_merging_goes_block_by_block_and_leaves_the_base_as_it_was():
    base = {"a": {"b": 1, "c": 2}, "d": 3}
    assert merged(base, {"a": {"b": 5}, "d": {"e": 1}}) == {"a": {"b": 5, "c": 2}, "d": {"e": 1}}
    assert base == {"a": {"b": 1, "c": 2}, "d": 3}


def test_changes_are_set_by_dotted_path_and_make_the_blocks_they_need():
    assert with_changes({"plan": {"tp": 1}}, {"plan.tp": 4, "cluster.network.x": 1}) == {
        "plan": {"tp": 4},
        "cluster": {"network": {"x": 1}},
    }


def test_an_empty_block_may_be_filled():
    assert with_changes({"plan": None}, {"plan.tp": 4}) == {"plan": {"tp": 4}}


def test_changing_a_field_of_a_named_model_makes_the_name_its_base():
    changed = with_changes({"model": "gpt2"}, {"model.layers": 4, "model.hidden": 64})
    assert changed == {"model": {"base": "gpt2", "layers": 4, "hidden": 64}}


def test_changes_touch_neither_the_original_nor_what_an_alias_shares_with_it():
    document = parse_yaml("a: &x {b: 1}\nc: *x")
    assert with_changes(document, {"a.b": 2}) == {"a": {"b": 2}, "c": {"b": 1}}
    assert document == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize("path", ["", ".", "plan.", ".tp", "plan..tp"])
def test_a_change_without_a_proper_path_is_refused(path):
    with pytest.raises(InputError, match="is not a field path"):
        with_changes({}, {path: 1})


def test_a_change_inside_a_value_is_refused():
    with pytest.raises(InputError, match=r"plan.tp.x = 1: plan.tp is a value, not a block"):
        with_changes({"plan": {"tp": 1}}, {"plan.tp.x": 1})


def test_all_faults_of_a_document_come_at_once_with_their_paths():
    with pytest.raises(InputError) as raised:
        validated(Plan, {"tp": 0, "pp": "8", "zero": 4, "overlap_tp": "yes", "cpp": 2}, "plan")
    faults = {fault.path: fault.rule for fault in raised.value.faults}
    assert faults == {
        "plan.tp": "should be greater than or equal to 1",
        "plan.pp": "should be a valid integer",
        "plan.zero": "should be less than or equal to 3",
        "plan.overlap_tp": "should be a valid boolean",
        "plan.cpp": "no such field",
    }


@pytest.mark.parametrize(
    ("document", "path", "hint"),
    [
        ({"tpp": 2}, "tpp", "did you mean 'tp'"),
        ({"recompute": "ful"}, "recompute", "did you mean 'full'?"),
    ],
)
def test_misspelt_fields_and_choices_get_a_hint(document, path, hint):
    with pytest.raises(InputError) as raised:
        validated(Plan, document)
    assert raised.value.faults[0].path == path
    assert raised.value.faults[0].hint.startswith(hint)


def test_the_python_name_of_a_field_is_not_its_name_in_files():
    with pytest.raises(
        InputError, match=r"latency_s = '2 us': no such field; did you mean 'latency"
    ):
        validated(ScaleUp, {"latency_s": "2 us"})


def test_hints_reach_into_blocks_that_are_keyed_by_a_number_format():
    document = {"kernels": {"gemm": {"bf16": {"efficency": 0.5}, "bf17": {}}}}
    with pytest.raises(InputError) as raised:
        validated(HardwareProfile, document)
    faults = {fault.path: fault.hint for fault in raised.value.faults}
    assert faults["kernels.gemm.bf16.efficency"].startswith("did you mean 'efficiency'")
    assert faults["kernels.gemm.bf17"].startswith("did you mean 'bf16'")


def test_a_moved_document_names_the_same_files(write, tmp_path):
    write("", "ours.yaml")
    pools = [{"profile": "ours.yaml", "gpus": 8}, {"profile": "h100-sxm-80gb"}]
    document = {
        "model": str(tmp_path / "m.json"),
        "cluster": {"pools": pools},
        "job": "absent.yaml",
    }
    new = moved(document, tmp_path, tmp_path / "elsewhere")
    assert new["cluster"]["pools"][0]["profile"] == "../ours.yaml"
    new["cluster"]["pools"][0]["profile"] = "ours.yaml"
    assert new == document
