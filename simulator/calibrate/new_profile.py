"""How does the profile of a GPU start that nobody has measured yet?

From that of a relative: what the data sheet says of the new one is set, and everything else stays
as the relative has it, marked as an assumption that names the relative.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import yaml

from simulator.calibrate.profile_text import SourcedValue, with_sourced_values, without_aliases
from simulator.described.documents import yaml_mapping
from simulator.described.load import load_profile, profile_file, profile_from_document
from simulator.described.rules.profile_rules import profile_faults
from simulator.errors import InputError
from simulator.files import read_text

_SHEET_FIELDS = (
    "device.memory", "device.memory_bandwidth", "device.peak.fp32", "device.peak.fp16",
    "device.sm_count", "device.l2_cache", "device.boost_clock", "device.power",
    "network.scale_up.bandwidth",
)  # fmt: skip
"""What every data sheet says of a GPU."""

_ABSENT = "none"
"""Value of a field or block that the new GPU does not have."""

_PEAK = "device.peak."

_EVIDENCE = re.compile(
    r'\{kind: (?:measured|fitted|datasheet|published), reference: "(?:[^"\\]|\\.)*"\}'
)


def new_profile_text(
    name: str, relative: str, values: Mapping[str, str], reference: str, description: str = ""
) -> str:
    """A sound profile in the layout of its relative.

    Args:
        name: What a job calls it.
        relative: A shipped profile's name, or a file.
        values: What the data sheet says, by dotted path and as files spell it; ``none`` for what
            the new GPU does not have, such as ``device.peak.fp8``, and with it its products.
        reference: The data sheet.
        description: The system in one line.

    Raises:
        InputError: The relative cannot be read, a field is unknown, or the result is not sound.
    """
    load_profile(relative)
    text = without_aliases(read_text(profile_file(relative), "give a profile"))
    assumed = f'{{kind: assumed, reference: "as {relative}"}}'
    text = _EVIDENCE.sub(lambda _: assumed, text)
    said = json.dumps(description or f"{name}, started from {relative}")
    text = re.sub(r"(?m)^name: .*$", lambda _: f"name: {name}", text, count=1)
    text = re.sub(r"(?m)^description: .*$", lambda _: f"description: {said}", text, count=1)
    for field in (field for field, value in values.items() if value == _ABSENT):
        text = _without(text, field)
        if field.startswith(_PEAK):
            text = _without(text, f"kernels.gemm.{field.removeprefix(_PEAK)}")
    stated = {
        field: SourcedValue(value, "datasheet", reference)
        for field, value in values.items()
        if value != _ABSENT
    }
    text = with_sourced_values(text, stated, name)
    faults = profile_faults(profile_from_document(yaml_mapping(text, name), name), file=name)
    if faults:
        raise InputError(faults)
    return text


def not_stated(values: Mapping[str, str]) -> list[str]:
    """Fields of a data sheet that stay as the relative has them."""
    return [field for field in _SHEET_FIELDS if field not in values]


def _without(text: str, path: str) -> str:
    """The YAML text without a field or block; unchanged where there is none."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    key: yaml.Node | None = None
    for part in path.split("."):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        key, node = next((pair for pair in pairs if pair[0].value == part), (None, None))
    if key is None or node is None:
        return text
    lines = text.splitlines(keepends=True)
    last = node.end_mark.line + (node.end_mark.column > key.start_mark.column)
    return "".join(lines[: key.start_mark.line] + lines[max(last, key.start_mark.line + 1) :])
