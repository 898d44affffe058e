"""How is a file that anybody may have named read, and one written, so that none does harm?

Whoever reads says what would do instead, so that every reader of the project refuses what it
cannot read in the same words: the file, what is wrong with it, the way out.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Self, cast

from simulator.errors import STANDARD_INPUT, InputError

MAX_FILE_BYTES = 2**20
"""Larger files are refused; real configurations have some ten thousand bytes."""

MOST_DIGITS = 250
"""Of a number in a file or text: more than any has, and few enough that it is below the largest
floating point number, however its digits are read."""

DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a file system that has no room."""
_GZIP = b"\x1f\x8b"
_MOST_PACKED = 40
"""Bytes per byte of an archive; traces of torch have some ten, and a bomb up to a thousand."""
_ALWAYS_UNPACKED_BYTES = 64 * 2**20
"""Small archives of equal lines may be packed more tightly; this much is read in a second."""

PICTURE_METADATA: Mapping[str, Mapping[str, None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
"""What matplotlib leaves out of pictures of each suffix, so that equal ones have equal bytes."""

LONG_NUMBER = re.compile(rf"\d{{{MOST_DIGITS + 1}}}")

PICTURES = tuple(PICTURE_METADATA)
"""How the name of a picture may end."""


def read_text(
    path: Path,
    wanted: str = "",
    *,
    field: str = "",
    max_bytes: int = MAX_FILE_BYTES,
    errors: str = "strict",
) -> str:
    """The text of a file; a byte-order mark is no part of it.

    Args:
        path: Where it lies; a dash is the standard input.
        wanted: What would do, as the way out of an error.
        field: What named the file, where that is a field of another one.
        max_bytes: A larger one is refused, unread.
        errors: What becomes of bytes that are no UTF-8, as ``bytes.decode`` has it.

    Raises:
        InputError: It cannot be read, is too large, empty, not UTF-8 text, or holds a number of
            more digits than any has.
    """
    try:
        if str(path) == STANDARD_INPUT:
            content = _piped(sys.stdin.buffer, max_bytes + 1)
        else:
            with path.open("rb") as file:
                content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            rule = f"has more than {max_bytes:,} bytes, the limit for such a file"
            raise _refusal(path, field, rule, wanted)
        text = content.decode("utf-8-sig", errors)
    except (OSError, ValueError) as error:
        raise _refusal(path, field, why_unreadable(error), wanted) from error
    return _sound(text, path, field, wanted)


def read_unpacked_text(path: Path, *, max_bytes: int) -> str:
    """The text of a file, plain or gzipped; ``max_bytes`` counts what it unpacks to.

    Raises:
        InputError: As :func:`read_text`, or its archive is damaged.
    """
    try:
        with Unpacked(path) as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            rule = f"has more than {max_bytes:,} bytes, the limit for such a file"
            raise _refusal(path, "", rule, "")
        text = content.decode("utf-8-sig")
    except (EOFError, zlib.error) as error:
        rule = f"cannot be read: its archive is damaged ({error})"
        raise _refusal(path, "", rule, "") from error
    except (OSError, ValueError) as error:
        raise _refusal(path, "", why_unreadable(error), "") from error
    return _sound(text, path, "", "")


def _sound(text: str, path: Path, field: str, wanted: str) -> str:
    if not text or text.isspace():
        raise _refusal(path, field, "is empty", wanted)
    if LONG_NUMBER.search(text):
        raise _refusal(path, field, f"has a number of more than {MOST_DIGITS} digits", wanted)
    return text


@lru_cache(maxsize=1)
def _piped(stream: IO[bytes], most_bytes: int) -> bytes:
    """What is piped into this process, which commands that read a job twice get twice."""
    return stream.read(most_bytes)


class Unpacked:
    """What a file holds, unpacked where it is a gzip archive; a context manager.

    Args:
        path: Where it lies.

    Raises:
        OSError: It cannot be read, or unpacks to so much more than its size that it is made to
            take time and memory.
    """

    def __init__(self, path: Path) -> None:
        self._raw = path.open("rb")
        self._is_packed = self._raw.read(len(_GZIP)) == _GZIP
        self._raw.seek(0)
        self._file: IO[bytes] = cast(
            "IO[bytes]", gzip.GzipFile(fileobj=self._raw) if self._is_packed else self._raw
        )
        self._num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def read(self, num_bytes: int) -> bytes:
        """At most so many of the next bytes; none at the end."""
        content = self._file.read(num_bytes)
        self._num_bytes += len(content)
        # Of what was read so far, so that a bomb costs no more for being large.
        most_bytes = max(_ALWAYS_UNPACKED_BYTES, _MOST_PACKED * self._raw.tell())
        if self._is_packed and self._num_bytes > most_bytes:
            raise OSError(f"it unpacks to more than {_MOST_PACKED} times its size")
        return content


def strict_json(text: str) -> Any:
    """The value of a JSON text in which no key of a mapping appears twice.

    Raises:
        ValueError: It is no JSON, or a key appears twice.
        RecursionError: It is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_mapping)


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} appears twice")
    return values


def why_unreadable(error: OSError | ValueError) -> str:
    """What was wrong with a file, as the rule of a fault."""
    if isinstance(error, UnicodeDecodeError):
        return "cannot be read: it is not UTF-8 text"
    reason = error.strerror if isinstance(error, OSError) else None
    return f"cannot be read: {reason or error}"


def _new_draft(path: Path) -> Path:
    """An empty file beside ``path`` that nobody else has, whose name nobody can foresee."""
    try:
        handle, name = tempfile.mkstemp(".draft", f".{path.name}.", path.parent)
    except OSError as error:
        error.filename = str(path)  # what the user has named
        raise
    os.close(handle)
    return Path(name)


def _umask() -> int:
    """Which rights new files do not have; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _refusal(path: Path, field: str, rule: str, wanted: str) -> InputError:
    if field:
        return InputError.single(field, f"{path} {rule}", hint=wanted)
    return InputError.single("", rule, hint=wanted, file=str(path))


def is_there(path: Path) -> bool:
    """Whether a name that anybody may have written names a file, a pipe or a device.

    Unlike what ``Path`` has for it, one that no file can have (too long, or with a NUL) names none.
    """
    return os.path.exists(path) and not os.path.isdir(path)


def write_whole(path: Path, text: str) -> None:
    """Write a file at once: it is there with all of its text or not at all."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write a file, beside it; it takes its place once all is written.

    Its folder is made, and who may read it stays so. A link, a device or a pipe is written as it
    is: nothing takes its place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        yield path
        return
    draft = _new_draft(path)
    try:
        yield draft
        draft.chmod(path.stat().st_mode if path.exists() else 0o666 & ~_umask())
        draft.replace(path)
    except OSError as error:
        is_full = error.filename is None and error.errno in DISK_IS_FULL
        if is_full or error.filename == str(draft):
            error.filename = str(path)  # what the user has named
        raise
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
