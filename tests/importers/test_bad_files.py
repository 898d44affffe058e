"""Files of frameworks that are no such files: clear errors."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.files import MAX_FILE_BYTES
from simulator.importers.assembly import Given
from simulator.importers.formats import FORMATS

ENDINGS = {"megatron": "sh", "deepspeed": "json", "torchtitan": "toml", "ms-swift": "sh",
           "xtuner": "py"}  # fmt: skip
READERS = {
    f"{name}.{ENDINGS.get(name, 'yaml')}": (lambda path, given, form=form: form.read([path], given))
    for name, form in FORMATS.items()
}
BAD = {
    "empty": b"",
    "binary": bytes(range(256)),
    "foreign": b"<html><body>not found</body></html>",
    "truncated": b'{"zero_optimization": {"stage": 3, "x": "',
    "list": b"[1, 2, 3]",
    "deep json": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "deep brackets": b"[" * 20000,
    "python object": b"!!python/object/apply:os.system ['touch mark']",
    "aliases": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9))
               for i in range(12)),
    "doubling": b"X=xxxxxxxxxxxxxxxx\n" + b"X=$X$X$X$X\n" * 40,
    "open quote": b'torchrun pretrain_gpt.py --num-layers "12',
    "huge": b"a" * (MAX_FILE_BYTES + 1),
    "huge number": b"--num-layers " + b"9" * 5000,
}  # fmt: skip


@pytest.mark.parametrize("ending", READERS)
@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_clear_errors(tmp_path, kind, ending):
    path = tmp_path / f"bad.{ending}"
    path.write_bytes(BAD[kind])
    with pytest.raises(InputError, match=r"bad\."):
        READERS[ending](path, Given(model="gpt2", gpus=8, seq_len=1024, global_batch=8))
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("ending", READERS)
def test_a_missing_file_is_a_clear_error(tmp_path, ending):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        READERS[ending](tmp_path / f"none.{ending}", Given())
