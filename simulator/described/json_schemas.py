"""Which fields may a job, profile or model file have, as a JSON schema for editors?

The specifications describe their own fields. Added here is what only files have: sources
beside the numbers of a profile, names instead of blocks, and partial blocks that override
a profile or a base model. Rules between fields are beyond a schema; loading checks them.
"""

from __future__ import annotations

import ast
import copy
import inspect
import itertools
from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from simulator.described.base import Spec
from simulator.described.cluster.hardware import HardwareProfile, Provenance
from simulator.described.job import Job
from simulator.described.model import Model
from simulator.described.plan.shipped_stacks import STACKS

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def model_schema() -> Schema:
    """JSON schema of a model file."""
    return {"$schema": DIALECT, **schema_of(Model)}


def profile_schema() -> Schema:
    """JSON schema of a hardware profile file."""
    schema = _without_provenance(schema_of(HardwareProfile))
    blocks = schema["$defs"]
    for name in _FILLED_IN_ELSEWHERE:
        blocks[name] = _partial(blocks[name])
    for block in [schema, *blocks.values()]:
        _allow_sources(block, blocks)
    blocks["Provenance"] = schema_of(Provenance)
    return {"$schema": DIALECT, **schema}


def job_schema() -> Schema:
    """JSON schema of a job file."""
    schema = schema_of(Job)
    blocks = schema["$defs"]
    properties = schema["properties"]
    overrides = _without_required(profile_schema())
    blocks |= overrides["$defs"]
    changed = blocks["Model"]["properties"] | {"base": {"type": "string", "description": _BASE}}
    blocks["ModelChanges"] = _partial(blocks["Model"]) | {
        "properties": changed,
        "required": ["base"],
    }
    for nested in ("LatentAttention", "StateSpace", "Experts"):
        blocks[nested] = _partial(blocks[nested])
    properties["model"] = {
        "anyOf": [
            {"type": "string", "description": _MODEL},
            {"$ref": "#/$defs/Model"},
            {"$ref": "#/$defs/ModelChanges"},
        ]
    }
    named_or_none = [*properties["model"]["anyOf"], {"type": "null"}]
    properties["reference"] = properties["reference"] | {"anyOf": named_or_none}
    blocks["Stack"] = _partial(blocks["Stack"])
    blocks["Stack"]["properties"]["base"] = {"type": "string", "description": _STACK}
    blocks["Plan"]["properties"]["stack"] = {
        "anyOf": [{"type": "string", "description": _STACK}, {"$ref": "#/$defs/Stack"}]
    }
    cluster, pool = blocks["Cluster"], blocks["Pool"]
    pools = cluster["properties"]["pools"] | {"minItems": 1}
    pool["properties"] = {
        "profile": {"type": "string", "description": _PROFILE},
        "gpus": pool["properties"]["gpus"],
        **overrides["properties"],
    }
    cluster["properties"] = {**pool["properties"], "pools": pools}
    cluster["anyOf"] = [{"required": cluster.pop("required")}, {"required": ["pools"]}]
    blocks.pop("HardwareProfile")
    return {"$schema": DIALECT, **schema}


_FILLED_IN_ELSEWHERE = ("KernelModel", "GemmModel", "AttentionModel", "Common")
"""Blocks whose numbers a profile may leave to the architecture that its device names, or to what
holds on every system."""
_MODEL = "A shipped model, or a path to a .yaml file or to a Hugging Face config.json."
_BASE = "A shipped model, or a path; the other fields change it."
_STACK = (
    f"A framework: {', '.join(STACKS)}, with @ and a release if not the newest; "
    "in a block, the other fields change it."
)
_PROFILE = "A shipped hardware profile, or a path to a .yaml file. Other fields override it."


def schema_of(spec: type[Spec]) -> Schema:
    """What a specification says of itself, its fields described."""
    return spec.model_json_schema(by_alias=True, schema_generator=_WithFieldTexts)


class _WithFieldTexts(GenerateJsonSchema):
    """Describes a field by the text that stands below it in the code.

    Pydantic could, but would read the source of every specification at each import.
    """

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """The schema of a block, with its fields described."""
        described, spec = super().model_schema(schema), schema["cls"]
        for name, text in _field_texts(spec).items():
            alias = spec.model_fields[name].alias or name
            described["properties"][alias]["description"] = text
        return described


def _field_texts(spec: type[Spec]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for block in reversed(spec.__mro__):
        if issubclass(block, Spec) and block is not Spec:
            texts |= _texts_below(block)
    return texts


def _texts_below(block: type[Spec]) -> dict[str, str]:
    (definition,) = ast.parse(inspect.getsource(block)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        statement.target.id: inspect.cleandoc(below.value.value)
        for statement, below in itertools.pairwise(definition.body)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(below.value.value, str)
    }


def _without_provenance(schema: Schema) -> Schema:
    """Without the field that holds the sources after loading; files have them in place."""
    schema["properties"].pop("provenance")
    schema["$defs"].pop("Provenance")
    return schema


def _allow_sources(block: Schema, blocks: Mapping[str, Schema]) -> None:
    """Let a block have a source, and each of its numbers one of its own."""
    properties = block.get("properties", {})
    for name, value in properties.items():
        if name not in ("name", "description") and not _is_block(value, blocks):
            properties[name] = {"anyOf": [value, _with_source(value)]}
    properties["source"] = {"$ref": "#/$defs/Provenance"}


def _is_block(value: Schema, blocks: Mapping[str, Schema]) -> bool:
    if "$ref" in value:
        return "properties" in blocks[value["$ref"].rpartition("/")[2]]
    if any(_is_block(option, blocks) for option in value.get("anyOf", ())):
        return True
    if value.get("type") == "object" and isinstance(value.get("additionalProperties"), dict):
        # A mapping of blocks, such as one per number format, may have a source for all.
        value.setdefault("properties", {})["source"] = {"$ref": "#/$defs/Provenance"}
        names = value.get("propertyNames", {}).get("enum")
        if names:
            value["propertyNames"] = {"enum": [*names, "source"]}
        return True
    return False


def _with_source(value: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {"value": copy.deepcopy(value), "source": {"$ref": "#/$defs/Provenance"}},
        "required": ["value", "source"],
        "additionalProperties": False,
    }


def _without_required(schema: Schema) -> Schema:
    """The schema for files that give only some of the fields."""
    blocks = schema["$defs"]
    partial = {name: _partial(block) for name, block in blocks.items() if name != "Provenance"}
    return _partial(schema) | {"$defs": {**blocks, **partial}}


def _partial(block: Schema) -> Schema:
    return {key: value for key, value in block.items() if key != "required"}
