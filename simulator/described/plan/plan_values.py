"""What may stand for a rank order, a layout of stages and a schedule in a plan?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import PlainValidator, TypeAdapter, WithJsonSchema

from simulator.described.plan.plan_blocks import WrittenSchedule
from simulator.schedule import SCHEDULES

RANK_ORDER_WORDS = ("tp", "cp", "ep", "dp", "pp")


def known_rank_order(given: str) -> str:
    """The order as given, if it has each word once."""
    if sorted(given.split("-")) != sorted(RANK_ORDER_WORDS):
        words = ", ".join(RANK_ORDER_WORDS)
        raise ValueError(f"must be the words {words} in any order, such as tp-cp-ep-pp-dp")
    return given


def stage_layout(given: object) -> object:
    """The layout as given, if it is a text or a list of numbers of layers."""
    is_list = isinstance(given, list | tuple) and all(
        type(layers) is int and layers >= 0 for layers in given
    )
    if given is None or isinstance(given, str) or is_list:
        return given
    raise ValueError(
        "must be the layers of each virtual stage, such as [3, 4, 4, 3], "
        "or Megatron-Core's string, such as Et*3|(t*4|)*2t*3,L"
    )


def schedule_of(given: object) -> object:
    """A schedule by its name, or as it is written in a file.

    Raises:
        ValidationError: There is none of that name, or the block is no written schedule.
    """
    if isinstance(given, Mapping | WrittenSchedule):
        return WrittenSchedule.model_validate(given)
    return _NAMED_SCHEDULE.validate_python(given)


_NAMED_SCHEDULE: TypeAdapter[str | None] = TypeAdapter(
    Literal[tuple(SCHEDULES)] | None  # type: ignore[arg-type]  # the names of a registry
)

GivenSchedule = Annotated[
    str | WrittenSchedule | None,
    PlainValidator(schedule_of),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(SCHEDULES), "type": "string"},
                {"pattern": r"\.csv$", "type": "string"},
                {"type": "null"},
            ]
        }
    ),
]
