"""Is a model of the hub found in the local cache, without a network?"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from simulator.cli import main
from simulator.importers.hub_models import cached_config, hub_cache_folder, is_hub_name

CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "vocab_size": 32000,
}


def snapshot(cache: Path, revision: str, layers: int) -> Path:
    """A snapshot as the hub's client leaves it, of a model of Acme."""
    folder = cache / "models--acme--tiny-1b" / "snapshots" / revision
    folder.mkdir(parents=True)
    file = folder / "config.json"
    file.write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
    return file


def main_is(cache: Path, revision: str) -> None:
    refs = cache / "models--acme--tiny-1b" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(f"{revision}\n")


def imported(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["import", "hf", *words])
    return (int(stopped.value.code or 0), *capsys.readouterr())


def test_the_revision_that_main_was_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot(tmp_path, "aaa", layers=3)
    snapshot(tmp_path, "bbb", layers=5)
    main_is(tmp_path, "aaa")
    code, out, err = imported(capsys, "acme/tiny-1b")
    document = yaml.safe_load(out)
    assert (code, document["model"]["name"], document["model"]["layers"]) == (0, "tiny-1b", 3)
    assert "snapshots/aaa/config.json" in err


def test_without_main_the_newest_revision_is_read(tmp_path):
    environment = {"HF_HOME": str(tmp_path)}
    old = snapshot(tmp_path / "hub", "aaa", layers=3)
    new = snapshot(tmp_path / "hub", "bbb", layers=5)
    os.utime(old, (1, 1))
    assert cached_config("acme/tiny-1b", environment) == new


def test_a_revision_whose_config_was_never_downloaded_is_passed_over(tmp_path):
    kept = snapshot(tmp_path, "aaa", layers=3)
    main_is(tmp_path, "ccc")
    assert cached_config("acme/tiny-1b", {"HF_HUB_CACHE": str(tmp_path)}) == kept


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
    ],
)
def test_the_cache_lies_where_the_hubs_client_looks(environment, folder):
    assert hub_cache_folder(environment) == Path(folder)


def test_a_model_that_ships_is_taken_where_the_cache_has_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    code, out, err = imported(capsys, "Qwen/Qwen3-8B")
    assert (code, yaml.safe_load(out)["model"]) == (0, "qwen3-8b")
    assert "the shipped model qwen3-8b" in err


def test_where_nobody_knows_the_model_the_file_to_get_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    code, _, err = imported(capsys, "acme/tiny-1b")
    assert code == 2
    assert "hf download acme/tiny-1b config.json" in err
    assert "https://huggingface.co/acme/tiny-1b/raw/main/config.json" in err


@pytest.mark.parametrize("text", ["config.json", "a/b/c", "../up", "/etc/passwd", "a/..", "x y/z"])
def test_what_is_a_path_is_no_name_of_the_hub(text):
    assert not is_hub_name(text)
