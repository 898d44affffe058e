"""How is a foreign configuration read so that nothing in it is overlooked, and reported?

A :class:`ForeignConfig` hands out values by key, checks their types and writes down which keys
were read, which were missing and which defaults applied. A *reader* is a function from such a
configuration to one value; a family of files is described by a table from field to reader. An
:class:`ImportReport` says what became of every key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.errors import Fault

Reader = Callable[["ForeignConfig"], Any]
"""Takes one value out of a configuration."""

Table = Mapping[str, Any]
"""Field of a specification -> reader, plain value, or a table for a nested field."""


class ForeignConfig:
    """A nested mapping that records what is read from it.

    Attributes:
        faults: Missing keys and values of wrong type.
        assumed: Sentences on defaults that applied.
        unsupported: Sentences on settings that are not modelled.
        field: Path of the field that is being read.
        key_of_field: Key that each field was read from.
    """

    def __init__(self, values: Mapping[str, Any], family: str) -> None:
        """Start reading ``values``, which messages call a ``family`` model."""
        self._values = values
        self._family = family
        self.faults: list[Fault] = []
        self.assumed: list[str] = []
        self.unsupported: list[str] = []
        self._read: dict[str, None] = {}
        self.field: tuple[str, ...] = ()
        self.key_of_field: dict[tuple[str, ...], str] = {}

    def get(self, key: str) -> Any:
        """Value under a dotted key, or None where the key is missing or null."""
        top, _, rest = key.partition(".")
        value = self._values.get(top)
        if top in self._values:
            self._read[top] = None
        for part in rest.split(".") if rest else ():
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def states(self, key: str) -> bool:
        """Whether a top-level key is there at all, null included."""
        return key in self._values

    def take(self, keys: tuple[str, ...], kind: type, default: Any) -> Any:
        """Value of the first key present; the default, noted, where none is.

        A default of None makes the value obligatory. A wrong type or a missing
        obligatory value becomes a fault, and None is returned.
        """
        # All of them are read first, so that an unused second spelling is no unknown key.
        for key, value in [(key, self.get(key)) for key in keys]:
            if value is None:
                continue
            self.key_of_field.setdefault(self.field, key)
            if type(value) is kind or (kind is float and type(value) is int):
                return value
            self.faults.append(Fault(key, f"must be {_WORDS[kind]}", value))
            return None
        if default is None:
            hint = f"or one of {', '.join(keys[1:])}" if keys[1:] else ""
            self.faults.append(
                Fault(keys[0], f"is needed to read a {self._family} model", hint=hint)
            )
        elif not self.states(keys[0]):
            self.assumed.append(f"{keys[0]} is missing: the default of {self._family} applies")
        return default

    @property
    def read_keys(self) -> tuple[str, ...]:
        """Top-level keys that were read, in order."""
        return tuple(self._read)

    @property
    def unread(self) -> dict[str, Any]:
        """Top-level keys that nothing has read, with their values."""
        return {key: value for key, value in self._values.items() if key not in self._read}


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
}


def read_table(config: ForeignConfig, table: Table, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Values of all fields of a table; faults are collected in ``config``.

    Args:
        config: What is read from.
        table: Field -> reader, plain value, or table.
        path: Field that the table describes; empty for the whole specification.
    """
    values: dict[str, Any] = {}
    for field, entry in table.items():
        config.field = (*path, field)
        if isinstance(entry, Mapping):
            values[field] = read_table(config, entry, config.field)
        else:
            values[field] = entry(config) if callable(entry) else entry
    return values


def count(*keys: str, default: int | None = None) -> Reader:
    """Reader of a whole number; obligatory without a default."""
    return lambda config: config.take(keys, int, default)


def flag(*keys: str, default: bool | None = None) -> Reader:
    """Reader of true or false; obligatory without a default."""
    return lambda config: config.take(keys, bool, default)


def inverse(reader: Reader) -> Reader:
    """Reader of the opposite of a flag."""

    def read(config: ForeignConfig) -> bool | None:
        value = reader(config)
        return None if value is None else not value

    return read


def scaled(reader: Reader, factor: Reader | int) -> Reader:
    """Reader of a product; 0 where one factor is missing (its fault is noted already)."""

    def read(config: ForeignConfig) -> int:
        other = factor(config) if callable(factor) else factor
        return int((reader(config) or 0) * (other or 0))

    return read


def first_positive(*readers: Reader) -> Reader:
    """Reader of the first value above zero, or of the last one."""

    def read(config: ForeignConfig) -> Any:
        value = None
        for reader in readers:
            value = reader(config)
            if value:
                break
        return value

    return read


def word(*keys: str, meanings: Mapping[str, str], default: str, otherwise: str) -> Reader:
    """Reader of a text that stands for one of our words.

    Args:
        keys: Where the text stands; the first key present counts.
        meanings: Our word for each known text.
        default: Text that applies where no key is present.
        otherwise: Our word for unknown texts, which are reported as not modelled.
    """

    def read(config: ForeignConfig) -> str | None:
        text = config.take(keys, str, default)
        if text is None:
            return None
        if text not in meanings:
            config.unsupported.append(f"{keys[0]} {text!r} is unknown; read as {otherwise}")
        return meanings.get(text, otherwise)

    return read


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Every setting of a foreign file, sorted by what became of it.

    Attributes:
        source: What was read.
        understood: Keys whose values are in the specification.
        ignored: Keys that change neither time nor memory of training.
        assumed: Sentences on what was taken for granted because the file does not set it.
        unsupported: Sentences on settings that do cost something and are not modelled.
    """

    source: str
    understood: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the report as text for a terminal, without empty sections."""
        sections: dict[str, tuple[str, ...]] = {
            "understood": _joined(self.understood),
            "ignored, has no cost": _joined(self.ignored),
            "assumed": self.assumed,
            "not modelled": self.unsupported,
        }
        lines = [f"read {self.source}"]
        for title, sentences in sections.items():
            lines += [f"{title}:", *(f"  {s}" for s in sentences)] if sentences else []
        return "\n".join(lines)


def _joined(keys: tuple[str, ...]) -> tuple[str, ...]:
    return (", ".join(keys),) if keys else ()
