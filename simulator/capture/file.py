"""How does a capture lie in a file?

A zip archive, which any tool opens. ``capture.json`` says what was captured; each rank has a
folder with one ``.npy`` array per column and a ``names.json`` with its distinct calls, exchanges
and module paths. Columns and names are unpacked and checked when they are first asked for.
Reading allocates no more than the file's stated sizes, which are checked first, and runs
nothing. The format is written down in ``docs/capture.md``.
"""

from __future__ import annotations

import io
import json
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from simulator.capture.table import (
    COLUMNS,
    BlockOwner,
    Call,
    Capture,
    Exchange,
    Integers,
    Phase,
    RankTable,
    Tensor,
)
from simulator.errors import InputError
from simulator.files import is_there, whole_file

VERSION = 2
_READ_VERSIONS = (1, VERSION)
_SINCE_2 = ("past_block", "past_bytes")
"""Raised whenever a file's meaning changes."""
HEADER = "capture.json"
_MOST_BYTES = 1 << 30
"""Unpacked size beyond which a file or a column is not read: a step of millions of operators is
smaller."""
_MOST_NAME_BYTES = 1 << 26
"""The same of a rank's ``names.json``, whose texts and tuples take several times as much."""
_SAID_OF_DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, OSError, EOFError, KeyError,
    IndexError, ValueError, TypeError, AttributeError, OverflowError, RuntimeError,
)  # fmt: skip
"""What libraries raise where bytes of an archive, or what they unpack to, are not as they were."""
_TYPES = (np.int8, np.int16, np.int32, np.int64)
_NAMES = "names.json"
_NAMED = ("calls", "exchanges", "paths")
"""What it holds, as :class:`RankTable` calls it."""
_OF_OPERATIONS = ("stream", "phase", "module", "exchange")
"""Columns that are as long as ``call``."""


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
        zipfile.ZipFile(draft, "w", zipfile.ZIP_LZMA) as archive,
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
    _store(archive, f"{folder}/{_NAMES}", json.dumps(names, separators=(",", ":")))
    for name in COLUMNS:
        column = getattr(table, name)
        stored = io.BytesIO()
        np.save(stored, column.astype(_least_type(column)), allow_pickle=False)
        _store(archive, f"{folder}/{name}.npy", stored.getvalue())


def _store(archive: zipfile.ZipFile, name: str, content: str | bytes) -> None:
    """Add a file without the time of day, so that equal captures have equal bytes."""
    archive.writestr(zipfile.ZipInfo(name), content, archive.compression)


