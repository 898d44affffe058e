"""Can pages, help and messages be read aloud, and are their terms explained?"""

from __future__ import annotations

import re

import pytest

from tests.command_reference import COMMANDS_PAGE, commands
from tests.models_and_systems import MODELS_PAGE
from tests.pages import PAGES, ROOT
from tests.readability import (
    MOST_WORDS,
    abbreviations,
    glossary_terms,
    long_sentences,
    printed_texts,
    prose,
    sentences,
    unusual_words,
    words,
)
from tests.reference import API_PAGE, FIELDS_PAGE, SERVING_FIELDS_PAGE, STACKS_PAGE

GLOSSARY = ROOT / "docs" / "glossary.md"
GENERATED = {
    API_PAGE, COMMANDS_PAGE, FIELDS_PAGE, MODELS_PAGE, SERVING_FIELDS_PAGE, STACKS_PAGE,
}  # fmt: skip
"""Tables of evidence and docstrings, whose words are checked where they are written."""
WRITTEN = [page for page in PAGES if page not in GENERATED]
EVERYDAY = {"AI", "API", "CPU", "GPU", "README", "MIT", "SI", "GB", "MB", "MiB", "GiB"}
"""Words and units that every reader of these pages knows."""
FORMATS = {"CSV", "JSON", "JSONL", "YAML", "TOML", "HTML"}
NAMES = {
    "MPT",
    "NVIDIA",
    "RTX",
    "GPT",
    "LM",
    "NeoX",
    "LLaMA",
    "PaLM",
    "TensorRT",
    "SWIFT",
    "DeepEP",
    "DJL",
    "TRL",
    "LLaVA",
    "ViT",
}
"""Names of makers, products, models and frameworks; their letters explain nothing."""
PRINTED_NAMES = {
    "AdamW", "ConnectX", "DAPPLE", "DGX", "HIP", "MPI", "SOAP", "ScheduleDualPipeV", "SuperNIC",
}  # fmt: skip
"""More names, of products and of others' code, which messages quote."""
UNITS = {"KiB", "MiB", "TB", "TFLOP", "PFLOP", "USD", "MUSD"}
PLACEHOLDERS = {
    "CONFIG", "DP", "EP", "FIELD", "FILE", "FUNCTION", "HOST", "JOB", "NAME", "RANK", "TABLE",
    "PORT", "TIME", "TRAIN", "VALUE", "DIR", "DAYS", "LINE", "NUMBER",
}  # fmt: skip
"""What the user puts something else for, as in ``--out FILE``."""
QUOTED = {"OFF", "DtoD", "DtoH", "HtoD", "PtoP", "PIX", "PXB", "NUMA", "UTF", "END", "REPORT"}
"""What files of other programs are made of, quoted as it stands there."""
MODULES = sorted((ROOT / "simulator").rglob("*.py"))
ROOMS = sorted({path.relative_to(ROOT / "simulator").parts[0] for path in MODULES})


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_no_sentence_of_a_page_is_longer_than_35_words(page):
    assert MOST_WORDS == 35
    assert long_sentences(page.read_text(encoding="utf-8")) == []


def test_every_abbreviation_on_a_page_is_in_the_glossary():
    explained = set(glossary_terms(GLOSSARY)) | EVERYDAY | FORMATS | NAMES
    for term in glossary_terms(GLOSSARY):
        explained.update(re.findall(r"\w+", term))
    unknown = {
        page.name: missing
        for page in WRITTEN
        if (missing := abbreviations(page.read_text(encoding="utf-8")) - explained)
    }
    assert unknown == {}


def test_every_term_of_the_glossary_is_used_on_another_page():
    others = [page.read_text(encoding="utf-8") for page in PAGES if page != GLOSSARY]
    text = "\n".join(others).lower()
    terms = glossary_terms(GLOSSARY)
    assert len(terms) > 100
    assert [t for t in terms if not re.search(rf"\b{re.escape(t.lower())}", text)] == []


def test_no_term_has_two_entries():
    terms = glossary_terms(GLOSSARY)
    assert sorted({t for t in terms if terms.count(t) > 1}) == []


@pytest.fixture(scope="module")
def printed() -> dict[str, list[tuple[str, str]]]:
    """Place and text of what the modules of each room may print, and the help of commands."""
    found: dict[str, list[tuple[str, str]]] = {room: [] for room in ROOMS}
    for path in MODULES:
        name = path.relative_to(ROOT / "simulator")
        texts = printed_texts(path.read_text(encoding="utf-8"))
        found[name.parts[0]] += [(f"{name}:{line}", text) for line, text in texts]
    found["cli"] += [(name, str(command.help)) for name, command in commands()]
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_no_sentence_that_is_printed_is_longer_than_35_words(printed, room):
    long = [(place, long_sentences(text)) for place, text in printed[room]]
    assert [each for each in long if each[1]] == []


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_printed_uses_the_standard_words(printed, room):
    unusual = [(place, unusual_words(text)) for place, text in printed[room]]
    assert [each for each in unusual if each[1]] == []


def test_every_abbreviation_that_is_printed_is_explained_or_a_name(printed):
    known = {term for entry in glossary_terms(GLOSSARY) for term in re.findall(r"\w+", entry)}
    known |= EVERYDAY | FORMATS | NAMES | PRINTED_NAMES | UNITS | PLACEHOLDERS | QUOTED
    unknown = [
        (place, missing)
        for texts in printed.values()
        for place, text in texts
        if (missing := abbreviations(text) - known)
    ]
    assert unknown == []


def test_printed_texts_are_the_literals_with_computed_parts_as_one_word():
    source = '''"""A module."""
rule = f"must divide {kv_heads} heads " "of the model"
key, pattern = "ascii", r"(?i)two words"
'''
    assert [text for _, text in printed_texts(source)] == ["must divide x heads of the model"]


def test_an_unusual_word_is_named_with_its_standard_one():
    assert unusual_words("is no JSON") == ["is no -> is not a"]
    assert unusual_words("there is no fabric") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two? Three!\n", ["One.", "Two?", "Three!"]),
        ("It takes 1.5 s on 8.0 GPUs.\n", ["It takes 1.5 s on 8.0 GPUs."]),
        ("A file, e.g. this one.\n", ["A file, e.g. this one."]),
        ("wrapped\nline\n\nanother\n", ["wrapped line", "another"]),
        ("- first\n  goes on\n- second\n", ["first goes on", "second"]),
        ("| a | b |\n|---|---:|\n| c. d | e |\n", ["a", "b", "c.", "d", "e"]),
        ("Before:\n\n```console\n$ code. Code.\n```\n\nAfter.\n", ["Before:", "After."]),
        ("See [the page](x.md#y) and `a b. c`.\n", ["See the page and CODE."]),
        ("## Title\nText.\n", ["Title", "Text."]),
    ],
)
def test_a_page_is_split_into_the_sentences_that_a_reader_sees(text, expected):
    assert list(sentences(text)) == expected


def test_the_limit_counts_words_and_not_numbers_or_signs():
    assert words("On 8 x H100 - or 16 - it fits.") == 6
    limit = " ".join(["word"] * MOST_WORDS)
    assert long_sentences(f"{limit}.\n") == []
    assert len(long_sentences(f"{limit} more.\n")) == 1


def test_abbreviations_are_found_in_prose_alone():
    text = "MFU of two GPUs, in ZeRO; `HFU` and A100 are none.\n\n```sh\nXYZ\n```\n"
    assert abbreviations(text) == {"MFU", "GPU", "ZeRO"}
    assert list(prose("<!-- DDP -->\n")) == []
