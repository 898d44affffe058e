"""How does a capture lie in a file?

A zip archive, which any tool opens. ``capture.json`` says what was captured; each rank has a
folder with one ``.npy`` array per column and a ``names.json`` with its distinct calls, exchanges
and module paths. Reading allocates no more than the file's stated sizes, which are checked
first, and runs nothing. The format is written down in ``docs/capture.md``.
"""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.capture.table import COLUMNS, Call, Capture, Exchange, RankTable, Tensor
from simulator.errors import InputError
from simulator.files import is_there, whole_file

VERSION = 1
"""Raised whenever a file's meaning changes."""
HEADER = "capture.json"
_MOST_BYTES = 1 << 30
"""Unpacked size beyond which a file is not read: a step of millions of operators is smaller."""
_SAID_OF_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, KeyError, IndexError,
    ValueError, TypeError, AttributeError, OverflowError, RuntimeError,
)  # fmt: skip
"""What libraries raise where bytes of an archive, or what they unpack to, are not as they were."""
_TYPES = (np.int8, np.int16, np.int32, np.int64)


def is_capture(path: str | Path) -> bool:
    """Whether a file is a capture; False where there is none."""
    if not is_there(Path(path)) or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return HEADER in archive.namelist()


def write_capture(capture: Capture, path: str | Path) -> None:
    """Write a capture; the file appears when it is complete."""
    header = {
        "format": "clustersim-capture",
        "version": VERSION,
        "script": capture.script,
        "world": capture.world,
        "device": capture.device,
        "tokens_per_rank": capture.tokens_per_rank,
        "groups": [_range(group) for group in capture.groups],
        "ranks": [table.rank for table in capture.tables],
        "versions": dict(capture.versions),
        "notes": list(capture.notes),
    }
    with (
        whole_file(Path(path)) as draft,
        zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive,
    ):
        _store(archive, HEADER, json.dumps(header, indent=1))
        for table in capture.tables:
            _write_rank(archive, table)


def _range(group: tuple[int, ...]) -> list[int]:
    """Ranks at even distances as first, end, step; others one by one behind a 0."""
    if len(group) > 2:
        step = group[1] - group[0]
        if step > 0 and group == tuple(range(group[0], group[-1] + 1, step)):
            return [1, group[0], group[-1] + 1, step]
    return [0, *group]


def _ranks(stored: list[int]) -> tuple[int, ...]:
    return tuple(range(*stored[1:])) if stored[0] else tuple(stored[1:])


def _write_rank(archive: zipfile.ZipFile, table: RankTable) -> None:
    folder = f"rank{table.rank}"
    names = {
        "calls": [[c.name, c.inputs, c.outputs, *c[3:]] for c in table.calls],
        "exchanges": list(table.exchanges),
        "paths": table.paths,
    }
    _store(archive, f"{folder}/names.json", json.dumps(names, separators=(",", ":")))
    for name in COLUMNS:
        column = getattr(table, name)
        stored = io.BytesIO()
        np.save(stored, column.astype(_least_type(column)), allow_pickle=False)
        _store(archive, f"{folder}/{name}.npy", stored.getvalue())


def _store(archive: zipfile.ZipFile, name: str, content: str | bytes) -> None:
    """Add a file without the time of day, so that equal captures have equal bytes."""
    archive.writestr(zipfile.ZipInfo(name), content, archive.compression, archive.compresslevel)


def _least_type(column: Any) -> type[np.signedinteger[Any]]:
    low, high = (int(column.min()), int(column.max())) if column.size else (0, 0)
    fits = (t for t in _TYPES if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
    return next(fits)


def read_capture(path: str | Path) -> Capture:
    """The capture in a file.

    Raises:
        InputError: It is none, is damaged, or is of another version.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive, str(path))
    except _SAID_OF_DAMAGE as error:
        raise _damaged(path, f"is not a capture, or a damaged one ({error})") from error


def _damaged(path: str | Path, rule: str) -> InputError:
    hint = "make it again: clustersim capture TRAIN.py --world N --out FILE"
    return InputError.single("", rule, hint=hint, file=str(path))


def _read(archive: zipfile.ZipFile, path: str) -> Capture:
    stored = archive.infolist()
    if sum(info.file_size for info in stored) > _MOST_BYTES:
        raise _damaged(path, f"is larger than {_MOST_BYTES} bytes when unpacked")
    if sum(info.compress_size for info in stored) > Path(path).stat().st_size:
        raise _damaged(path, "is damaged: its parts are larger than it is")
    header = json.loads(archive.read(HEADER))
    if header["format"] != "clustersim-capture" or header["version"] != VERSION:
        rule = f"has version {header['version']} of the format; this program reads {VERSION}"
        raise _damaged(path, rule)
    groups = tuple(map(_ranks, header["groups"]))
    return Capture(
        script=str(header["script"]),
        world=int(header["world"]),
        device=str(header["device"]),
        tokens_per_rank=int(header["tokens_per_rank"]),
        groups=groups,
        tables=tuple(_read_rank(archive, int(rank), len(groups)) for rank in header["ranks"]),
        versions=dict(header["versions"]),
        notes=tuple(header["notes"]),
    )


def _read_rank(archive: zipfile.ZipFile, rank: int, groups: int) -> RankTable:
    names = json.loads(archive.read(f"rank{rank}/names.json"))
    columns = {name: _read_column(archive, f"rank{rank}/{name}.npy") for name in COLUMNS}
    table = RankTable(
        rank=rank,
        calls=tuple(map(_call, names["calls"])),
        exchanges=tuple(Exchange(*each) for each in names["exchanges"]),
        paths=tuple(map(str, names["paths"])),
        **columns,
    )
    _check(table, groups)
    return replace(table)


def _call(stored: list[Any]) -> Call:
    name, inputs, outputs, settings, *sizes = stored
    return Call(str(name), _tensors(inputs), _tensors(outputs), tuple(settings), *map(int, sizes))


def _tensors(stored: list[Any]) -> tuple[Tensor, ...]:
    return tuple(Tensor(str(dtype), tuple(map(int, shape))) for dtype, shape in stored)


def _read_column(archive: zipfile.ZipFile, name: str) -> Any:
    stored = io.BytesIO(archive.read(name))
    version = np.lib.format.read_magic(stored)
    shape, _, dtype = np.lib.format.read_array_header_1_0(stored)
    if version != (1, 0) or dtype.kind != "i" or math.prod(shape) * dtype.itemsize > _MOST_BYTES:
        raise ValueError(f"{name} is not a column of whole numbers")
    stored.seek(0)
    return np.load(stored, allow_pickle=False).astype(np.int64)


def _check(table: RankTable, groups: int) -> None:
    """Refuse numbers that point to nothing.

    Raises:
        ValueError: Some do.
    """
    count = len(table.call)
    if not count or not len(table.change_bytes):
        raise ValueError("a rank has no operations or no memory")
    limits = (
        ("call", table.call, 0, len(table.calls)),
        ("module", table.module, 0, len(table.paths)),
        ("exchange", table.exchange, -1, len(table.exchanges)),
        ("waits", table.waits, 0, count),
        ("moment", table.moment, 0, count + 1),
        ("block", table.block, 0, len(table.block_owner)),
    )
    for name, column, low, end in limits:
        if column.size and not (low <= int(column.min()) and int(column.max()) < end):
            raise ValueError(f"{name} points beyond its table")
    same = (table.stream, table.phase, table.module, table.exchange)
    if any(len(column) != count for column in same):
        raise ValueError("columns of operations differ in length")
    if any(not 0 <= each.group < groups for each in table.exchanges):
        raise ValueError("a collective names a group that does not exist")
