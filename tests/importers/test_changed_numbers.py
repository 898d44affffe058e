"""A number in a settings file may be anything: the file is read, or refused with a reason."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.importers.assembly import Given
from simulator.importers.formats import FORMATS

HERE = Path(__file__).parent
FORMAT_OF = {
    "megatron": "megatron", "launch": "megatron", "deepspeed": "deepspeed", "ds": "deepspeed",
    "titan": "torchtitan", "llama3": "torchtitan", "accelerate": "accelerate",
    "nemo": "nemo", "bridge": "nemo", "axolotl": "axolotl", "foundry": "llm-foundry",
    "llamafactory": "llamafactory", "maxtext": "maxtext", "nanotron": "nanotron",
    "neox": "gpt-neox", "primus": "primus", "swift": "ms-swift", "torchtune": "torchtune",
    "xtuner": "xtuner",
}  # fmt: skip
"""Which format a sample file has, by how its name begins."""
GIVEN = Given(gpus=64)
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")
UNUSUAL = ("0", "-1", "1", "3", "99999999999", "1e30", "0.5", "true", "null", '"many"', "[]")
CHANGES_PER_FILE = 6


def samples() -> Iterator[tuple[Path, str]]:
    for folder in ("files", "public", "recipes"):
        for path in sorted((HERE / folder).iterdir()):
            name = FORMAT_OF.get(re.split(r"[_.0-9]", path.name)[0] or path.name)
            name = name or FORMAT_OF.get(path.name.split("_")[0])
            if path.is_file() and name:
                yield path, name


def changed_texts(path: Path, count: int) -> Iterator[str]:
    """Texts of a file in which one number each is something else."""
    text = path.read_text(encoding="utf-8")
    places = list(NUMBER.finditer(text))
    draw = random.Random(path.name)
    for _ in range(count if places else 0):
        place = draw.choice(places)
        yield text[: place.start()] + draw.choice(UNUSUAL) + text[place.end() :]


@pytest.mark.parametrize(("path", "name"), [pytest.param(*s, id=s[0].name) for s in samples()])
def test_a_file_with_an_unusual_number_is_read_or_refused(path, name, tmp_path):
    changed = tmp_path / path.name
    for text in changed_texts(path, CHANGES_PER_FILE):
        changed.write_text(text, encoding="utf-8")
        with suppress(InputError):
            FORMATS[name].read([changed], GIVEN)


@pytest.mark.parametrize(
    "degree", ["tensor", "pipeline", "context", "expert", "data_parallel_replicate"]
)
def test_no_degree_of_torchtitan_is_zero(tmp_path, degree):
    config = tmp_path / "titan.toml"
    kind = degree if "data" in degree else f"{degree}_parallel"
    config.write_text(
        f'[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\n{kind}_degree = 0\n'
    )
    with pytest.raises(InputError, match="_degree = 0: must be at least 1"):
        FORMATS["torchtitan"].read([config], GIVEN)
