"""What do all specifications have in common?

They are frozen pydantic models that refuse unknown fields. Python names carry the SI
unit (``memory_bytes``); the name in files drops it (``memory: 80 GiB``), because there
the value itself carries the unit. Counts and flags are strict: ``"8"`` is not 8, and
``yes`` is not a count.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from simulator.units import UNITS, format_quantity, parse_quantity

_SUFFIXES = tuple(sorted((f"_{d}" for d in UNITS), key=len, reverse=True))


def file_name_of_field(name: str) -> str:
    """Field name as written in files: without its unit suffix."""
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


class Spec(BaseModel):
    """Base of everything a user says: immutable, complete, no unknown fields."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=file_name_of_field,
        populate_by_name=True,
        protected_namespaces=(),
        # Most commands use few of them, and what a schema says of a field is read when asked.
        defer_build=True,
    )


def _quantity(dimension: str, example: str, *, is_positive: bool = False) -> Any:
    def parse(value: object) -> float:
        if not isinstance(value, str):
            raise ValueError(f'a quantity needs its unit; for example "{example}"')
        return parse_quantity(value, dimension)

    return (
        BeforeValidator(parse),
        Field(gt=0, allow_inf_nan=False) if is_positive else Field(ge=0, allow_inf_nan=False),
        PlainSerializer(lambda value: format_quantity(value, dimension), return_type=str),
        WithJsonSchema({"type": "string", "examples": [example]}),
    )


Bytes = Annotated[float, *_quantity("bytes", "80 GiB")]
BytesPerSecond = Annotated[float, *_quantity("bytes_per_s", "450 GB/s")]
SomeBytes = Annotated[float, *_quantity("bytes", "80 GiB", is_positive=True)]
"""A size that something is divided by."""
SomeBytesPerSecond = Annotated[float, *_quantity("bytes_per_s", "450 GB/s", is_positive=True)]
SomeFlopPerSecond = Annotated[float, *_quantity("flop_per_s", "989 TFLOP/s", is_positive=True)]
SomeHertz = Annotated[float, *_quantity("hz", "1830 MHz", is_positive=True)]
Seconds = Annotated[float, *_quantity("s", "2.5 us")]
LongSeconds = Annotated[float, *_quantity("s", "30 min")]
"""A time that people and machines spend, beside those of kernels and links."""
Watts = Annotated[float, *_quantity("w", "700 W")]
Usd = Annotated[float, *_quantity("usd", "30000 USD")]
UsdPerSecond = Annotated[float, *_quantity("usd_per_s", "2.5 USD/h")]
UsdPerJoule = Annotated[float, *_quantity("usd_per_j", "0.1 USD/kWh")]
KilogramsPerJoule = Annotated[float, *_quantity("kg_per_j", "57 g/kWh")]

_MOST = 2**40
_MOST_RANKS = 2**24
_MOST_WIDTH = 2**24
_MOST_LAYERS = 10_000
_MOST_EXPERTS = 2**16


def _whole(least: int, most: int) -> Any:
    return Field(strict=True, ge=least, le=most)


Count = Annotated[int, _whole(1, _MOST)]
"""A whole number, one or more. Like all that follow it has a bound far above what anyone has, so
that a slip of the pen is refused before it takes the machine's memory."""

CountOrZero = Annotated[int, _whole(0, _MOST)]
"""A whole number, zero or more."""

Ranks = Annotated[int, _whole(1, _MOST_RANKS)]
"""GPUs, or ranks of a group."""

RanksOrZero = Annotated[int, _whole(0, _MOST_RANKS)]
"""The same, or none."""

Width = Annotated[int, _whole(1, _MOST_WIDTH)]
"""Elements of one dimension of a weight."""

WidthOrZero = Annotated[int, _whole(0, _MOST_WIDTH)]
"""The same, or none."""

Layers = Annotated[int, _whole(1, _MOST_LAYERS)]
"""Layers of a model."""

LayersOrZero = Annotated[int, _whole(0, _MOST_LAYERS)]
"""The same, or none."""

ExpertCount = Annotated[int, _whole(1, _MOST_EXPERTS)]
"""Experts of a layer, or groups of them."""

ExpertCountOrZero = Annotated[int, _whole(0, _MOST_EXPERTS)]
"""The same, or none."""

ZeroStage = Annotated[int, _whole(0, 3)]
"""What data-parallel ranks shard: 0 nothing, 1 optimizer states, 2 and gradients, 3 and
parameters."""

Flag = Annotated[bool, Field(strict=True)]
"""true or false, nothing that merely looks like it."""

Fraction = Annotated[float, Field(strict=True, ge=0, le=1)]
"""A share between 0 and 1."""

PositiveFraction = Annotated[float, Field(strict=True, gt=0, le=1)]
"""A share above 0, of something that is divided by it."""

MOST_RATIO = 1e6

Ratio = Annotated[float, Field(strict=True, gt=0, le=MOST_RATIO, allow_inf_nan=False)]
"""A positive plain number."""
