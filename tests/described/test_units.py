"""Are quantities read and written without losing or inventing anything?"""

from __future__ import annotations

import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import units
from simulator.units import (
    UNITS,
    chance,
    format_bytes,
    format_count,
    format_quantity,
    format_rate,
    format_seconds,
    format_seconds_range,
    parse_quantity,
    percent,
    signed_seconds,
)

DIMENSIONS = st.sampled_from(sorted(UNITS))
SIZES = st.floats(min_value=1e-15, max_value=1e25)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GiB", "bytes", 80 * 2**30),
        ("80 GB", "bytes", 80e9),
        ("1 KiB", "bytes", 1024),
        ("1 kB", "bytes", 1000),
        ("400 Gbit/s", "bytes_per_s", 50e9),
        ("450 GB/s", "bytes_per_s", 450e9),
        ("989 TFLOP/s", "flop_per_s", 989e12),
        ("2.5 us", "s", 2.5e-6),
        ("3 min", "s", 180),
        ("1830 MHz", "hz", 1.83e9),
        ("3.6 USD/h", "usd_per_s", 0.001),
        ("1_000 B", "bytes", 1000),
        ("1e3 B", "bytes", 1000),
        ("  7GiB  ", "bytes", 7 * 2**30),
        ("-3 s", "s", -3),
    ],
)
def test_a_quantity_is_its_number_times_its_unit(text, dimension, value):
    assert parse_quantity(text, dimension) == value


@pytest.mark.parametrize(
    ("text", "dimension", "says"),
    [
        ("80", "bytes", 'has no unit; write a unit behind it, such as "80 GiB"'),
        ("", "bytes", "is not a number"),
        ("GiB", "bytes", "is not a number"),
        ("80 gib", "bytes", "unknown unit 'gib'"),
        ("80 Gb", "bytes", "unknown unit 'Gb'"),
        ("450 GB/s", "bytes", "unknown unit 'GB/s'"),
        ("450 GB", "bytes_per_s", "unknown unit 'GB'"),
        ("1 KB", "bytes", "unknown unit 'KB'"),
        ("1 2 GB", "bytes", "unknown unit '2 GB'"),
        ("nan s", "s", "is not a number"),
        ("inf s", "s", "is not a number"),
        ("\u0661 s", "s", "is not a number"),
        ("1__0 s", "s", "is not a number"),
        ("1_ s", "s", "is not a number"),
        ("1e400 s", "s", "is not a number"),
        ("1e999999999 s", "s", "is not a number"),
        ("1e-999999999 s", "s", "is not a number"),
        ("1.2.3 s", "s", "is not a number"),
        ("1e s", "s", "unknown unit 'e s'"),
        ("9" * 10_000 + " s", "s", "is not a number"),
    ],
)
def test_what_is_no_quantity_of_the_dimension_is_refused(text, dimension, says):
    with pytest.raises(ValueError, match=says):
        parse_quantity(text, dimension)


@pytest.mark.parametrize(
    ("unit", "dimension", "meant"),
    [
        ("Gb/s", "bytes_per_s", "Gbit/s"),
        ("Gbps", "bytes_per_s", "Gbit/s"),
        ("gbps", "bytes_per_s", "Gbit/s"),
        ("gbit/s", "bytes_per_s", "Gbit/s"),
        ("GBps", "bytes_per_s", "GB/s"),
        ("GBit/s", "bytes_per_s", "Gbit/s"),
        ("gib", "bytes", "GiB"),
        ("KB", "bytes", "kB"),
        ("TFLOPS", "flop_per_s", "TFLOP/s"),
        ("TFlops/s", "flop_per_s", "TFLOP/s"),
        ("\u00b5s", "s", "us"),
        ("days", "s", "d"),
        ("hrs", "s", "h"),
        ("Minutes", "s", "min"),
        ("sec", "s", "s"),
        ("msec", "s", "ms"),
        ("usd/H", "usd_per_s", "USD/h"),
    ],
)
def test_a_unit_spelled_another_way_gets_the_one_that_was_meant(unit, dimension, meant):
    with pytest.raises(ValueError, match=f"did you mean '{meant}'"):
        parse_quantity(f"1 {unit}", dimension)


@pytest.mark.parametrize(("unit", "dimension"), [("GB", "bytes_per_s"), ("bps", "s"), ("x", "w")])
def test_a_unit_of_something_else_gets_all_that_are_known(unit, dimension):
    with pytest.raises(ValueError, match="known: "):
        parse_quantity(f"1 {unit}", dimension)


@given(value=SIZES, dimension=DIMENSIONS)
def test_a_written_quantity_is_read_back_to_the_same_float(value, dimension):
    assert parse_quantity(format_quantity(value, dimension), dimension) == value


@given(number=st.integers(1, 999), dimension=DIMENSIONS, data=st.data())
def test_round_numbers_are_written_as_people_write_them(number, dimension, data):
    unit = data.draw(st.sampled_from(sorted(UNITS[dimension])))
    value = parse_quantity(f"{number} {unit}", dimension)
    assert len(format_quantity(value, dimension)) <= len(f"{number} {unit}") + 1


@given(value=st.floats(min_value=1e-9, max_value=1e15))
def test_printed_seconds_are_within_half_a_percent(value):
    number, unit = format_seconds(value).split()
    factor = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[
        unit
    ]
    assert math.isclose(float(number) * factor, value, rel_tol=6e-3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_bytes(80 * 2**30), "80.0 GiB"),
        (format_bytes(61.23 * 2**30), "61.2 GiB"),
        (format_bytes(0), "0 B"),
        (format_bytes(1023), "1023 B"),
        (format_bytes(-(2**30)), "-1.00 GiB"),
        (format_seconds(0), "0 s"),
        (format_seconds(12.9), "12.9 s"),
        (format_seconds(599), "599 s"),
        (format_seconds(1668), "27.8 min"),
        (format_seconds_range(6650, 10332), "1.85 h to 2.87 h"),
        (format_seconds_range(0.9, 1.1), "0.900 s to 1.10 s"),
        (format_seconds(34e-6), "34.0 us"),
        (format_seconds(3e-9), "3.00 ns"),
        (format_seconds(5e-17), "0 s"),
        (signed_seconds(0.25), "+250 ms"),
        (signed_seconds(-5e-17), "0 s"),
        (chance(0.423), "42.3 %"),
        (chance(0.9999), "over 99.9 %"),
        (chance(1e-9), "under 0.1 %"),
        (format_seconds(7200), "2.00 h"),
        (format_seconds(864000), "10.0 d"),
        (format_rate(450e9), "450 GB/s"),
        (format_rate(12), "12 B/s"),
        (format_count(70.6e9), "70.6 B"),
        (format_count(9999), "9999"),
        (format_count(1.23e6), "1.23 M"),
        (format_count(999_885_952), "1.00 B"),
        (format_count(9999.6), "9999.6"),
        (format_seconds(0.99996), "1.00 s"),
        (format_seconds(9.996), "10.0 s"),
        (format_rate(999.96e6), "1.00 GB/s"),
    ],
)
def test_people_read_three_significant_digits(text, expected):
    assert text == expected


def test_the_examples_in_the_docstrings_are_true():
    assert doctest.testmod(units).failed == 0


def test_a_share_of_nothing_has_no_sign():
    assert percent(-0.0001) == percent(0.0) == "0.0 %"
