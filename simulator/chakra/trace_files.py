"""How does a rank's trace get into a file, and out of one that anybody may have written?

Process groups stand in a metadata node, in the way PyTorch's execution traces have them. Chakra's
converters write no version, but the schema that they read; its ``chakra_jsonizer`` writes the same
messages as JSON objects, one after another.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from simulator.chakra.execution_trace import (
    SECONDS,
    STEP,
    Node,
    NodeType,
    RankTrace,
    Scalar,
    broken_file,
    json_messages,
    message_types,
    read_messages,
    write_message,
)
from simulator.errors import InputError
from simulator.files import whole_file

VERSION = "0.0.4"
"""Of Chakra's schema, that the fields here are of."""
MAX_NODES = 1_000_000
"""Nodes of all files together that are read, about a gigabyte of memory."""
_GROUPS = "## process_group:init ##"
"""Name of the node that lists process groups, as PyTorch writes it."""
_RANK = re.compile(r"(?:.*\.)?(?P<rank>\d{1,9})\.(?:et|json)")
_SCHEMA = "schema"
"""Attribute of the first message that Chakra's converters write in place of a version."""
_MICRO = 1e-6


def file_name(name: str, rank: int) -> str:
    """Name of a rank's file, as Chakra's tools expect it."""
    return f"{name}.{rank}.et"


def write_trace(trace: RankTrace, path: Path) -> None:
    """Write one rank's trace; a file is there whole or not at all.

    Raises:
        InputError: The extra ``chakra`` is not installed.
    """
    types = message_types()
    head = types.GlobalMetadata(version=VERSION)
    if trace.step_s is not None:
        _set(head.attr.add(name=STEP), trace.step_s)
    first = types.Node(id=0, name=_GROUPS, type=int(NodeType.METADATA))
    first.inputs.values = json.dumps(
        [{"pg_name": name, "ranks": list(ranks)} for name, ranks in trace.groups.items()]
    )
    with whole_file(path) as draft, draft.open("wb") as file:
        write_message(file, head)
        write_message(file, first)
        for node in trace.nodes:
            write_message(file, _message(node, types))


def _message(node: Node, types: Any) -> Any:
    message = types.Node(
        id=node.id,
        name=node.name,
        type=int(node.type),
        data_deps=node.waits_for,
        duration_micros=round(node.seconds / _MICRO),
    )
    for name, value in node.attributes.items():
        _set(message.attr.add(name=name), value)
    if node.seconds:
        _set(message.attr.add(name=SECONDS), node.seconds)
    return message


def _set(attribute: Any, value: Scalar) -> None:
    match value:
        case bool():
            attribute.bool_val = value
        case int():
            attribute.int64_val = value
        case float():
            attribute.double_val = value
        case str():
            attribute.string_val = value


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """The files of all ranks in folders, and files given one by one, in order of rank.

    Raises:
        InputError: A path is not there, there are no traces, or two are of the same rank.
    """
    for path in paths:
        if not os.path.exists(path):
            hint = "give a folder of traces, or files NAME.RANK.et (or .json)"
            raise InputError.single("", "does not exist", hint=hint, file=str(path))
    files = [
        file
        for path in paths
        for file in ([*path.glob("*.et"), *path.glob("*.json")] if os.path.isdir(path) else [path])
    ]
    if not files:
        rule, hint = "holds no traces", "give files NAME.RANK.et (or .json), one per rank"
        raise InputError.single("", rule, hint=hint, file=", ".join(map(str, paths)))
    by_rank: dict[int, Path] = {}
    for file in files:
        rank = _rank_of(file)
        if rank in by_rank:
            rule = f"has the same rank {rank} as {by_rank[rank]}"
            raise InputError.single("", rule, hint="give one file per rank", file=str(file))
        by_rank[rank] = file
    return [by_rank[rank] for rank in sorted(by_rank)]


def _rank_of(file: Path) -> int:
    found = _RANK.fullmatch(file.name)
    if found is None:
        rule = "does not state its rank"
        raise InputError.single("", rule, hint="name it NAME.RANK.et or .json", file=str(file))
    return int(found["rank"])


def read_traces(paths: Sequence[Path]) -> list[RankTrace]:
    """The traces in folders and files, in order of rank.

    Raises:
        InputError: There is none, a file is no trace or a broken one, or there are too many
            nodes to hold in memory.
    """
    traces, left = [], MAX_NODES
    for file in trace_files(paths):
        traces.append(read_trace(file, left))
        left -= len(traces[-1].nodes)
    return traces


