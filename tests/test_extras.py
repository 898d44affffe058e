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
    alone = [each for each in wanted if library == "scipy.optimize" and "scipy" in each]
    assert re.findall(r"'([^']+)'", hint) == (alone or wanted)


def test_a_fit_asks_for_scipy_alone_and_not_for_torch(monkeypatch):
    listed = ['scipy>=1.11; extra == "calibrate"', 'torch>=2.3; extra == "calibrate"']
    monkeypatch.setattr("importlib.metadata.requires", lambda name: listed)
    hint = hint_without("scipy.optimize", monkeypatch)
    assert hint == "install it: pip install 'scipy>=1.11'"


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
