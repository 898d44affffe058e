"""The palette: complete, distinct, and readable with any colour vision."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from simulator import plots
from simulator.errors import InputError
from simulator.plots import style
from simulator.program.ir import Category, Kind, Owner

OWNERS = [owner for owner in Owner if owner is not Owner.GRADIENT_SHARDS]
"""Those that results show."""
PALETTES = [(Kind, style.KIND_COLOR), (Category, style.CATEGORY_COLOR), (OWNERS, style.OWNER_COLOR)]
DARK_PALETTES = [
    (members, {member: style.on_dark(color) for member, color in palette.items()})
    for members, palette in PALETTES
]
DARK_PALETTES[1][1][Category.BUBBLE] = style.BUBBLE_ON_DARK

# Full dichromacy in linear RGB: Machado, Oliveira and Fernandes (2009), severity 1.0.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
LEAST_DISTANCE = {"normal": 20.0, "protanopia": 9.0, "deuteranopia": 9.0}
"""CIE76; 2.3 is just noticeable side by side."""


def lab(color: str, vision: str) -> np.ndarray:
    """CIE L*a*b* (D65) of a colour as somebody sees it."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(VISION[vision] @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    ratio = to_xyz @ seen / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize(("members", "palette"), PALETTES)
def test_every_member_has_a_colour(members: Iterable[StrEnum], palette: dict[StrEnum, str]) -> None:
    assert set(palette) == set(members)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(("members", "palette"), [*PALETTES, *DARK_PALETTES])
def test_no_two_members_look_alike(
    members: Iterable[StrEnum], palette: dict[StrEnum, str], vision: str
) -> None:
    seen = {member: lab(palette[member], vision) for member in members}
    alike = {
        (a.value, b.value): float(np.linalg.norm(seen[a] - seen[b]))
        for a, b in itertools.combinations(members, 2)
        if np.linalg.norm(seen[a] - seen[b]) < LEAST_DISTANCE[vision]
    }
    assert not alike


@pytest.mark.parametrize(("members", "palette"), DARK_PALETTES)
def test_every_mark_on_a_dark_page_has_three_times_its_contrast(
    members: Iterable[StrEnum], palette: dict[StrEnum, str]
) -> None:
    page = style.luminance(style.DARK_PAGE)
    contrasts = {m: (style.luminance(palette[m]) + 0.05) / (page + 0.05) for m in members}
    assert {m.value: c for m, c in contrasts.items() if c < 3} == {}


def test_an_exposed_collective_has_the_colour_of_its_category() -> None:
    assert style.KIND_COLOR[Kind.REDUCE_SCATTER] == style.CATEGORY_COLOR[Category.DATA_PARALLEL]
    assert style.KIND_COLOR[Kind.SEND_RECV] == style.CATEGORY_COLOR[Category.PIPELINE]
    assert style.KIND_COLOR[Kind.ALL_TO_ALL] == style.CATEGORY_COLOR[Category.EXPERT_PARALLEL]


def test_chunks_go_from_the_full_colour_to_lighter_shades() -> None:
    shades = [style.chunk_shade(style.BLUE, chunk, 4) for chunk in range(4)]
    lightness = [lab(shade, "normal")[0] for shade in shades]
    assert shades[0] == style.BLUE
    assert lightness == sorted(lightness)
    assert len(set(shades)) == 4


def test_a_single_chunk_keeps_the_full_colour() -> None:
    assert style.chunk_shade(style.GREEN, 0, 1) == style.GREEN
    assert style.chunk_shade(style.GREEN, -1, 4) == style.GREEN


def test_half_of_white_in_black_is_middle_grey() -> None:
    assert style.mix("#000000", "#FFFFFF", 0.5) == "#808080"


@pytest.mark.parametrize("color", [*style.KIND_COLOR.values()])
def test_numbers_on_boxes_have_the_contrast_of_readable_text(color: str) -> None:
    def luminance(name: str) -> float:
        rgb = np.array(to_rgb(name))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    light, dark = sorted((luminance(color), luminance(style.ink_on(color))), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5  # WCAG 2.1, level AA


@pytest.mark.parametrize(
    ("longest_s", "unit"), [(12.0, "s"), (1.0, "s"), (0.5, "ms"), (2e-5, "us"), (3e-8, "ns")]
)
def test_the_time_axis_has_the_largest_unit_that_is_not_above_the_span(
    longest_s: float, unit: str
) -> None:
    assert style.time_unit(longest_s)[0] == unit


def test_an_unknown_picture_format_is_refused_with_those_that_work(tmp_path) -> None:
    with pytest.raises(InputError, match=r"\.png, \.svg or \.pdf"):
        style.save(style.new_figure(1.0), tmp_path / "picture.bmp")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_same_picture_gives_the_same_bytes(tmp_path, suffix: str) -> None:
    for name in ("a", "b"):
        style.save(style.new_figure(1.0), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_the_package_says_what_every_module_draws():
    folder = Path(plots.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert plots.__doc__ is not None
    assert modules <= set(re.findall(r"\w+", plots.__doc__))
