"""How is each setting of a training framework's file accounted for?

:class:`Settings` hands out values by key with their types checked, and remembers which
were read. What nobody has read is sorted by the importer's :class:`Rules`: settings
without cost are reported as ignored, those that the simulator treats in a simpler way as
assumed, and those that cost time or memory and are not modelled are errors, unless the
user says that they may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar, get_args

from simulator.described.foreign_config import ForeignConfig
from simulator.described.plan.stack_options import ExpertExchange
from simulator.errors import Fault
from simulator.facts import shipped_facts
from simulator.importers.interpolation import typed

_T = TypeVar("_T")

_VOCABULARY = "vocab_size"
_LARGEST = 10**18
"""Larger numbers stand in no settings, and products of them in no floating point number."""

OFF: tuple[object, ...] = (None, False, 0, "", "none", "None", "no", "false", "False", "disabled")
"""Values that switch a setting off; empty lists and mappings do too."""


class Settings(ForeignConfig):
    """The settings of one file in a flat mapping, and a record of what was read.

    A missing setting takes the framework's default; it is not noted one by one.

    Attributes:
        left_open: Settings that the file leaves to somebody else ("auto").
    """

    left_open: tuple[str, ...] = ()
    _defaults: Mapping[str, Any] = MappingProxyType({})
    _conditions: Mapping[str, str] = MappingProxyType({})

    def __init__(self, values: Mapping[str, Any], framework: str) -> None:
        """Start reading ``values``, settings of a ``framework``."""
        super().__init__(values, framework)
        self._said = set[tuple[str, ...]]()

    def get(self, key: str) -> Any:
        """Value of a setting, or None where it is missing or null."""
        if key in self._values:
            self._read[key] = None
        value = self._values.get(key)
        return self._defaults.get(key) if value is None else value

    def first(self, *keys: str) -> tuple[str, Any]:
        """First of several spellings that is there, and its value; else None."""
        found = [(key, value) for key in keys if (value := self.get(key)) is not None]
        return found[0] if found else (keys[0], None)

    def whole(
        self,
        *keys: str,
        default: _T = None,  # type: ignore[assignment]
        least: int | None = None,
    ) -> int | _T:
        """A whole number under one of several spellings, or the default.

        Args:
            keys: The spellings.
            default: What holds where the file does not set it, or no whole number.
            least: The smallest number that makes sense, which stands for smaller ones, so that
                one fault does not cause others; by default any number makes sense.
        """
        key, value = self.first(*keys)
        if value is None:
            return default
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or abs(value) > _LARGEST:
            self.fault(key, "must be a whole number", value)
            return default
        if least is not None and value < least:
            self.fault(key, f"must be at least {least}", value)
            return least
        return value

    def number(self, *keys: str, default: float) -> float:
        """A number under one of several spellings, or the default."""
        key, value = self.first(*keys)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and -_LARGEST <= value <= _LARGEST:  # NaN is neither
            return float(value)
        self.fault(key, "must be a number", value)
        return default

    def switch(self, *keys: str, default: bool = False) -> bool:
        """True or false under one of several spellings, or the default."""
        key, value = self.first(*keys)
        if value is None:
            return default
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if isinstance(value, bool):
            return value
        self.fault(key, "must be true or false", value)
        return default

    def assume_whole_sequences(self, *keys: str) -> None:
        """Note that packed documents are simulated as one, where a setting keeps them apart."""
        if self.switch(*keys):
            self.assumed.append(
                "documents that are packed see the whole sequence here, and would see themselves "
                "alone: set batch.document_len to how long they are, for example 2048"
            )

    def words(self, key: str) -> tuple[str, ...] | None:
        """The words of a setting that is one or a list of them; None where it is left out."""
        value = self.get(key)
        if value is None:
            return None
        listed = value if isinstance(value, list) else [value]
        if all(isinstance(each, str) for each in listed):
            return tuple(listed)
        self.fault(key, "must be a word or a list of words", value)
        return None

    def choice(self, *keys: str, meanings: Mapping[Any, _T], default: _T) -> _T:
        """What a word means to us; words without a meaning are faults.

        Args:
            keys: Spellings of the setting; the first that is there counts.
            meanings: Our value for each word that is modelled.
            default: Our value where the setting is left out.
        """
        key, value = self.first(*keys)
        if value is None:
            return default
        if isinstance(value, str | int | bool) and value in meanings:
            return meanings[value]
        known = ", ".join(str(word) for word in meanings)
        self.fault(key, f"is not modelled; known: {known}", value, leave_out(key))
        return default

    def meaning(self, table: str, *keys: str, default: Any) -> Any:
        """What a word means to us by a framework's table of facts, named "framework/table"."""
        return self.choice(*keys, meanings=option_table(*table.split("/")), default=default)

    def named_class(self, key: str, meanings: Mapping[Any, _T]) -> _T | None:
        """What the last part of a dotted name means to us; None where the setting is left out."""
        name = str(self.get(key))
        short = name.rpartition(".")[2]
        known = {name: meanings[short]} if short in meanings else meanings
        return self.choice(key, meanings=known, default=None)

    @property
    def keys(self) -> set[str]:
        """All settings of the file."""
        return set(self._values)

    def define(self, definitions: Mapping[str, str]) -> None:
        """Take the user's word for what the file leaves open.

        That is the value of a setting whose text a running shell or program would complete, and
        ``vocab_size``, which tokenizers keep in files of their own.
        """
        size = definitions.get(_VOCABULARY, "")
        said: dict[str, Any] = {_VOCABULARY: int(size)} if re.fullmatch(r"[0-9]{1,9}", size) else {}
        said |= {
            key: typed(definitions[key])
            for key, value in self._values.items()
            if key in definitions and _is_open(value)
        }
        self._values = {**self._values, **said}

    def wait_for(self, conditions: Mapping[str, str]) -> None:
        """Take the conditions on which a script gives variables their values.

        Whoever defines what a condition asks for answers for all variables that wait for it.
        """
        self._conditions = dict(conditions)

    def add_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Take a framework's values of what the file leaves out; they are none of its settings."""
        self._defaults = {**self._defaults, **defaults}

    def replace(self, values: Mapping[str, Any]) -> None:
        """Take other values for settings, read or not."""
        self._values = {**self._values, **values}

    def pass_over(self, pattern: str) -> None:
        """Count settings whose names a pattern fits as read: another word replaces them."""
        for key in self._values:
            if re.fullmatch(pattern, key):
                self.get(key)

    def section(self, name: str) -> dict[str, Any]:
        """Settings under a dotted name, without it; they count as read."""
        inside = [key for key in self._values if key.startswith(f"{name}.")]
        return {key.removeprefix(f"{name}."): self.get(key) for key in inside}

    def forget(self, key: str) -> None:
        """Count a setting as not read after all."""
        self._read.pop(key, None)

    def forgiven(self, allowed: set[str]) -> tuple[str, ...]:
        """Drop the faults of settings that may be left out; returns a sentence on each."""
        dropped = [f for f in self.faults if f.path in allowed and f"--ignore {f.path}" in f.hint]
        self.faults = [fault for fault in self.faults if fault not in dropped]
        return tuple(f"{f.path} = {f.value} is ignored; it {f.rule}" for f in dropped)

    def fault(self, key: str, rule: str, value: object = None, hint: str = "") -> None:
        """Note what is wrong with a setting, once."""
        if _is_open(value):
            names = _open_names(str(value))
            if waits := [self._conditions[name] for name in names if name in self._conditions]:
                rule = f"{rule}, and the file does not decide ({waits[0]})"
                names = _open_names(waits[0])
            else:
                rule = f"{rule}, and the file does not define {', '.join(names) or 'it'}"
            hint = " ".join(f"--define {name}=..." for name in names or (key,))
        said = (key, rule, repr(value), hint)
        if said not in self._said:
            self._said.add(said)
            self.faults.append(Fault(key, rule, value, hint))


