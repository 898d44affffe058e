"""What can a file or a script say? Pages of the guide, from descriptions and facts.

``python -m tests.reference`` (or ``make generated``) writes ``docs/python-api.md`` from docstrings,
``docs/fields.md`` and ``docs/serving-fields.md`` from the specifications, ``docs/stacks.md`` from
the facts of each stack, ``docs/models-and-systems.md`` (``tests/models_and_systems.py``), and
``docs/commands.md`` (``tests/command_reference.py``). A test compares.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import simulator
from simulator import api, errors
from simulator.api.serving_comparison import ServedRun
from simulator.described.json_schemas import job_schema
from simulator.described.plan.shipped_stacks import STACKS, evidence_of_stack
from simulator.described.plan.stack import Stack
from simulator.facts import shipped_facts
from simulator.planning.distribution.sampled_steps import StepDistribution, StragglerScale
from simulator.planning.distribution.step_sampler import Control
from simulator.planning.offers.offers_file import offers_schema
from simulator.results.step import ClassMemory, StepResult, Waits
from simulator.results.views.difference import Cause, Difference
from simulator.results.views.verdict import Advice, WhatIf
from simulator.serving.answers import Answers
from simulator.serving.described import serving_schema
from simulator.units import UNITS, format_quantity
from tests.command_reference import COMMANDS_PAGE, commands_page
from tests.models_and_systems import MODELS_PAGE, models_and_systems_page

ROOT = Path(__file__).parent.parent
API_PAGE = ROOT / "docs" / "python-api.md"
FIELDS_PAGE = ROOT / "docs" / "fields.md"
SERVING_FIELDS_PAGE = ROOT / "docs" / "serving-fields.md"
STACKS_PAGE = ROOT / "docs" / "stacks.md"

FUNCTIONS = {
    name: getattr(api, name)
    for name in (
        "load_job", "simulate", "sample", "sweep", "plan", "rent", "advise", "strategies",
        "load_rl", "rl", "capacity", "compare", "limits", "memory", "sensitivity", "schedule",
        "checks", "diagnose",
        "calibrate", "validate", "load_serving", "serve", "serve_compare", "serve_sweep",
        "serve_plan", "serve_capacity",
    )
}  # fmt: skip
CLASSES = {
    "Job": simulator.Job,
    "Result": simulator.Result,
    "Answer": simulator.Answer,
    "ServingJob": simulator.ServingJob,
}
ANSWERS = (
    api.PlanAnswer, api.AdviseAnswer, api.StrategiesAnswer, api.CapacityAnswer, api.ClustersAnswer,
    api.CompareAnswer, api.LimitsAnswer, api.SensitivityAnswer, api.MemoryAnswer,
    api.ScheduleAnswer, api.DiagnoseAnswer, api.CalibrateAnswer, api.ValidateAnswer,
    api.ServeAnswer, api.ServeCompareAnswer, api.ServeSweepAnswer, api.ServePlanAnswer,
    api.ServeCapacityAnswer,
)  # fmt: skip
PARTS = (
    ClassMemory, Waits, Difference, Cause, Advice, WhatIf, StepDistribution, StragglerScale,
    Control, ServedRun, Answers,
)  # fmt: skip
MISTAKES = {
    name: getattr(errors, name)
    for name in ("ClustersimError", "InputError", "Fault", "UnsupportedError", "DoesNotFitError")
}

_API_TITLE = """\
# Python API

Written by `make generated` from the docstrings; do not edit it here.

```python
import simulator as sim

job = sim.load_job("workloads/llama3-8b-8xh100.yaml")
result = sim.simulate(job)
print(f"{result.step_time_s:.2f} s, MFU {result.mfu:.1%}, fits: {result.fits}")
```

Names end in their SI unit: `_s`, `_bytes`, `_bytes_per_s`, `_flop`. Everything is immutable; a
what-if is a changed copy: `job.replace(**{"plan.tp": 4})`.
"""

_FIELDS_TITLE = """\
# Every field

