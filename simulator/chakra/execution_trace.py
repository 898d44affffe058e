"""What does the execution trace of one rank say, and how are its messages laid out in a file?

Nodes in the order in which the rank issues them, what each waits for, and the ranks of every
process group.

A file is a row of protobuf messages, each behind its length as a varint: one
``GlobalMetadata``, and then one ``Node`` after another. The descriptors are built here from
the fields' names and numbers; only the fields that are used are described, and others pass
unread.

Source: MLCommons Chakra, ``schema/protobuf/et_def.proto``; protobuf's encoding guide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from simulator.cost.collectives import CollectiveKind
from simulator.errors import InputError
from simulator.extras import require
from simulator.files import why_unreadable

Scalar = bool | int | float | str


class NodeType(IntEnum):
    """What a node stands for, by Chakra's numbers."""

    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


COMM_TYPES: Mapping[CollectiveKind, int] = {
    CollectiveKind.ALL_REDUCE: 0,
    CollectiveKind.REDUCE: 1,
    CollectiveKind.ALL_GATHER: 2,
    CollectiveKind.BROADCAST: 5,
    CollectiveKind.ALL_TO_ALL: 6,
    CollectiveKind.REDUCE_SCATTER: 7,
}
"""Chakra's number of each collective (``comm_type``)."""
REDUCE_SCATTER_BLOCK, BARRIER = 8, 9

# Attributes that Chakra's tools read.
COMM_TYPE, COMM_SIZE, GROUP = "comm_type", "comm_size", "pg_name"
SOURCE, TARGET, TAG = "comm_src", "comm_dst", "comm_tag"
IS_CPU, NUM_OPS = "is_cpu_op", "num_ops"

# Attributes of our own, which make a replay exact; others' traces do without them.
OPERATION = "clustersim.operation"
"""Neighbouring nodes of one number are one operation, which holds its stream throughout."""
STREAM, KIND, CATEGORY = "clustersim.stream", "clustersim.kind", "clustersim.category"
SECONDS = "clustersim.seconds"
"""Duration where whole microseconds would round it [s]."""
HIDDEN = "clustersim.hidden_seconds"
"""Part of a communication that runs beside computation and so adds nothing [s]."""
NUM_BYTES = "clustersim.num_bytes"
"""Message size as nccl-tests counts it [B]."""
CONTENDS = "clustersim.contends"
"""Whether a communication shares its links and multiprocessors with what runs beside it."""
STEP = "clustersim.step_seconds"
"""Duration of the step that a trace was written from [s]."""


@dataclass(frozen=True, slots=True)
class Node:
    """One thing that a rank does.

    Attributes:
        id: Its number, unique in the trace.
        name: For people.
        type: What it stands for.
        seconds: How long it took; 0 if unknown [s].
        waits_for: Nodes that must have ended, by id.
        attributes: Everything else, by name.
    """

    id: int
    name: str
    type: NodeType
    seconds: float = 0.0
    waits_for: tuple[int, ...] = ()
    attributes: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankTrace:
    """All that one rank does.

    Attributes:
        rank: Whose it is.
        nodes: In the order of issue.
        groups: Ranks of each process group by its name, ascending.
        step_s: Duration of the step that it was written from; None if unknown [s].
        file: Where it was read, for messages.
    """

    rank: int
    nodes: tuple[Node, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    step_s: float | None = None
    file: str = ""


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
