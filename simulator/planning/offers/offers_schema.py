"""Which fields may a file of offers have, as a JSON schema for editors?

The specification describes its own fields. Added here is what stands in it as in a job file: the
cluster of an offer, and the job of a workload, whose cluster each offer replaces.
"""

from __future__ import annotations

from typing import Any

from simulator.described.json_schemas import DIALECT, job_schema, schema_of
from simulator.planning.offers.offers_file import Offers


def offers_schema() -> dict[str, Any]:
    """JSON schema of a file of offers and workloads."""
    schema, job = schema_of(Offers), job_schema()
    blocks = schema["$defs"]
    blocks |= {name: block for name, block in job["$defs"].items() if name not in blocks}
    blocks["Job"] = {
        "type": "object",
        "description": "A job; its cluster, where it has one, is replaced by each offer's.",
        "properties": {**job["properties"], "cluster": {"type": "object"}},
        "required": [name for name in job["required"] if name != "cluster"],
        "additionalProperties": False,
    }
    cluster = blocks["Cluster"]
    del cluster["properties"]["gpus"]
    cluster["anyOf"] = [{"required": ["profile"]}, {"required": ["pools"]}]
    _describe(blocks["Offer"], "cluster", {"$ref": "#/$defs/Cluster"})
    job_text = {"type": "string"}
    _describe(blocks["Workload"], "job", {"anyOf": [job_text, {"$ref": "#/$defs/Job"}]})
    return {"$schema": DIALECT, **schema}


def _describe(block: dict[str, Any], field: str, values: dict[str, Any]) -> None:
    """Say which values a field takes, and leave its text."""
    text = block["properties"][field]["description"]
    block["properties"][field] = {**values, "description": text}