def _least_type(column: Any) -> type[np.signedinteger[Any]]:
    low, high = (int(column.min()), int(column.max())) if column.size else (0, 0)
    fits = (t for t in _TYPES if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
    return next(fits)


def read_capture(path: str | Path) -> Capture:
    """The capture in a file, which is not needed afterwards.

    Its columns are unpacked when they are asked for. They raise InputError, too, where they are
    damaged.

    Raises:
        InputError: It is none, is damaged, or is of another version.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check_sizes(archive, path)
            header = json.loads(archive.read(HEADER))
        packed = Path(path).read_bytes()
        return _capture(header, packed, str(path))
    except _SAID_OF_DAMAGE as error:
        raise _said_of(error, path) from error


def _said_of(error: Exception, path: str | Path) -> InputError:
    return _damaged(path, f"is not a capture, or a damaged one ({error})")


def _damaged(path: str | Path, rule: str) -> InputError:
    hint = "make it again: clustersim capture TRAIN.py --world N --out FILE"
    return InputError.single("", rule, hint=hint, file=str(path))


def _check_sizes(archive: zipfile.ZipFile, path: str | Path) -> None:
    stored = archive.infolist()
    if sum(info.file_size for info in stored) > _MOST_BYTES:
        raise _damaged(path, f"is larger than {_MOST_BYTES} bytes when unpacked")
    if sum(info.compress_size for info in stored) > Path(path).stat().st_size:
        raise _damaged(path, "is damaged: its parts are larger than it is")
    names = (info for info in stored if info.filename.endswith(_NAMES))
    if any(info.file_size > _MOST_NAME_BYTES for info in names):
        raise _damaged(path, f"has names of more than {_MOST_NAME_BYTES} bytes")


def _capture(header: Any, packed: bytes, path: str) -> Capture:
    if header["format"] != "clustersim-capture" or header["version"] not in _READ_VERSIONS:
        rule = f"has version {header['version']} of the format; this program reads 1 to {VERSION}"
        raise _damaged(path, rule)
    groups = tuple(map(_ranks, header["groups"]))
    content = _Packed(packed, path, len(groups), int(header["version"]))
    return Capture(
        script=str(header["script"]),
        world=int(header["world"]),
        device=str(header["device"]),
        tokens_per_rank=int(header["tokens_per_rank"]),
        groups=groups,
        tables=tuple(_PackedTable.of_file(int(rank), content) for rank in header["ranks"]),
        versions=dict(header["versions"]),
        notes=tuple(header["notes"]),
    )


class _Packed(NamedTuple):
    """A file in memory, as it is on disk.

    Attributes:
        content: Its bytes.
        path: For errors.
        groups: How many process groups it names.
        version: Of the format.
    """

    content: bytes
    path: str
    groups: int
    version: int


class _PackedTable(RankTable):
    """A rank's table that unpacks a column, or the names, when they are first asked for."""

    _packed: _Packed

    @classmethod
    def of_file(cls, rank: int, packed: _Packed) -> _PackedTable:
        """A rank's table with nothing unpacked; ``replace`` makes whole ones of it."""
        table = object.__new__(cls)
        vars(table).update(rank=rank, _packed=packed)
        return table

    def __getattr__(self, name: str) -> Any:
        """A column or names that are not yet unpacked.

        Raises:
            InputError: They are damaged, or point to nothing.
        """
        if name not in COLUMNS and name not in _NAMED:
            raise AttributeError(name)
        try:
            found = {name: self._column(name)} if name in COLUMNS else self._names()
        except _SAID_OF_DAMAGE as error:
            raise _said_of(error, self._packed.path) from error
        vars(self).update(found)
        return found[name]

    def _part(self, name: str) -> bytes:
        with zipfile.ZipFile(io.BytesIO(self._packed.content)) as archive:
            return archive.read(f"rank{self.rank}/{name}")

    def _names(self) -> dict[str, Any]:
        names = json.loads(self._part(_NAMES))
        exchanges = tuple(Exchange(*each) for each in names["exchanges"])
        if any(not 0 <= each.group < self._packed.groups for each in exchanges):
            raise ValueError("a collective names a group that does not exist")
        calls = tuple(map(_call, names["calls"]))
        return dict(zip(_NAMED, (calls, exchanges, tuple(map(str, names["paths"]))), strict=True))

    def _column(self, name: str) -> Integers:
        if name in _SINCE_2 and self._packed.version < VERSION:
            return np.zeros(0, dtype=np.int64)
        column = _whole_numbers(self._part(f"{name}.npy"), name)
        if name in ("call", "change_bytes") and not len(column):
            raise ValueError("a rank has no operations or no memory")
        if name in _OF_OPERATIONS and len(column) != len(self.call):
            raise ValueError("columns of operations differ in length")
        if name == "past_bytes" and len(column) != len(self.past_block):
            raise ValueError("columns of the past differ in length")
        if name in _LIMITS and column.size:
            low, end_of = _LIMITS[name]
            if int(column.min()) < low or int(column.max()) >= end_of(self):
                raise ValueError(f"{name} points beyond its table")
        return column


_LIMITS: Mapping[str, tuple[int, Callable[[RankTable], int]]] = MappingProxyType(
    {
        "call": (0, lambda table: len(table.calls)),
        "phase": (0, lambda _: len(Phase)),
        "module": (0, lambda table: len(table.paths)),
        "exchange": (-1, lambda table: len(table.exchanges)),
        "waits": (0, lambda table: len(table.call)),
        "moment": (0, lambda table: len(table.call) + 1),
        "block": (0, lambda table: len(table.block_owner)),
        "past_block": (0, lambda table: len(table.block_owner)),
        "block_owner": (0, lambda _: len(BlockOwner)),
        "block_module": (0, lambda table: len(table.paths)),
    }
)
"""The least number that a column may have, and the first that it may not."""


def _call(stored: list[Any]) -> Call:
    name, inputs, outputs, settings, *sizes = stored
    return Call(str(name), _tensors(inputs), _tensors(outputs), tuple(settings), *map(int, sizes))


def _tensors(stored: list[Any]) -> tuple[Tensor, ...]:
    return tuple(Tensor(str(dtype), tuple(map(int, shape))) for dtype, shape in stored)


def _whole_numbers(content: bytes, name: str) -> Integers:
    stored = io.BytesIO(content)
    version = np.lib.format.read_magic(stored)
    shape, _, dtype = np.lib.format.read_array_header_1_0(stored)
    unpacked_bytes = math.prod(shape) * np.dtype(np.int64).itemsize
    if version != (1, 0) or dtype.kind != "i" or unpacked_bytes > _MOST_BYTES:
        raise ValueError(f"{name} is not a column of whole numbers")
    stored.seek(0)
    column: Integers = np.load(stored, allow_pickle=False).astype(np.int64)
    return column
