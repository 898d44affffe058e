"""Fields of a job, and settings that importers ask for, with values that none should have.

Random changes of a file seldom reach what the file does not name, so here each is given, one at a
time; all values with ``-m slow``.
"""

from __future__ import annotations

from contextlib import suppress
from zlib import crc32

import pytest

from simulator.described.json_schemas import job_schema
from simulator.errors import InputError
from simulator.importers.assembly import Given
from simulator.importers.formats import FORMATS
from simulator.importers.settings import Settings
from tests.fuzz.readers import loaded_small, simulated
from tests.importers.samples import files_of_formats

GIVEN = Given(gpus=64, model="gpt2", seq_len=1024, global_batch=4608)
VALUES = (
    0, -1, 0.5, True, False, "", "many", "auto", "none", [], [1], [[1]], ["a", "b"], [None], {},
    {"a": 1}, 3, 2**31, 10**17, 10**400, 1e-300, 1e300, float("nan"), float("inf"), "0 GiB",
    "1e30 GB/s", "1e-300 s",
)  # fmt: skip
FILES: dict[str, list] = {}
for _path, _format in files_of_formats():
    FILES.setdefault(_format, []).append(_path)
SOME, ALL = 2, pytest.param(len(VALUES), marks=pytest.mark.slow)


def values_for(name, count):
    """So many of the values; which ones, the name says."""
    first = crc32(name.encode())
    return [VALUES[(first + 5 * number) % len(VALUES)] for number in range(count)]


@pytest.fixture
def settings(monkeypatch):
    """Settings that were asked for, and those that are told another value than their file's."""
    asked, told, plain = set(), {}, Settings.get

    def get(self, key):
        asked.add(key)
        return told[key] if key in told else plain(self, key)

    monkeypatch.setattr(Settings, "get", get)
    return asked, told


@pytest.mark.parametrize("count", [SOME, ALL])
@pytest.mark.parametrize("name", FILES)
def test_no_value_of_a_setting_breaks_its_reader(name, settings, count):
    asked, told = settings
    tried = set()
    for path in FILES[name] if count > SOME else FILES[name][:1]:
        asked.clear()
        with suppress(InputError):
            FORMATS[name].read([path], GIVEN)
        for key in sorted(asked - tried):
            for value in values_for(f"{name} {key}", count):
                told[key] = value
                with suppress(InputError):
                    str(FORMATS[name].read([path], GIVEN)[1])
            del told[key]
        tried |= asked
    assert tried


def fields_of(node, kinds, path="", within=()):
    """Dotted paths of all fields that a JSON schema knows."""
    kind = node.get("$ref", "").rpartition("/")[2]
    if kind and kind not in within:
        yield from fields_of(kinds[kind], kinds, path, (*within, kind))
    for choice in node.get("anyOf", ()):
        yield from fields_of(choice, kinds, path, within)
    for name, field in node.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        yield below
        yield from fields_of(field, kinds, below, within)


FIELDS = sorted(set(fields_of(job_schema(), job_schema()["$defs"])))
BLOCKS = sorted({path.partition(".")[0] for path in FIELDS})


@pytest.mark.parametrize("count", [1, ALL])
@pytest.mark.parametrize("block", BLOCKS)
def test_no_value_of_a_field_breaks_a_job(block, count):
    for path in FIELDS:
        if path.partition(".")[0] == block:
            for value in values_for(path, count):
                with suppress(InputError):  # refused late is an exception of its own
                    simulated(loaded_small({path: value}))
