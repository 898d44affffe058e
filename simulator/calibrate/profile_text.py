"""How is a number changed in a profile's YAML without touching anything else?

Comments, order and layout of hand-written files are kept: only the characters of the value itself
are replaced. A profile of a processor is written whole: no data sheet says what a processor reaches
in each number format, so the best measured rates stand as its peaks, and shares are shares of
those. All cores work on one operation at a time, so there is one multiprocessor. Its links are the
start of ``calibrate collectives``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from simulator.described.cluster.hardware import SourceKind
from simulator.described.documents import parse_yaml
from simulator.described.load import profile_from_document
from simulator.errors import InputError
from simulator.tables.kernel_rows import KernelRow
from simulator.units import format_quantity, three_digits

_FORMATS = ("fp32", "bf16", "fp16")

_MOST_RANKS = 16
"""Processes that may share the computer as ranks."""


def with_value(text: str, path: Sequence[str], value: str) -> str:
    """``text`` of a YAML file with the value at ``path`` replaced by the YAML ``value``.

    A missing last key is added behind the last one-line entry of its block; missing blocks are
    added at the beginning of the block that they belong to.

    Raises:
        KeyError: What is to hold the value is no block, or the value is itself a block.
    """
    *parents, last = path
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    node = _descendant(root, parents)
    if node is None:
        return _with_new_block(text, root, path, value)
    if not isinstance(node, yaml.MappingNode):
        raise KeyError(".".join(path))
    old = _child(node, last)
    if old is None:
        end = _end_of_last_line(node)
        return f"{text[:end]}\n{' ' * node.start_mark.column}{last}: {value}{text[end:]}"
    if _is_block(old):
        raise KeyError(f"{'.'.join(path)} is a block")
    return text[: old.start_mark.index] + value + _rest(text, old)


def _rest(text: str, old: yaml.Node) -> str:
    """What stands behind a value that goes; its anchor moves to the first that refers to it."""
    rest = text[old.end_mark.index :]
    for node in _within(old):
        said = text[node.start_mark.index : node.end_mark.index]
        anchor = re.match(r"&(\w+)\s", said)
        is_inside = old.start_mark.index <= node.start_mark.index < old.end_mark.index
        first = re.search(rf"\*{anchor[1]}\b", rest) if anchor and is_inside else None
        if first:
            rest = rest[: first.start()] + said + rest[first.end() :]
    return rest


def _within(node: yaml.Node) -> Iterator[yaml.Node]:
    """A node, and all nodes inside it."""
    yield node
    if isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _within(value)


def _with_new_block(text: str, root: yaml.Node | None, path: Sequence[str], value: str) -> str:
    """``text`` with the missing blocks of ``path`` and the value in them."""
    known = max(n for n in range(len(path)) if _descendant(root, path[:n]) is not None)
    block = _descendant(root, path[:known])
    if not isinstance(block, yaml.MappingNode) or not _is_block(block):
        raise KeyError(".".join(path))
    start, column = block.start_mark.index, block.start_mark.column
    lines = [f"{'  ' * depth}{key}:" for depth, key in enumerate(path[known:])]
    added = f"\n{' ' * column}".join(lines)
    return f"{text[:start]}{added} {value}\n{' ' * column}{text[start:]}"


def _descendant(node: yaml.Node | None, path: Sequence[str]) -> yaml.Node | None:
    for key in path:
        node = _child(node, key)
    return node


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)


def _is_block(node: yaml.Node) -> bool:
    return isinstance(node, yaml.CollectionNode) and not node.flow_style


def _end_of_last_line(node: yaml.MappingNode) -> int:
    """Index behind the last entry that fits on its own line (blocks end ambiguously)."""
    ends = [value.end_mark.index for _, value in node.value if not _is_block(value)]
    if not ends:
        raise KeyError("the block holds only blocks")
    return int(ends[-1])


@dataclass(frozen=True, slots=True)
class SourcedValue:
    """A value of a profile and where it comes from.

    Attributes:
        value: As files spell it: a number, a name, or a text with its unit.
        kind: A :data:`~simulator.described.cluster.hardware.SourceKind`.
        reference: Document, table or measurement.
    """

    value: str | int | float
    kind: SourceKind
    reference: str

    def __str__(self) -> str:
        """Return it as YAML on one line."""
        value = self.value if isinstance(self.value, str) else f"{self.value:g}"
        source = f"{{kind: {self.kind}, reference: {json.dumps(self.reference)}}}"
        return f"{{value: {value}, source: {source}}}"


def with_sourced_values(text: str, values: Mapping[str, SourcedValue | str], file: str) -> str:
    """A profile's text with the values at dotted paths replaced, each with its source.

    Aliases are written out first, because the value that an anchor stands beside may go.

    Args:
        text: The profile.
        values: New values by dotted path, for example ``network.fabric.nic``; or, as YAML on one
            line, whole blocks.
        file: Where the text was read, for messages.

    Raises:
        InputError: The text is laid out such that a value cannot be replaced alone, or it
            is no sound profile afterwards.
    """
    try:
        changed = without_aliases(text)
        for path, value in values.items():
            changed = with_value(changed, path.split("."), str(value))
    except KeyError as error:
        rule = f"cannot be changed alone: {error.args[0]}"
        hint = "write the network block as the shipped profiles do, one value per line"
        raise InputError.single("network", rule, hint=hint, file=file) from error
    profile_from_document(parse_yaml(changed, file), file)
    return changed


def without_aliases(text: str) -> str:
    """The text of a YAML file with every alias replaced by what its anchor stands for.

    Raises:
        KeyError: An anchor stands before a block, which has no end on its own line.
    """
    tokens = list(yaml.scan(text, Loader=yaml.SafeLoader))
    anchored: dict[str, str] = {}
    edits: list[tuple[int, int, str]] = []
    for index, token in enumerate(tokens):
        start, end = token.start_mark.index, token.end_mark.index
        if isinstance(token, yaml.AnchorToken):
            first = tokens[index + 1].start_mark.index
            anchored[token.value] = text[first : _end_of_value(tokens, index + 1)]
            edits.append((start, first, ""))
        elif isinstance(token, yaml.AliasToken):
            edits.append((start, end, anchored[token.value]))
    for start, end, replacement in reversed(edits):
        text = text[:start] + replacement + text[end:]
    return text


def _end_of_value(tokens: Sequence[yaml.Token], first: int) -> int:
    """Index behind a value that starts at a token and is no block."""
    depth = 0
    for token in tokens[first:]:
        if isinstance(token, (yaml.FlowMappingStartToken, yaml.FlowSequenceStartToken)):
            depth += 1
        elif isinstance(token, (yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)):
            depth -= 1
        elif depth == 0 and not isinstance(token, yaml.ScalarToken):
            break
        if depth == 0:
            return int(token.end_mark.index)
    raise KeyError("an anchor (&) stands before a block")


def processor_profile_text(
    name: str, processor: str, memory_bytes: int, rows: Sequence[KernelRow], reference: str
) -> str:
    """A profile whose peaks are the best rates of the rows; its kernels are not fitted yet.

    Args:
        name: Of the profile.
        processor: Words for its description.
        memory_bytes: Of the computer.
        rows: Measured kernels, products in fp32 and a copy among them.
        reference: Source of everything measured.

    Raises:
        InputError: The rows lack what a profile cannot be without.
    """
    peaks = _peaks_flop_per_s(rows)
    copies = [row for row in rows if row.text("op") == "stream_copy"]
    bandwidth = max((row.number("gbps") or 0.0 for row in copies), default=0.0)
    if "fp32" not in peaks or not bandwidth:
        rule = "no fp32 product or no copy of memory was measured"
        raise InputError.single("--minutes", rule, hint="give more --minutes, with --resume")
    environment = Environment(
        loader=PackageLoader("simulator.calibrate", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("processor_profile.yaml").render(
        name=name,
        processor=processor,
        measured=f"{{kind: measured, reference: {json.dumps(f'best rate of {reference}')}}}",
        memory=format_quantity(memory_bytes, "bytes"),
        rate=format_quantity(three_digits(bandwidth * 1e9), "bytes_per_s"),
        peaks={
            dtype: format_quantity(three_digits(peak), "flop_per_s")
            for dtype, peak in peaks.items()
        },
        # A message is copied into the system and out of it.
        loopback=format_quantity(three_digits(bandwidth * 1e9 / 2), "bytes_per_s"),
        most_ranks=_MOST_RANKS,
        quoted=json.dumps,
    )


def _peaks_flop_per_s(rows: Sequence[KernelRow]) -> Mapping[str, float]:
    best: dict[str, float] = {}
    for row in rows:
        rate = row.number("tflops")
        if rate:
            best[row.text("dtype")] = max(best.get(row.text("dtype"), 0.0), rate * 1e12)
    return {dtype: best[dtype] for dtype in _FORMATS if dtype in best}
