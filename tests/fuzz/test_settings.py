"""Every setting that an importer asks for, with a value that no file should give it.

Random changes of a file seldom reach a setting that the file does not have, so here each that a
reader asks for is given, one at a time.
"""

from __future__ import annotations

from contextlib import suppress
from zlib import crc32

import pytest

from simulator.errors import InputError
from simulator.importers.assembly import Given
from simulator.importers.formats import FORMATS
from simulator.importers.settings import Settings
from tests.importers.samples import files_of_formats

GIVEN = Given(gpus=64, model="gpt2", seq_len=1024, global_batch=4608)
VALUES = (
    0, -1, 0.5, True, False, "", "many", "auto", "none", [], [1], [[1]], ["a", "b"], [None], {},
    {"a": 1}, 2**31, 10**17, 10**400, float("nan"), float("inf"),
)  # fmt: skip
FILES: dict[str, list] = {}
for _path, _format in files_of_formats():
    FILES.setdefault(_format, []).append(_path)


@pytest.fixture
def settings(monkeypatch):
    """Settings that were asked for, and those that are told another value than their file's."""
    asked, told, plain = set(), {}, Settings.get

    def get(self, key):
        asked.add(key)
        return told[key] if key in told else plain(self, key)

    monkeypatch.setattr(Settings, "get", get)
    return asked, told


@pytest.mark.parametrize(
    ("num_files", "num_values"),
    [(1, 2), pytest.param(100, len(VALUES), marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", FILES)
def test_no_value_of_a_setting_breaks_its_reader(name, settings, num_files, num_values):
    asked, told = settings
    tried = set()
    for path in FILES[name][:num_files]:
        asked.clear()
        with suppress(InputError):
            FORMATS[name].read([path], GIVEN)
        for key in sorted(asked - tried):
            first = crc32(f"{name} {key}".encode())
            for value in (VALUES[(first + 5 * n) % len(VALUES)] for n in range(num_values)):
                told[key] = value
                with suppress(InputError):
                    str(FORMATS[name].read([path], GIVEN)[1])
            del told[key]
        tried |= asked
    assert tried
