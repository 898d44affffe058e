"""How many parameters has the network of a ``config.json``, part by part?

The tables of ``simulator/facts/networks`` say of each ``model_type`` of Hugging Face transformers
which parts its causal language model has and how many parameters each of them, as formulas over
the keys of the configuration. A key that a file leaves out has the default of the configuration
class (``networks/defaults.yaml``). Buffers, such as rotary tables and the balancing terms of
routers, are no parameters; tied matrices count once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from simulator.described.huggingface.formulas import names_in_formula, value_of_formula
from simulator.errors import InputError, UnsupportedError
from simulator.facts import fact_files, shipped_facts

_MAX_LAYERS = 10_000
"""More layers are refused, as :class:`~simulator.described.model.Model` does."""

_LAYER = "layer"
"""Name of the layer's index, counted from 0, in formulas of parts that every layer has."""

_WHOLE = "whole"
"""Name of the whole configuration, in formulas over one that stands inside it."""

_ACTIVE = "active_"
"""Before the name of a part: what of it one token passes through, where that is not all."""

_WAY_OUT = "add --with-transformers to count it with an installed transformers"


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters of a network.

    Attributes:
        network: The class of transformers that was counted, or the name of a model of ours.
        by_part: Parameters of every part that has some, by its name.
        active_by_part: Of these, those that one token passes through.
    """

    network: str
    by_part: Mapping[str, int]
    active_by_part: Mapping[str, int]

    @property
    def parameters(self) -> int:
        """All parameters."""
        return sum(self.by_part.values())

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes through, embedding and head in full."""
        return sum(self.active_by_part.values())


def network_names() -> tuple[str, ...]:
    """Every ``model_type`` whose parameters are counted."""
    return tuple(_defaults()["types"])


def network_count(config: Mapping[str, Any], origin: str = "") -> ParameterCount:
    """Parameters of the causal language model that transformers builds of a configuration.

    Args:
        config: The parsed ``config.json``.
        origin: The file, for messages.

    Raises:
        UnsupportedError: The ``model_type`` has no table.
        InputError: A key is missing or has a value that no network has.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in network_names():
        rule = "is not a network with known parameters"
        raise UnsupportedError.single("model_type", rule, family, _WAY_OUT, origin)
    _refuse_unknown_layers(config, origin)
    network = _Network(family, config, origin)
    each_layer = range(network.layers)
    once, repeated = network.value("once"), network.value("each")
    by_part, active = (
        {part: network.numel(prefix, part) for part in once}
        | {
            part: sum(network.numel(prefix, part, index) for index in each_layer)
            for part in repeated
        }
        for prefix in ("", _ACTIVE)
    )
    if not any(by_part.values()):
        rule = "the configuration describes a network without parameters"
        raise InputError.single("", rule, hint="correct its sizes", file=origin)
    return ParameterCount(
        network=_defaults()["types"][family]["class"],
        by_part={part: numel for part, numel in by_part.items() if numel},
        active_by_part={part: numel for part, numel in active.items() if by_part[part]},
    )


def default_keys(family: str) -> Mapping[str, Any]:
    """What keys are where a file of this ``model_type`` leaves them out."""
    keys: Mapping[str, Any] = _defaults()["types"][family].get("keys", {})
    return keys


def decisive_keys(config: Mapping[str, Any]) -> Iterator[str]:
    """Keys whose values make the network of a known ``model_type`` another than its default."""
    family = config.get("model_type")
    if family not in network_names():
        return
    defaults = default_keys(str(family))
    for key in formula_names(str(family)):
        value, default = config.get(key), defaults.get(key)
        if value is not None and value != default and (value or default):
            yield key


class _Network:
    """The table of a family, evaluated over the keys of one configuration."""

    def __init__(self, family: str, config: Mapping[str, Any], origin: str) -> None:
        self._family = family
        self._table = _table(family)
        inside: str = self._table.get("inside", "")
        nested = config.get(inside, {}) if inside else config
        if not isinstance(nested, Mapping):
            raise InputError.single(inside, "must be a mapping", nested, file=origin)
        self._config = {**_towers(config), _WHOLE: config, **nested} if inside else nested
        self._class = _defaults()["types"][family]
        self._origin = origin
        older = [key for key in self._class.get("older", ()) if self._config.get(key) is not None]
        if older:
            rule = "is of an older release and is not supported"
            raise UnsupportedError.single(older[0], rule, self._config[older[0]], _WAY_OUT, origin)
        self._known: dict[tuple[str, int | None], Any] = {}
        self._reading: list[str] = []

    @property
    def layers(self) -> int:
        layers = self._found("layers", None)
        if type(layers) is not int or not 0 < layers <= _MAX_LAYERS:
            rule = f"must be a whole number from 1 to {_MAX_LAYERS}"
            raise InputError.single("num_hidden_layers", rule, layers, file=self._origin)
        return layers

    def numel(self, prefix: str, part: str, layer: int | None = None) -> int:
        """Parameters of a part, of one layer if it is of layers; active ones with that prefix."""
        numel = self._found(prefix + part if prefix + part in self._table else part, layer)
        if not isinstance(numel, int) or numel < 0:
            rule = f"the configuration gives its {part} {str(numel)[:40]} parameters"
            raise InputError.single("", rule, hint="correct its sizes", file=self._origin)
        return int(numel)

    def _found(self, name: str, layer: int | None) -> Any:
        """Value of a name.

        Raises:
            InputError: The configuration does not say what it takes.
        """
        try:
            return self.value(name, layer)
        except (ArithmeticError, LookupError, TypeError, AttributeError, ValueError) as error:
            rule = f"the configuration does not say what its {name} needs ({error})"
            raise InputError.single("", rule, hint=_WAY_OUT, file=self._origin) from error

    def value(self, name: str, layer: int | None = None) -> Any:
        """Value of a name: the layer, a definition of the table, or a key of the configuration.

        In its own definition a name is the key.
        """
        if name == _LAYER:
            return layer
        if name not in self._table or name in self._reading:
            return self._key(name)
        if name not in _names_of_layers(self._family):
            layer = None
        if (name, layer) not in self._known:
            entry = self._table[name]
            self._reading.append(name)
            try:
                self._known[name, layer] = (
                    value_of_formula(entry, lambda each: self.value(each, layer))
                    if isinstance(entry, str)
                    else entry
                )
            finally:
                self._reading.pop()
        return self._known[name, layer]

    def _key(self, key: str) -> Any:
        also = self._class.get("also", {})
        others = [other for other, known in also.items() if known == key]
        stated = [self._config[each] for each in (key, *others) if each in self._config]
        default = default_keys(self._family).get(key)
        if not stated:
            return default
        # A key that is null has no default: its class gets the null.
        value = next((each for each in stated if each is not None), None)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            return {**default, **value}
        return value


def _towers(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configurations of the networks that stand beside the language model."""
    return {key: value for key, value in config.items() if key.endswith("_config")}


