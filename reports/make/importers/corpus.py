"""Which settings files are read: those of packages of the index, and ours?

A package is unpacked to a folder of its name (``pip download --no-deps PACKAGE; unzip``). Of a
format with many files, evenly spaced ones are taken, so that no format outweighs the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simulator.errors import InputError
from simulator.importers.python_source.evaluation import function_names

MOST_FILES = 60
"""Of one format."""
OURS = Path("tests/importers")


@dataclass(frozen=True)
class Source:
    """Where settings files of a format lie.

    Attributes:
        form: The format.
        folder: A package's folder, or one of ours.
        pattern: Files in it, as ``Path.glob`` has it.
        functions: Names of the functions in them, as a regular expression; empty for whole files.
    """

    form: str
    folder: str
    pattern: str
    functions: str = ""


PACKAGES = (
    Source("torchtune", "torchtune", "recipes/configs/*/*.yaml"),
    Source("xtuner", "xtuner", "xtuner/configs/*/*/*_e[0-9]*.py"),
    Source("maxtext", "maxtext", "maxtext/configs/gpu/**/*.yml"),
    Source("maxtext", "maxtext", "maxtext/configs/models/*.yml"),
    Source("torchtitan", "torchtitan", "torchtitan/models/*/config_registry.py", r"\w+"),
    Source("nemo", "nemo_toolkit", "nemo/collections/llm/recipes/*.py", "pretrain_recipe"),
    Source("nemo", "megatron_bridge", "megatron/bridge/recipes/*/*.py", r"\w*pretrain\w*config"),
)
PUBLIC = (
    Source("megatron", "public", "megatron*.sh"),
    Source("megatron", "files", "*.sh"),
    Source("deepspeed", "public", "deepspeed*.json"),
    Source("torchtitan", "public", "titan*"),
    Source("accelerate", "public", "accelerate*.yaml"),
    Source("nemo", "public", "nemo*.yaml"),
    Source("nemo", "public", "bridge*.yaml"),
    Source("axolotl", "recipes", "axolotl*.yaml"),
    Source("llamafactory", "recipes", "llamafactory*.yaml"),
    Source("ms-swift", "recipes", "swift*.sh"),
    Source("nanotron", "recipes", "nanotron*.yaml"),
    Source("gpt-neox", "recipes", "neox_*b.yml"),
    Source("llm-foundry", "recipes", "foundry*.yaml"),
    Source("primus", "recipes", "primus*.yaml"),
    Source("maxtext", "recipes", "maxtext*"),
    Source("torchtune", "recipes", "torchtune*.yaml"),
    Source("automodel", "recipes", "automodel*.yaml"),
    Source("xtuner", "recipes", "xtuner*.py"),
    Source("megatron", "recipes", "megatron*.sh"),
    Source("deepspeed", "recipes", "deepspeed*.json"),
    Source("accelerate", "recipes", "accelerate*.yaml"),
    Source("torchtitan", "recipes", "titan*.toml"),
    Source("nemo", "recipes", "nemo*.yaml"),
)
_NO_RECIPES = re.compile(r"(^|/)(__init__|common|utils|run_plugins)\.py|_default\.py")


def settings_files(packages: Path) -> dict[str, list[str]]:
    """Files by format, each as ``clustersim import`` takes it.

    Args:
        packages: Folder of the unpacked packages.
    """
    found: dict[str, list[str]] = {}
    for source in PACKAGES:
        files = [file for folder in sorted(packages.glob(f"{source.folder}*"))
                 for file in _files(folder, source)]  # fmt: skip
        found.setdefault(source.form, []).extend(files)
    found = {form: _spaced(files, MOST_FILES) for form, files in found.items()}
    for source in PUBLIC:
        found.setdefault(source.form, []).extend(_files(OURS / source.folder, source))
    return found


def _files(folder: Path, source: Source) -> Iterator[str]:
    for file in sorted(folder.glob(source.pattern)):
        if not source.functions:
            yield str(file)
        elif not _NO_RECIPES.search(str(file)):
            try:
                names = function_names(file)
            except InputError:
                continue
            yield from (f"{file}:{n}" for n in names if re.fullmatch(source.functions, n))


def _spaced(files: list[str], most: int) -> list[str]:
    step = max(1.0, len(files) / most)
    return [files[int(i * step)] for i in range(min(most, len(files)))]
