"""How are Chakra's messages laid out in a file?

A file is a row of protobuf messages, each behind its length as a varint: one
``GlobalMetadata``, and then one ``Node`` after another. The descriptors are built here from
the fields' names and numbers; only the fields that are used are described, and others pass
unread.

Source: MLCommons Chakra, ``schema/protobuf/et_def.proto``; protobuf's encoding guide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from simulator.chakra.execution_trace import NodeType
from simulator.errors import InputError
from simulator.extras import require
from simulator.files import why_unreadable

MAX_MESSAGE_BYTES = 16 * 1024**2
"""A longer message is no node; the longest real ones list the ranks of process groups."""
_MAX_JSON_BYTES = 512 * 1024**2
"""A longer file has more nodes than are read."""
_MAX_VARINT_BYTES = 10
_SPACE = re.compile(r"\s*")
_PACKAGE = "clustersim.chakra"

_ATTRIBUTE_VALUES = {
    "double_val": 3, "float_val": 5, "int32_val": 7, "int64_val": 9, "uint32_val": 11,
    "uint64_val": 13, "sint32_val": 15, "sint64_val": 17, "fixed32_val": 19, "fixed64_val": 21,
    "sfixed32_val": 23, "sfixed64_val": 25, "bool_val": 27, "string_val": 29,
}  # fmt: skip
"""Number of each kind of plain value that an attribute may have, all in one ``oneof``."""

_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "AttributeProto": (
        ("name", 1, "string"),
        *((name, number, name.removesuffix("_val")) for name, number in _ATTRIBUTE_VALUES.items()),
    ),
    "GlobalMetadata": (("version", 1, "string"), ("attr", 2, "repeated AttributeProto")),
    "IOInfo": (("values", 1, "string"), ("shapes", 2, "string"), ("types", 3, "string")),
    "Node": (
        ("id", 1, "uint64"), ("name", 2, "string"), ("type", 3, "int32"),
        ("ctrl_deps", 4, "repeated uint64"), ("data_deps", 5, "repeated uint64"),
        ("start_time_micros", 6, "uint64"), ("duration_micros", 7, "uint64"),
        ("inputs", 8, "IOInfo"), ("outputs", 9, "IOInfo"), ("attr", 10, "repeated AttributeProto"),
    ),
}  # fmt: skip
"""Fields of each message: name, number and type; an enum travels as an int32 does."""


@cache
def message_types() -> SimpleNamespace:
    """The classes ``AttributeProto``, ``GlobalMetadata``, ``IOInfo`` and ``Node``.

    Raises:
        InputError: The library that they need is not installed.
    """
    require("google.protobuf", "reads and writes Chakra traces")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="clustersim_chakra.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        _describe(file.message_type.add(name=name), fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }
    return SimpleNamespace(**found)


def _describe(message: Any, fields: Sequence[tuple[str, int, str]]) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    if message.name == "AttributeProto":
        message.oneof_decl.add(name="value")
    for name, number, kind in fields:
        *repeated, plain = kind.split()
        field = message.field.add(name=name, number=number)
        field.label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
        if plain in _MESSAGES:
            field.type, field.type_name = Field.TYPE_MESSAGE, f".{_PACKAGE}.{plain}"
        else:
            field.type = getattr(Field, f"TYPE_{plain.upper()}")
        if name in _ATTRIBUTE_VALUES:
            field.oneof_index = 0


def write_message(file: BinaryIO, message: Any) -> None:
    """Append a message behind its length."""
    content = message.SerializeToString()
    length, size = bytearray(), len(content)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    file.write(bytes([*length, size]) + content)


def read_messages(path: Path) -> Iterator[bytes]:
    """The messages of a file, one at a time.

    Raises:
        InputError: It cannot be read, ends inside a message, or is no row of messages.
    """
    try:
        with path.open("rb") as file:
            while (size := _length(file, path)) is not None:
                content = file.read(size)
                if len(content) < size:
                    raise broken_file(path, f"ends inside a message of {size} bytes: it is cut off")
                yield content
    except OSError as error:
        raise broken_file(path, why_unreadable(error)) from error


def json_messages(path: Path, kinds: Iterable[str]) -> Iterator[Any]:
    """Messages that are written as JSON objects, one behind the other.

    Args:
        path: The file.
        kinds: What each message is.

    Raises:
        InputError: It cannot be read, is too large, or is no row of such objects.
    """
    types = message_types()
    from google.protobuf.json_format import ParseDict, ParseError

    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise broken_file(path, f"has more than {_MAX_JSON_BYTES} bytes of JSON")
        text, decoder = path.read_text(encoding="utf-8"), json.JSONDecoder()
        place = _next_place(text, 0)
        for kind in kinds:
            if place == len(text):
                return
            found, end = decoder.raw_decode(text, place)
            yield ParseDict(_numbered(found), getattr(types, kind)(), ignore_unknown_fields=True)
            place = _next_place(text, end)
    except OSError as error:
        raise broken_file(path, why_unreadable(error)) from error
    except (ValueError, RecursionError, ParseError) as error:
        raise broken_file(path, f"is not a Chakra trace as JSON: {error}") from error


def _next_place(text: str, place: int) -> int:
    """Where the next object begins."""
    space = _SPACE.match(text, place)
    return space.end() if space else place


def _numbered(message: object) -> object:
    """A node whose type is a number, as it is among messages; JSON has its name."""
    if isinstance(message, dict) and isinstance(kind := message.get("type"), str):
        name = kind.removesuffix("_NODE")
        if name in NodeType.__members__:
            return message | {"type": int(NodeType[name])}
    return message


def _length(file: BinaryIO, path: Path) -> int | None:
    """Length of the next message; None at the end of the file."""
    size = 0
    for place in range(_MAX_VARINT_BYTES):
        byte = file.read(1)
        if not byte:
            if place == 0:
                return None
            raise broken_file(path, "ends inside the length of a message: it is cut off")
        size |= (byte[0] & 0x7F) << 7 * place
        if byte[0] < 0x80:
            break
    if size > MAX_MESSAGE_BYTES:
        rule = (
            f"is not a Chakra trace: a message of it would have more than {MAX_MESSAGE_BYTES} bytes"
        )
        raise broken_file(path, rule)
    return size


def broken_file(path: Path, rule: str) -> InputError:
    """The error of a file that is no trace, or not all of one."""
    hint = "give files NAME.RANK.et as Chakra's tools or clustersim export chakra write them"
    return InputError.single("", rule, hint=hint, file=str(path))
