"""Does a missing library say what to install, in words that pip can follow?"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from simulator import extras
from simulator.capture.make import capture_script
from simulator.errors import InputError

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))


def hint_without(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(InputError) as caught:
        extras.require(library, "draws")
    return caught.value.faults[0].hint


@pytest.mark.parametrize("library", extras._EXTRA_OF)
def test_every_library_of_an_extra_is_one_that_the_hint_installs(library, monkeypatch):
    wanted = PYPROJECT["project"]["optional-dependencies"][extras._EXTRA_OF[library]]
    listed = [f'{each}; extra == "{extras._EXTRA_OF[library]}"' for each in wanted]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ["numpy>=1.26", *listed])
    hint = hint_without(library, monkeypatch)
    assert re.findall(r"'([^']+)'", hint) == wanted


def test_a_clone_that_is_not_installed_is_installed_from_its_folder(monkeypatch):
    def not_installed(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", not_installed)
    assert "pip install '.[studio]' in a clone" in hint_without("starlette", monkeypatch)


def test_a_capture_without_torch_is_refused_before_a_rank_is_started(tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="torch: runs the script, and is not installed"):
        capture_script(script, [], world=8)
