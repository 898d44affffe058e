"""How is a quantity with a unit read from text, and printed for people?

Files and screens speak strings with units ("80 GiB", "400 Gbit/s"); the code
speaks SI floats whose names end in the unit (``memory_bytes``). This module is the
only bridge between the two. Decimal prefixes are powers of 1000 and binary prefixes
powers of 1024, with no exceptions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from fractions import Fraction
from functools import lru_cache

HOUR_S, DAY_S = 3600.0, 86400.0
_MINUTES_FROM_S = 600
"""From here a person reads minutes, not hundreds of seconds."""
_OPEN = 0.001
"""Probabilities nearer to 0 or 1 than this are not told apart."""
J_PER_KWH = 3.6e6

# Factors are exact fractions, so that "2.5 us" is the float nearest to 2.5e-6.
_DECIMAL = {p: Fraction(1000) ** i for i, p in enumerate(["", "k", "M", "G", "T", "P", "E"])}
_BINARY = {p: Fraction(1024) ** i for i, p in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi"], start=1)}
_BYTES = {f"{p}B": f for p, f in (_DECIMAL | _BINARY).items()}
_BITS = {f"{p}bit": f / 8 for p, f in _DECIMAL.items()}
_FLOP = {f"{p}FLOP": f for p, f in _DECIMAL.items()}
_TIME = {
    "d": Fraction(DAY_S),
    "h": Fraction(HOUR_S),
    "min": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "ns": Fraction(1, 10**9),
}

_ROUNDING_S = 1e-12
"""Shorter than anything that happens: what is left of a difference of equal times."""

UNITS: Mapping[str, Mapping[str, Fraction]] = {
    "bytes": _BYTES,
    "bytes_per_s": {f"{u}/s": f for u, f in (_BYTES | _BITS).items()},
    "flop": _FLOP,
    "flop_per_s": {f"{u}/s": f for u, f in _FLOP.items()},
    "s": _TIME,
    "hz": {f"{p}Hz": f for p, f in _DECIMAL.items()},
    "w": {f"{p}W": f for p, f in _DECIMAL.items()},
    "usd": {"USD": Fraction(1), "kUSD": Fraction(1000), "MUSD": Fraction(10**6)},
    "usd_per_s": {"USD/h": Fraction(1, 3600), "USD/s": Fraction(1)},
    "usd_per_j": {"USD/kWh": Fraction(1, 3_600_000), "USD/J": Fraction(1)},
    "kg_per_j": {"g/kWh": Fraction(1, 3_600_000_000), "kg/J": Fraction(1)},
}
"""Factor to SI of every accepted unit, per dimension (named by its SI suffix)."""

_OTHER_SPELLINGS = (
    (r"(?i)flops(/s)?\Z", "FLOP/s"),
    (r"(?<=[a-zA-Z])ps\Z", "/s"),
    (r"(?<=[kKmMgGtTpP])b(?=(/s)?\Z)", "bit"),
    (r"[\u00b5\u03bc]", "u"),
    (r"(?i)\A(days?)\Z", "d"),
    (r"(?i)\A(hours?|hrs?)\Z", "h"),
    (r"(?i)\A(minutes?|mins)\Z", "min"),
    (r"(?i)\A(seconds?|secs?)\Z", "s"),
    (r"(?i)\A(milliseconds?|msecs?)\Z", "ms"),
)
"""How others write units, and how they are written here."""

# Digits and exponents are bounded, because an exact 1e999999999 would never be finished.
_DIGITS = r"[0-9](?:_?[0-9]){0,30}"
_NUMBER = rf"[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?[0-9]{{1,2}})?"
_MORE_NUMBER = r"[0-9_.]|[eE][+-]?[0-9]"
_QUANTITY = re.compile(rf"\s*({_NUMBER})(?!{_MORE_NUMBER})\s*(\S.*?)?\s*\Z")


@lru_cache(maxsize=4096)
def parse_quantity(text: str, dimension: str, example_unit: str = "") -> float:
    """SI value of ``text``, a number and a unit of ``dimension``.

    Args:
        text: For example "450 GB/s"; the unit is obligatory.
        dimension: A key of :data:`UNITS`, for example ``"bytes_per_s"``.
        example_unit: Unit that a message shows; the most common one by default.

    Raises:
        ValueError: The text is no number with a unit of that dimension. The message
            names the accepted units.

    Example:
        >>> parse_quantity("400 Gbit/s", "bytes_per_s")
        50000000000.0
    """
    units = UNITS[dimension]
    match = _QUANTITY.match(text)
    example_unit = example_unit or _typical_unit(dimension)
    wanted = f'a number with a unit such as "1 {example_unit}"'
    if not match:
        raise ValueError(f"{text[:40]!r} is not {wanted}")
    number, unit = match.groups()
    if unit is None:
        wanted = f'a unit behind it, such as "{number} {example_unit}"'
        raise ValueError(f"{text!r} has no unit; write {wanted}")
    if unit not in units:
        meant = _meant_unit(unit, units)
        way_out = f"did you mean {meant!r}?" if meant else f"known: {', '.join(units)}"
        raise ValueError(f"unknown unit {unit!r}; {way_out}")
    return float(Fraction(number) * units[unit])


def _meant_unit(unit: str, units: Collection[str]) -> str | None:
    """The known unit that differs only in how it is spelled; a small b is a bit, if it may be."""
    spelled = unit
    for other, ours in _OTHER_SPELLINGS:
        spelled = re.sub(other, ours, spelled)
    by_small = {known.lower(): known for known in units}
    return by_small.get(spelled.lower()) or by_small.get(unit.lower())


def _typical_unit(dimension: str) -> str:
    return {
        "bytes": "GiB",
        "bytes_per_s": "GB/s",
        "flop": "TFLOP",
        "flop_per_s": "TFLOP/s",
        "s": "us",
        "hz": "MHz",
        "w": "W",
        "usd": "USD",
        "usd_per_s": "USD/h",
        "usd_per_j": "USD/kWh",
        "kg_per_j": "g/kWh",
    }[dimension]


@lru_cache(maxsize=4096, typed=True)
def format_quantity(value: float, dimension: str) -> str:
    """Text that :func:`parse_quantity` reads back to exactly ``value``.

    Among the units that leave a number of at least 1, the one with the shortest
    number wins, so 80 GiB is not printed as 85.899 GB.
    """
    units = UNITS[dimension]
    smallest = min(units, key=lambda unit: units[unit])
    fitting = [unit for unit in units if abs(value) >= float(units[unit])] or [smallest]
    texts = []
    for unit in fitting:
        text = f"{float(Fraction(value) / units[unit]):.12g} {unit}"
        if parse_quantity(text, dimension) == value:
            texts.append(text)
    return min(texts, key=len) if texts else _exact_in_si_unit(value, dimension)


def _exact_in_si_unit(value: float, dimension: str) -> str:
    si_unit = next(unit for unit, factor in UNITS[dimension].items() if factor == 1)
    return f"{value!r} {si_unit}"


def format_bytes(num_bytes: float) -> str:
    """Memory for people: binary units, three significant digits ("61.2 GiB")."""
    for unit in ("PiB", "TiB", "GiB", "MiB", "KiB"):
        if abs(num_bytes) >= _BYTES[unit]:
            return f"{significant(num_bytes / float(_BYTES[unit]))} {unit}"
    return f"{num_bytes:.0f} B"


def format_seconds(seconds: float) -> str:
    """Time for people, three significant digits ("12.9 s", "34.0 us")."""
    return format_seconds_as(seconds, seconds)


def format_seconds_range(low_s: float, high_s: float, longest_s: float | None = None) -> str:
    """An interval of time for people, in the unit of the longest time of its column [s].

    Alone, both ends have the unit of the later one.
    """
    longest_s = high_s if longest_s is None else longest_s
    return f"{format_seconds_as(low_s, longest_s)} to {format_seconds_as(high_s, longest_s)}"


def format_seconds_as(seconds: float, shown_s: float) -> str:
    """A time in the unit in which another one is shown, as the longest of a column is [s]."""
    if abs(seconds) < _ROUNDING_S:
        return "0 s"
    unit = _time_unit(abs(shown_s))
    return f"{significant(seconds / float(_TIME[unit]))} {unit}"


def _time_unit(magnitude_s: float) -> str:
    if magnitude_s >= DAY_S:
        return "d"
    if magnitude_s >= 2 * HOUR_S:
        return "h"
    if magnitude_s >= _MINUTES_FROM_S:
        return "min"
    return next((u for u in ("s", "ms", "us") if three_digits(magnitude_s) >= _TIME[u]), "ns")


def signed_seconds(seconds: float) -> str:
    """A difference of times for people, with its sign ("+1.20 s")."""
    text = format_seconds(abs(seconds))
    return text if text == "0 s" else f"{'+' if seconds > 0 else '-'}{text}"


def signed_percent(share: float, digits: int = 1) -> str:
    """A relative difference for people, with its sign ("+6.2 %"), which zero has not."""
    text = f"{100 * share:+.{digits}f} %"
    return text if text.strip("+-0. %") else text[1:]


def error_text(error_pct: float | None) -> str:
    """A signed error [%] for people ("+6.2 %"); empty where there is none."""
    return "" if error_pct is None else f"{error_pct:+.1f} %"


def format_rate(bytes_per_s: float) -> str:
    """Bandwidth for people: decimal units ("450 GB/s")."""
    for unit in ("TB", "GB", "MB", "kB"):
        if three_digits(abs(bytes_per_s)) >= _BYTES[unit]:
            return f"{significant(bytes_per_s / float(_BYTES[unit]))} {unit}/s"
    return f"{bytes_per_s:.0f} B/s"


def percent(share: float, digits: int = 1) -> str:
    """A share as people read it ("42.3 %")."""
    rounded = round(100 * share, digits) + 0.0  # no negative zero
    return f"{rounded:.{digits}f} %"


def chance(probability: float) -> str:
    """A probability as people read it ("42.3 %"): none is said to be 0 or 100 %."""
    if probability < _OPEN:
        return f"under {percent(_OPEN)}"
    return f"over {percent(1 - _OPEN)}" if probability > 1 - _OPEN else percent(probability)


def format_count(count: float) -> str:
    """Large counts for people ("70.6 B", "1.23 M"); exact below ten thousand."""
    if abs(count) < 10_000:
        return f"{count:g}"
    for unit, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if three_digits(abs(count)) >= factor:
            return f"{significant(count / factor)} {unit}"
    return f"{count:g}"


def significant(value: float) -> str:
    """A number for people, three significant digits ("0.119", "34.0")."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, 2 - math.floor(math.log10(three_digits(abs(value)))))
    return f"{value:.{decimals}f}"


def three_digits(value: float) -> float:
    """A value without its further digits, which would be noise."""
    return float(f"{value:.3g}")


def counted(count: int, thing: str) -> str:
    """A number of things: ``1 node``, ``8 nodes``."""
    return f"{count} {thing}{'' if count == 1 else 's'}"