Written by `make generated` from the specifications; do not edit it here. What a field of a *job*
means, which values it takes, and its default. Rules between fields (such as
"tp must divide the heads") are checked when the file is read.

Quantities are texts with a unit: `80 GiB`, `450 GB/s`, `400 Gbit/s`, `2.5 us`, `989 TFLOP/s`,
`700 W`, `2.5 USD/h`. Editors check files and complete fields with `workloads/schema.json`.
"""

_FAR = 2**16

_PARTS_OF_A_JOB = {
    "The job": ("", "Batch", "Lengths", "LogNormal", "Cluster", "Pool"),
    "The plan": ("Plan", "Lora", "Offload", "ExpertLoad", "Stack"),
    "The model": ("Model", "LatentAttention", "StateSpace", "Experts"),
    "What is slower than it should be": ("Perturbation",),
    "What differs from step to step": ("Variation", "Jitter", "SlowGpus", "ExpertVariation"),
    "The whole training run": (
        "Campaign", "System", "Reserved", "Owned", "Power", "Site", "Failures", "Failure", "Pause",
        "Preemption", "Checkpoint",
    ),
    "The hardware profile": (
        "Device", "PeakRates", "KernelModel", "GemmModel", "AttentionModel", "Network", "ScaleUp",
        "Torus", "Fabric", "SwitchTier", "Host", "Nvme", "OwnMemory", "OwnRuns", "Common",
    ),
}  # fmt: skip

_PARTS_OF_OFFERS = ("", "Offer", "Price", "Workload")

Schema = Mapping[str, Any]


@cache
def fields_page() -> str:
    """Every field that a job or a profile may have."""
    schema = job_schema()
    blocks = {"": schema, **schema["$defs"]}
    lines = [_FIELDS_TITLE]
    parts = [(part, names, blocks) for part, names in _PARTS_OF_A_JOB.items()]
    offers = offers_schema()
    of_offers = {"": offers, **offers["$defs"]}
    parts.append(("Offers: the file of `clustersim rent`", _PARTS_OF_OFFERS, of_offers))
    for part, names, blocks in parts:
        lines.append(f"## {part}\n")
        for name in names:
            lines.extend(_block(name, blocks))
            if name == "Stack":
                lines.extend(_stacks())
    return "\n".join(lines)


_SERVING_FIELDS_TITLE = """\
# Every field of a serving job

Written by `make generated` from the specifications; do not edit it here. What a file of
`clustersim serve` may say: which values a field takes, and its default. A field that is left out
where the engine has a setting of its own is the engine's, at its version;
[Serving](serving.md) says what is simulated.

Quantities are texts with a unit: `80 GiB`, `50 ms`. Editors check files and complete fields with
`workloads/serving/schema.json`.
"""

_PARTS_OF_SERVING = {
    "The deployment": ("", "Deployment", "PrefillPool", "Speculation", "Adapters"),
    "The workload": (
        "Workload", "Arrivals", "Lengths", "SharedPrefix", "AdapterTraffic", "Objective",
    ),
}  # fmt: skip


@cache
def serving_fields_page() -> str:
    """Every field that a serving job may have."""
    schema = serving_schema()
    blocks = {"": schema, **schema["$defs"]}
    lines = [_SERVING_FIELDS_TITLE]
    for part, names in _PARTS_OF_SERVING.items():
        lines.append(f"## {part}\n")
        for name in names:
            lines.extend(_block(name, blocks))
    return "\n".join(lines)


def _block(name: str, blocks: Mapping[str, Schema]) -> Iterator[str]:
    block = blocks[name]
    if name:
        yield f"### {name}\n"
        yield _markdown(block.get("description", "")) + "\n"
    yield "| field | value | default | meaning |\n|---|---|---|---|"
    for field, value in block["properties"].items():
        if field != "source" or field in block.get("required", ()):
            meaning = " ".join(_meaning(value, blocks).split())
            default = _default(field, value, block.get("required", ()))
            cells = (f"`{field}`", _values(value), default, _markdown(meaning))
            yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
    yield ""


def _stacks() -> Iterator[str]:
    """Where the facts of each shipped stack are."""
    yield f"Shipped: {', '.join(STACKS)}. [What each does](stacks.md), and how that is known.\n"


_STACKS_TITLE = """\
# Every stack