def _is_open(value: object) -> bool:
    """Whether only what runs the file knows the value."""
    return isinstance(value, str) and ("$" in value or "`" in value)


def _open_names(text: str) -> tuple[str, ...]:
    """Variables that a text waits for; none where a command or a sum stands in it."""
    if re.search(r"`|\$\(", text):
        return ()
    names = re.findall(r"\$(?:\{(?:oc\.env:)?([\w.]+)|(\w+))", text)
    return tuple(dict.fromkeys(braced or plain for braced, plain in names))


@dataclass(frozen=True, slots=True)
class Cost:
    """A setting that costs time or memory and is not modelled.

    Attributes:
        pattern: Regular expression of its names.
        why: What it costs, in words.
        off: Values that switch it off, besides the usual ones.
    """

    pattern: str
    why: str
    off: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """What becomes of the settings that an importer does not read.

    Attributes:
        costs: What is refused; the first match counts, and it counts before ``free``.
        free: Regular expressions of settings that cost nothing.
        simplified: What the simulator does instead, by regular expression.
    """

    costs: tuple[Cost, ...]
    free: tuple[str, ...]
    simplified: Mapping[str, str]

    def __or__(self, other: Rules) -> Rules:
        """These rules, and where they say nothing, the other ones."""
        simplified = {**other.simplified, **self.simplified}
        return Rules((*self.costs, *other.costs), (*self.free, *other.free), simplified)