def _refuse_unknown_layers(config: Mapping[str, Any], origin: str) -> None:
    stated = config.get("layer_types")
    kinds = stated if isinstance(stated, list) else []
    unknown = [each for each in kinds if each not in _defaults()["layer_types"]]
    if unknown:
        rule = f"{unknown[0]!r} is not a known kind of layer"
        raise UnsupportedError.single("layer_types", rule, stated, _WAY_OUT, origin)


def table_names() -> tuple[str, ...]:
    """Every table: those of a ``model_type``, and those that others start from."""
    return tuple(_tables())


def definition(family: str, name: str) -> Any:
    """What a table says under a name, or None."""
    return _table(family).get(name)


def formula_names(family: str) -> frozenset[str]:
    """Names in the formulas of a table: keys of a configuration, and definitions."""
    formulas = [
        entry
        for name, entry in _table(family).items()
        if isinstance(entry, str) and name != "inside"
    ]
    return frozenset().union(*map(names_in_formula, formulas)) - {_LAYER}


@cache
def _names_of_layers(family: str) -> frozenset[str]:
    """Definitions whose value may be another in each layer."""
    formulas = {
        name: names_in_formula(entry)
        for name, entry in _table(family).items()
        if isinstance(entry, str) and name != "inside"
    }
    known, before = frozenset({_LAYER}), frozenset[str]()
    while known != before:
        before, known = known, known.union(n for n, used in formulas.items() if used & known)
    return known


@cache
def _table(family: str) -> dict[str, Any]:
    """The definitions of a family, those of the tables that it is like included."""
    entries = _tables()[family]
    table: dict[str, Any] = {}
    for base in entries.get("like", ()):
        table |= _table(base)
    return table | {name: entry for name, entry in entries.items() if name != "like"}


@cache
def _tables() -> dict[str, Mapping[str, Any]]:
    names = [name for name in fact_files("networks") if name != "defaults"]
    return {
        family: entries or {}
        for name in names
        for family, entries in shipped_facts(f"networks/{name}")["tables"].items()
    }


def _defaults() -> Mapping[str, Any]:
    defaults: Mapping[str, Any] = shipped_facts("networks/defaults")
    return defaults
