"""Is Megatron-Core's layout string read as it is documented, and are its faults located?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.described.plan.layout_text import layers_per_stage, parse_layout
from simulator.errors import InputError, UnsupportedError

COUNTS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def fault(text: str):
    with pytest.raises(InputError) as raised:
        parse_layout(text)
    (found,) = raised.value.faults
    assert found.path == "plan.layout"
    assert found.value == text
    assert found.rule
    return found


@given(COUNTS)
def test_stages_written_letter_by_letter_are_read_back(counts):
    text = "|".join("t" * count for count in counts)
    assert layers_per_stage(f"E{text}L") == tuple(counts)


@given(st.integers(1, 9), st.integers(1, 9))
def test_a_group_is_repeated_with_the_repetitions_in_it(layers, stages):
    assert parse_layout(f"E|(t*{layers}|)*{stages}L") == ("E", *["t" * layers] * stages, "L")


@given(COUNTS, st.data())
def test_commas_between_letters_mean_nothing(counts, data):
    letters = ["E", *"|".join("t" * count for count in counts), "L"]
    with_commas = "".join(letter + "," * data.draw(st.integers(0, 2)) for letter in letters)
    assert parse_layout(with_commas) == parse_layout("".join(letters))


def test_a_bar_can_be_repeated_and_leaves_empty_stages():
    assert parse_layout("Et|*3tL") == ("Et", "", "", "tL")


def test_the_stages_of_the_user_guide_are_counted():
    """32 stages for PP16 and VPP2, with the modules moved to the loss."""
    stages = parse_layout("Et*3|(tt|)*29|mL")
    assert len(stages) == 32
    assert stages[:2] == ("Ettt", "tt")
    assert stages[-2:] == ("", "mL")
    assert sum(layers_per_stage("Et*3|(tt|)*29|mL")) == 61


def test_a_module_apart_from_the_loss_is_refused_as_not_simulated():
    with pytest.raises(UnsupportedError, match="modules"):
        parse_layout("Et*3|(tt|)*29,m|L")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Et|xtL", "'x' at position 4"),
        ("Et|TL", "'T' at position 4"),
        ("Et| tL", "' ' at position 4"),
        ("E(tt|)*2,(t?|)*2L", "'?' at position 12"),
        ("*3EtL", "* at position 1"),
        ("Et*L", "* at position 3"),
        ("Et*0L", "* at position 3"),
        ("Et**2L", "* at position 3"),
        ("E(tt|)L", "( at position 2"),
        ("E(t(t|)*2)*2L", "( at position 2"),
        ("Et)*2L", ") at position 3"),
        ("tEtL", "E at position 2 comes after the t at position 1"),
        ("EtLt", "t at position 4 comes after the L at position 3"),
        ("EmtL", "t at position 3 comes after the m at position 2"),
        ("|EttL", "first stage must hold E"),
        ("EttL|", "last stage must hold L"),
        ("tt|tL", "one E (embedding), not 0"),
        ("EE|tL", "one E (embedding), not 2"),
        ("Et|t", "one L (loss), not 0"),
        ("", "one E (embedding), not 0"),
        ("Et*99999L", "more than 10000"),
        ("E(t*9999|)*9999L", "more than 10000"),
        ("Et*" + "9" * 5000 + "L", "more than 10000"),
    ],
)
def test_a_fault_is_named_with_its_position(text, words):
    assert words in str(fault(text).rule)