@dataclass(frozen=True, slots=True)
class Rest:
    """What became of the settings that an importer did not read.

    Attributes:
        ignored: Keys without cost, or switched off.
        assumed: Sentences on what is simplified.
        unsupported: Sentences on what the user allowed to leave out.
    """

    ignored: tuple[str, ...]
    assumed: tuple[str, ...]
    unsupported: tuple[str, ...]


@cache
def option_rules(framework: str) -> Rules:
    """What becomes of the options of a framework that its importer does not read."""
    facts = shipped_facts(f"importers/{framework}")
    costs = (
        Cost(c["pattern"], c["why"], tuple(c.get("unless", ()))) for c in facts.get("costs", ())
    )
    return Rules(tuple(costs), tuple(facts["free"]), facts.get("simplified", {}))


def option_table(framework: str, name: str) -> Mapping[str, Any]:
    """What the options of a framework mean, by the name of the table in its facts."""
    table: Mapping[str, Any] = shipped_facts(f"importers/{framework}")[name]
    return table


def expert_exchange(settings: Settings, option: str) -> dict[str, str]:
    """Whose kernels pass tokens to experts, as a fact of the stack; none where no option says.

    Frameworks name them as the stack does.
    """
    kernels = str(settings.get(option))
    return {"expert_exchange": kernels} if kernels in get_args(ExpertExchange) else {}


def spellings_table(framework: str, name: str) -> Mapping[str, tuple[str, ...]]:
    """Options that say a field, by the field; the first is today's."""
    table = option_table(framework, name).items()
    return {field: (said,) if isinstance(said, str) else tuple(said) for field, said in table}


def sort_out(settings: Settings, rules: Rules, may_ignore: Iterable[str]) -> Rest:
    """Account for every setting that has not been read; faults go to ``settings``.

    Args:
        settings: What was read, and what was not.
        rules: What costs nothing, and what costs something.
        may_ignore: Settings that the user allows to leave out.
    """
    ignored: list[str] = []
    assumed: list[str] = []
    for key, value in settings.unread.items():
        cost = next((cost for cost in rules.costs if re.fullmatch(cost.pattern, key)), None)
        simpler = [why for name, why in rules.simplified.items() if re.fullmatch(name, key)]
        is_off = value in ([], {}) or value in OFF or (cost is not None and value in cost.off)
        if cost and not is_off:
            settings.fault(key, f"is not modelled: it {cost.why}", value, leave_out(key))
        elif simpler and not is_off:
            assumed.append(f"{key}: {simpler[0]}")
        elif is_off or any(re.fullmatch(name, key) for name in rules.free):
            ignored.append(key)
        else:
            rule = "is unknown, so its cost is unknown"
            settings.fault(key, rule, value, leave_out(key))
    return Rest(tuple(ignored), tuple(assumed), settings.forgiven(plain_names(may_ignore)))


def plain_names(options: Iterable[str]) -> set[str]:
    """Options as settings are named: without dashes in front, with underscores inside."""
    return {option.lstrip("-").replace("-", "_") for option in options}


def leave_out(key: str) -> str:
    """The way out of a setting that is not modelled."""
    return f"remove it from the file, or ignore it: --ignore {key}"
