"""How is a number changed in a profile's YAML without touching anything else?

Comments, order and layout of hand-written files are kept: only the characters of the
value itself are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

import yaml


def with_value(text: str, path: Sequence[str], value: str) -> str:
    """``text`` of a YAML file with the value at ``path`` replaced by the YAML ``value``.

    A missing last key is added as the first line of its block; missing blocks are not.

    Raises:
        KeyError: A block on the way does not exist, or the value is itself a block.
    """
    *parents, last = path
    node: yaml.Node = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in parents:
        child = _child(node, key)
        if child is None:
            raise KeyError(".".join(path))
        node = child
    old = _child(node, last)
    if old is None:
        column = node.start_mark.column
        start = node.start_mark.index
        return f"{text[:start]}{last}: {value}\n{' ' * column}{text[start:]}"
    if isinstance(old, yaml.CollectionNode) and not old.flow_style:
        raise KeyError(f"{'.'.join(path)} is a block")
    return text[: old.start_mark.index] + value + text[old.end_mark.index :]


def _child(node: yaml.Node, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)
