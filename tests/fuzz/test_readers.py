"""Ten thousand hostile texts, the same every time; ``make fuzz`` tries a million others."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzz.attempts import SOUND, attempt, little_memory
from tests.fuzz.readers import READERS, samples_of
from tests.fuzz.samples import Sample
from tests.fuzz.worker import text_of

CORPUS = Path(__file__).parent / "corpus"
TEXTS, SEED = 10_000, 0
SECONDS = 100.0
"""Of processor time for one text: ten times what ``make fuzz`` grants, on any machine."""
WHOLE = sum(reader.share for reader in READERS.values())


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def skip_without_library(reader):
    needs = READERS[reader].needs
    if needs == "torch":
        pytest.skip("torch takes longer to load than all texts to read")
    if needs and find_spec(needs.partition(".")[0]) is None:
        pytest.skip(f"needs {needs}")


@pytest.mark.parametrize("reader", READERS)
def test_a_hostile_text_is_read_or_refused_with_a_reason(reader):
    skip_without_library(reader)
    samples_of(reader)
    found = []
    with little_memory():
        for number in range(round(TEXTS * READERS[reader].share / WHOLE)):
            sample = text_of(SEED, reader, number)
            came_out = attempt(reader, sample, SECONDS)
            found += [] if came_out.outcome in SOUND else [(number, came_out)]
    assert not found


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=f"{p.parent.name}/{p.name}") for p in sorted(CORPUS.glob("*/*"))]
)
def test_what_once_broke_a_reader_is_read_or_refused(path):
    reader = path.parent.name
    skip_without_library(reader)
    samples_of(reader)
    with little_memory():
        came_out = attempt(reader, Sample(path.name, path.read_bytes()), SECONDS)
    assert came_out.outcome in SOUND, came_out.details