def read_trace(path: Path, max_nodes: int = MAX_NODES) -> RankTrace:
    """The trace in a file.

    Raises:
        InputError: It is no trace, a broken one, or too long.
    """
    rank, origin = _rank_of(path), str(path)
    messages = _messages(path)
    head = next(messages, None) or message_types().GlobalMetadata()
    facts = _attributes(head)
    if not head.version and _SCHEMA not in facts:
        raise broken_file(path, "is not a Chakra trace: it begins with no version and no schema")
    nodes: dict[int, Node] = {}
    groups: dict[str, tuple[int, ...]] = {}
    optional: set[int] = set()
    for message in messages:
        optional |= set(message.ctrl_deps)
        if message.type == NodeType.METADATA:
            groups |= _groups(message, origin)
            optional.add(message.id)
            continue
        node = _node(message, origin)
        if node.id in nodes:
            raise InputError.single(f"node {node.id}", "appears twice", node.name, file=origin)
        nodes[node.id] = node
        if len(nodes) > max_nodes:
            rule = f"has more nodes than the {max_nodes:,} that are left of {MAX_NODES:,}"
            hint = "give the traces of fewer ranks, or of a shorter step"
            raise InputError.single("", rule, hint=hint, file=origin)
    step_s = facts.get(STEP)
    return RankTrace(
        rank,
        tuple(_without(node, optional - nodes.keys()) for node in nodes.values()),
        groups,
        float(step_s) if isinstance(step_s, float) else None,
        origin,
    )


def _without(node: Node, absent: frozenset[int] | set[int]) -> Node:
    """A node that waits for nothing absent: for no metadata, and no caller that was left out."""
    if absent.isdisjoint(node.waits_for):
        return node
    return replace(node, waits_for=tuple(each for each in node.waits_for if each not in absent))


def _messages(path: Path) -> Iterator[Any]:
    """The metadata of a trace, then its nodes."""
    kinds = chain(["GlobalMetadata"], repeat("Node"))
    if path.suffix == ".json":
        yield from json_messages(path, kinds)
        return
    for kind, content in zip(kinds, read_messages(path), strict=False):
        yield _parsed(kind, content, str(path))


def _parsed(kind: str, content: bytes, origin: str) -> Any:
    types = message_types()
    from google.protobuf.message import DecodeError

    try:
        return getattr(types, kind).FromString(content)
    except DecodeError as error:
        rule = f"contains a message that is not a Chakra {kind}"
        raise InputError.single("", rule, file=origin) from error


def _node(message: Any, origin: str) -> Node:
    if message.type not in NodeType._value2member_map_:
        rule = f"is of type {message.type}, which is not modelled"
        hint = f"known: {', '.join(f'{t.value} ({t.name})' for t in NodeType)}"
        raise InputError.single(f"node {message.id}", rule, message.name, hint, origin)
    attributes = _attributes(message)
    exact = attributes.pop(SECONDS, None)
    seconds = exact if isinstance(exact, float) else message.duration_micros * _MICRO
    if not 0 <= seconds < float("inf"):
        rule = "must have a duration of 0 s or more"
        raise InputError.single(f"node {message.id}", rule, seconds, file=origin)
    waits_for = tuple(dict.fromkeys((*message.data_deps, *message.ctrl_deps)))
    return Node(message.id, message.name, NodeType(message.type), seconds, waits_for, attributes)


def _attributes(message: Any) -> dict[str, Scalar]:
    """Plain values by name; lists pass unread."""
    return {
        attribute.name: getattr(attribute, which)
        for attribute in message.attr
        if (which := attribute.WhichOneof("value")) is not None
    }


def _groups(message: Any, origin: str) -> dict[str, tuple[int, ...]]:
    """Ranks of process groups, where a metadata node lists them."""
    if message.name != _GROUPS:
        return {}
    try:
        listed = json.loads(message.inputs.values or "[]")
        return {str(group["pg_name"]): _ranks(group["ranks"]) for group in listed}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        rule = "lists no process groups with pg_name and ranks"
        raise InputError.single(f"node {message.id}", rule, file=origin) from error


def _ranks(given: Iterable[object]) -> tuple[int, ...]:
    ranks = sorted({rank for rank in given if type(rank) is int and rank >= 0})
    if not ranks:
        raise ValueError("no ranks")
    return tuple(ranks)
