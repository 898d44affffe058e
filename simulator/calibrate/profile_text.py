"""How is a number changed in a profile's YAML without touching anything else?

Comments, order and layout of hand-written files are kept: only the characters of the
value itself are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

import yaml


def with_value(text: str, path: Sequence[str], value: str) -> str:
    """``text`` of a YAML file with the value at ``path`` replaced by the YAML ``value``.

    A missing last key is added behind the last one-line entry of its block; missing blocks
    are not added.

    Raises:
        KeyError: A block on the way does not exist, or the value is itself a block.
    """
    *parents, last = path
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    node = _descendant(root, parents)
    if not isinstance(node, yaml.MappingNode):
        raise KeyError(".".join(path))
    old = _child(node, last)
    if old is None:
        end = _end_of_last_line(node)
        return f"{text[:end]}\n{' ' * node.start_mark.column}{last}: {value}{text[end:]}"
    if _is_block(old):
        raise KeyError(f"{'.'.join(path)} is a block")
    return text[: old.start_mark.index] + value + text[old.end_mark.index :]


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