Written by `make generated` from `simulator/facts/stacks`; do not edit it here. A *stack* says what
a training framework does by default. A fact that a stack does not list has the value of the first
table. A plan changes facts in place, as in `plan: {stack: {base: torchtitan, fused_rotary:
false}}`; [Every field](fields.md#stack) says what each of them means.

Evidence is *documentation* (code or a page of that release), *measurement of its own*, *residuals*
(found or fitted with errors of published runs in view) or *assumed*.
"""


def stacks_page() -> str:
    """Every fact of every stack beside its evidence."""
    blank = Stack(description="")
    lines = [_STACKS_TITLE, "| stack | stands for |\n|---|---|"]
    lines += [f"| [`{name}`](#{name}) | {stack.description} |" for name, stack in STACKS.items()]
    lines += ["\n## What a stack does unless it says otherwise\n", "| fact | value |\n|---|---|"]
    lines += [f"| `{f}` | {v} |" for f, v in _facts(blank).items() if f != "description"]
    lines += _release_lines()
    for name, stack in STACKS.items():
        lines += [f"\n## {name}\n", f"{stack.description}.\n"]
        lines.append("| fact | value | evidence |\n|---|---|---|")
        facts = _facts(stack)
        for fact, (source, reference, _) in evidence_of_stack(name).items():
            why = f"*{source}*{': ' if reference else ''}{reference}".replace("|", "&#124;")
            lines.append(f"| `{fact}` | {facts[fact]} | {why} |")
    return "\n".join(lines) + "\n"


def _release_lines() -> Iterator[str]:
    """Which releases are known, and which facts differ between them."""
    yield "\n## Releases\n"
    yield (
        '`plan: {stack: megatron-core@0.14, libraries: {torch: "2.8"}}` names releases; where it '
        "names none they are the newest, or those of a framework's time.\n"
    )
    yield "| framework or library | known releases |\n|---|---|"
    for library, known in shipped_facts("releases").items():
        yield f"| {library} | {', '.join(known['releases'])} |"
    yield "\n| stack | facts | hold | evidence |\n|---|---|---|---|"
    for name in STACKS:
        for group in shipped_facts(f"stacks/{name}")["facts"]:
            bounds = [f"{key} {group[key]}" for key in ("since", "before") if key in group]
            if bounds:
                values = json.dumps(group["values"])
                named = ", where it is named" if "only_named" in group else ""
                when = f"{bounds[0]} of {group.get('library', name)}{named}"
                yield f"| `{name}` | `{values}` | {when} | {group['reference']} |"


def _facts(stack: Stack) -> dict[str, str]:
    """What a file would say, by the name of the fact."""
    facts = stack.model_dump(by_alias=True).items()
    return {name: f"`{json.dumps(value).strip(chr(34))}`" for name, value in facts}


def _meaning(value: Schema, blocks: Mapping[str, Schema]) -> str:
    """What the field is for, or else what its block is."""
    if "description" in value:
        return str(value["description"])
    if "$ref" in value:
        return _meaning(blocks[value["$ref"].rpartition("/")[2]], blocks)
    options = (_meaning(option, blocks) for option in value.get("anyOf", ()))
    return next((meaning for meaning in options if meaning), "")


def _values(value: Schema) -> str:
    """Which values a field takes, in words."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        if name == "Job":
            return "[a job](#the-job)"
        return f"[{name}](#{name.lower()})" if name != "ModelChanges" else "`{base: NAME, …}`"
    if "anyOf" in value:
        options = [
            _values(o) for o in value["anyOf"] if o.get("type") != "null" and not _sourced(o)
        ]
        return " or ".join(dict.fromkeys(options))
    if "enum" in value:
        return ", ".join(f"`{option}`" for option in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    return _plain_values(value)


def _sourced(option: Schema) -> bool:
    """Whether it is a number of a profile with its source beside it; any number may have one."""
    return set(option.get("properties", ())) == {"value", "source"}


def _plain_values(value: Schema) -> str:
    match value:
        case {"type": "integer" | "number" as kind}:
            return _number(value, "whole number" if kind == "integer" else "number")
        case {"type": "array"}:
            return _list_values(value)
        case {"type": "object"}:
            return _object_values(value)
        case {"type": "boolean"}:
            return "true, false"
        case {"examples": [example, *_]}:
            return f"such as `{example}`"
    return "a file.csv" if "csv" in value.get("pattern", "") else "text"


def _list_values(value: Schema) -> str:
    if "items" in value:
        return f"list of {_values(value['items'])}"
    items = value["prefixItems"]
    return f"`[{', '.join('…' for _ in items)}]`, each {_values(items[0])}"


def _object_values(value: Schema) -> str:
    named = value["additionalProperties"]
    if named:
        return f"by name: {_values(named)}"
    return f"`{{{', '.join(f'{field}: …' for field in value['properties'])}}}`"


def _number(value: Schema, kind: str) -> str:
    least = value.get("minimum", value.get("exclusiveMinimum", 0))
    sign = ">" if "exclusiveMinimum" in value else "≥"
    # Bounds that only a slip of the pen reaches say nothing to a reader.
    most = f", ≤ {value['maximum']:g}" if value.get("maximum", _FAR) < _FAR else ""
    return f"{kind} {sign} {least:g}{most}"


def _default(field: str, value: Schema, required: tuple[str, ...]) -> str:
    if field in required:
        return "required"
    options = (value, *value.get("anyOf", ()))
    said = next((option for option in options if "default" in option), {})
    default = said.get("default")
    if default is None or default == "" or isinstance(default, dict | list):
        return ""
    if "examples" in said:
        unit = said["examples"][0].partition(" ")[2]
        dimension = next(name for name, units in UNITS.items() if unit in units)
        return f"`{format_quantity(default, dimension)}`"
    return f"`{json.dumps(default).strip(chr(34))}`"


def api_page() -> str:
    """Everything that a script may use."""
    lines = [_API_TITLE, "## Functions\n"]
    for name, function in FUNCTIONS.items():
        lines.extend(_function(f"sim.{name}", function, "###"))
    lines.append("## Classes\n")
    for name, kind in CLASSES.items():
        lines.extend(_class(f"sim.{name}", kind))
    lines.append("## Answers\n")
    for kind in ANSWERS:
        lines.extend(_answer(kind))
    lines.append("## Parts of a result\n")
    for kind in PARTS:
        lines.extend(_class(kind.__name__, kind))
    lines.append("## Errors\n\nFrom `simulator.errors`; everything else that escapes is a bug.\n")
    for name, kind in MISTAKES.items():
        lines.extend(_class(name, kind))
    return "\n".join(lines)


def _function(name: str, function: Any, level: str) -> Iterator[str]:
    yield f"{level} {name.rpartition('.')[2] if level == '####' else name}\n"
    yield f"    {name}{_signature(function)}\n"
    yield _docstring(function) + "\n"


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [p for name, p in signature.parameters.items() if name != "self"]
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(signature.replace(parameters=parameters)))


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"### {name}\n"
    yield _docstring(kind) + "\n"
    if kind is simulator.Result:
        yield f"{_attributes_of(StepResult)}\n"
    for member, value in _public_members(kind):
        if isinstance(value, property):
            yield f"#### {member}\n"
            yield _docstring(value.fget) + "\n"
        else:
            yield from _function(f"{name.rpartition('.')[2].lower()}.{member}", value, "####")


def _answer(kind: type) -> Iterator[str]:
    """What one kind of answer adds to what all of them have, and its table."""
    yield f"### {kind.__name__}\n"
    yield _docstring(kind) + "\n"
    yield f"**Table** {_markdown(inspect.getdoc(kind.to_frame) or '')}\n"
    shared = vars(simulator.Answer)
    for member, value in _public_members(kind):
        if member in shared:
            continue
        if isinstance(value, property):
            yield f"- `{member}`: {_markdown(inspect.getdoc(value.fget) or '')}\n"
        else:
            yield f"- `{member}{_signature(value)}`: {_docstring(value)}\n"


def _attributes_of(kind: type) -> str:
    """The section ``Attributes`` of a class alone, which has to say all of them."""
    _, sections = _sections(inspect.getdoc(kind) or "")
    named = re.findall(r"^([\w, ]+):", sections.get("Attributes", ""), flags=re.MULTILINE)
    names = {name for entry in named for name in entry.split(", ")}
    missing = [f.name for f in fields(kind) if f.name not in names]
    assert not missing, f"{kind.__name__} says nothing of {missing}"
    return _items("Attributes", sections["Attributes"])


def _public_members(kind: type) -> Iterator[tuple[str, Any]]:
    for base in (kind, *(b for b in kind.__mro__[1:] if b is StepResult)):
        for name, value in vars(base).items():
            is_ours = inspect.isfunction(value) or isinstance(value, property)
            if is_ours and not name.startswith(("_", "model_")):
                yield name, value


_SECTION = re.compile(
    r"^(Args|Attributes|Returns|Raises|Source|Ignores|Example):\n((?:(?: {4}.*)?\n?)+)",
    flags=re.MULTILINE,
)


def _sections(text: str) -> tuple[str, dict[str, str]]:
    """What stands before the sections of a Google docstring, and each section."""
    found = {m[1]: textwrap.dedent(m[2]).strip() for m in _SECTION.finditer(text)}
    return _SECTION.sub("", text).strip(), found


def _docstring(thing: Any) -> str:
    text, sections = _sections(inspect.getdoc(thing) or "")
    parts = [_markdown(text)]
    parts.extend(_items(name, body) for name, body in sections.items())
    return "\n\n".join(parts)


def _items(name: str, body: str) -> str:
    if name == "Example":
        return "**Example**\n\n" + "\n".join(f"    {line}" for line in body.splitlines())
    if name in ("Returns", "Source", "Ignores"):
        return f"**{name}** {_markdown(' '.join(body.split()))}"
    entries = re.split(r"\n(?=\S)", body)
    named = (" ".join(entry.split()).partition(": ") for entry in entries)
    bullets = [f"- `{what}`: {_markdown(words)}" for what, _, words in named]
    return f"**{name}**\n\n" + "\n".join(bullets)


def _markdown(text: str) -> str:
    """The text of a docstring as Markdown."""
    text = re.sub(r":\w+:`(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return re.sub(r"``(.+?)``", r"`\1`", text)


def write_pages() -> None:
    """All generated pages, as the code is now."""
    API_PAGE.write_text(api_page(), encoding="utf-8")
    FIELDS_PAGE.write_text(fields_page(), encoding="utf-8")
    SERVING_FIELDS_PAGE.write_text(serving_fields_page(), encoding="utf-8")
    STACKS_PAGE.write_text(stacks_page(), encoding="utf-8")
    MODELS_PAGE.write_text(models_and_systems_page(), encoding="utf-8")
    COMMANDS_PAGE.write_text(commands_page(), encoding="utf-8")


if __name__ == "__main__":
    write_pages()
