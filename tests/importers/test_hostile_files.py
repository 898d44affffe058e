"""Files that are broken, foreign, or made to hurt: clear errors, little memory, nothing run."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from simulator.described.huggingface.config_file import read_huggingface_config
from simulator.errors import InputError
from simulator.files import MAX_FILE_BYTES
from simulator.importers.assembly import Given
from simulator.importers.deepspeed import read_deepspeed_config
from simulator.importers.finetuning.accelerate import read_accelerate_files
from simulator.importers.megatron.launch_line import read_megatron_script
from simulator.importers.megatron.nemo import read_nemo_recipe
from simulator.importers.nccl_tests.nccl_tests_output import MAX_OUTPUT_BYTES, read_nccl_tests
from simulator.importers.node_topology import read_topology_matrix
from simulator.importers.torchtitan import read_torchtitan_config

GIVEN = Given(model="gpt2", gpus=8, seq_len=1024, global_batch=8)
MEGABYTES = 100 * 2**20
"""More than any of these files may take."""

READERS: dict[str, Callable[[Path], Any]] = {
    "script.sh": lambda path: read_megatron_script(path, GIVEN),
    "deepspeed.json": lambda path: read_deepspeed_config(path, GIVEN),
    "titan.toml": lambda path: read_torchtitan_config(path, GIVEN),
    "titan.json": lambda path: read_torchtitan_config(path, GIVEN),
    "titan.py": lambda path: read_torchtitan_config(path, GIVEN),
    "accelerate.yaml": lambda path: read_accelerate_files([path], GIVEN),
    "recipe.yaml": lambda path: read_nemo_recipe(path, GIVEN),
    "config.json": read_huggingface_config,
    "topology.txt": read_topology_matrix,
    "nccl.txt": read_nccl_tests,
}

FILES: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 10,
    "an archive": b"PK\x03\x04" + bytes(1000),
    "a web page": b"<!doctype html><html><body>404</body></html>",
    "truncated": b'{"zero_optimization": {"stage": 3, "x": "',
    "a list": b"[1, 2, 3]",
    "deep mappings": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "deep lists": b'{"a": ' + b"[" * 20000 + b"]" * 20000 + b"}",
    "a python object": b"!!python/object/apply:os.system ['touch mark']\n",
    "aliases": b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(9)
    ),
    "merge keys": b"a: &a {x: 1}\nb: &b {<<: *a}\n",
    "a key twice": b'{"zero_optimization": {"stage": 1}, "zero_optimization": {"stage": 3}}',
    "a huge number": b'{"train_batch_size": ' + b"9" * 6000 + b"}",
    "a long key": b'{"' + b"a" * 200_000 + b'": 1}',
    "a long word": b"--num-layers" + b">" * 30_000,
    "many settings": b"{" + b", ".join(b'"k%d": 1' % i for i in range(5000)) + b"}",
    "doubling": b"X=xxxxxxxxxxxxxxxx\n" + b"X=$X$X$X$X\n" * 40,
    "many long values": b"X=" + b"x" * 1000 + b"\n" + b"X=$X$X\n" * 7
    + b"".join(b"V%d=$X\n" % i for i in range(5000)),
    "many words": b"a " * 30_000,
    "open references": b'X="' + b"${a " * 5_000 + b'"\n',
    "nested references": b'X="' + b"${a:-" * 2000 + b"}" * 2000 + b'"\n',
    "nested conditions": b"if [ a ] " + b"|| [ a ] " * 5000 + b"; then\nfi\n",
    "nested cases": b"case x in " + b"x) case x in " * 300,
    "a document without an end": b"cat <<EOT > f\n" + b"line\n" * 20_000,
    "special numbers": b'{"gradient_clipping": NaN, "train_batch_size": Infinity}',
    "huge": b"a" * (MAX_OUTPUT_BYTES + 1),
}  # fmt: skip


GROWING = ("aliases", "doubling", "many long values", "huge")
"""Files that would fill the memory, if one let them."""


@contextmanager
def little_memory(kind: str) -> Iterator[None]:
    """Fails if more than a hundred megabytes are allocated at a time; measuring is slow."""
    if kind not in GROWING:
        yield
        return
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
        assert peak < MEGABYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", FILES)
def test_a_hostile_file_is_a_clear_error(tmp_path, monkeypatch, kind, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.write_bytes(FILES[kind])
    with little_memory(kind), pytest.raises(InputError, match=name.partition(".")[0]) as caught:
        READERS[name](path)
    assert len(str(caught.value)) < 100_000
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_a_clear_error(tmp_path, name):
    for path in (tmp_path / name, Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match=r"cannot be read|more than|no such"):
            READERS[name](path)


def test_the_limit_leaves_room_for_every_real_file():
    largest = max(path.stat().st_size for path in (Path(__file__).parent).rglob("*.*"))
    assert largest * 10 < MAX_FILE_BYTES
