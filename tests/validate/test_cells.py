"""What cells of tables say, in the spellings that people and spreadsheets use."""

from __future__ import annotations

import pytest

from simulator import cells
from simulator.errors import InputError


@pytest.mark.parametrize(
    ("said", "value"), [("8", 8), ("8.0", 8), (" 12 ", 12), ("1,024", 1024), ("51_200", 51200)]
)
def test_whole_numbers_are_read_as_spreadsheets_write_them(said, value):
    assert cells.whole({"gpus": said}, "gpus") == value


@pytest.mark.parametrize("said", ["", "-", "n/a", "unknown", "not stated", "None", " "])
def test_a_cell_that_says_nothing_is_empty(said):
    row = {"dp": said}
    assert cells.whole_if_stated(row, "dp") is None
    assert cells.number(row, "dp") is None
    assert cells.measured(row, "dp") is None


@pytest.mark.parametrize("said", ["many", "4.5", "1;2", "nan", "inf", "1,2"])
def test_what_is_no_whole_number_is_refused_with_its_column(said):
    with pytest.raises(InputError) as raised:
        cells.whole({"layers": said}, "layers")
    assert raised.value.faults[0].path == "layers"
    assert said in raised.value.faults[0].rule


@pytest.mark.parametrize("said", ["true", "True", "YES", "1", "1.0", "y", "on"])
def test_yes_is_true_in_every_spelling(said):
    assert cells.flag({"gated_mlp": said}, "gated_mlp") is True


@pytest.mark.parametrize("said", ["false", "No", "0", "n", "off", "none"])
def test_no_is_false_in_every_spelling(said):
    assert cells.flag({"gated_mlp": said}, "gated_mlp") is False


def test_an_empty_flag_says_neither_and_another_word_is_refused():
    assert cells.flag({"gated_mlp": ""}, "gated_mlp") is None
    with pytest.raises(InputError, match="must be true or false, not 'perhaps'"):
        cells.flag({"gated_mlp": "perhaps"}, "gated_mlp")


@pytest.mark.parametrize(("said", "tokens"), [("128k", 131072), ("8K", 8192), ("4096.0", 4096)])
def test_lengths_in_thousands_of_tokens_are_powers_of_two(said, tokens):
    assert cells.tokens({"seq_len": said}, "seq_len") == tokens


@pytest.mark.parametrize(
    ("said", "size"), [("1024", 1024), ("1e9", 1e9), ("16M", 2**24), ("16 GiB", 2**34), ("8 B", 8)]
)
def test_sizes_are_those_of_nccl_tests(said, size):
    assert cells.size_bytes({"bytes": said}, "bytes") == size


@pytest.mark.parametrize("said", ["0", "-1", "nan", "slow"])
def test_what_was_measured_is_positive(said):
    with pytest.raises(InputError, match="must be a positive number"):
        cells.measured({"measured_step_s": said}, "measured_step_s")


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("48", 48.0), ("48 s", 48.0), ("350ms", 0.35), ("1,024", 1024.0), ("-", None)],
)
def test_a_measured_cell_may_state_its_unit(said, seconds):
    assert cells.measured_si({"t": said}, "t", "s", "s") == seconds
    if seconds is not None:
        assert cells.measured_si({"m": "3"}, "m", "GiB", "bytes") == 3 * 2**30


@pytest.mark.parametrize("said", ["48 parsecs", "0 s", "-3", "inf", "fast"])
def test_a_measured_cell_of_no_such_unit_is_refused(said):
    with pytest.raises(InputError, match="t: "):
        cells.measured_si({"t": said}, "t", "s", "s")
