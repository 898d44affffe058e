"""How does a page become one file that fetches nothing?

Style and scripts are put inside; data is JSON in a block that no browser runs. The page's own
content security policy allows its script by hash and no request at all. Values from files are
escaped by the template engine, so a model called ``<script>`` is only a name.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from simulator.files import write_whole
from simulator.units import format_bytes, format_seconds, signed_percent, signed_seconds
from simulator.version import __version__

_FOLDER = Path(__file__).parent
_OPTION = re.compile(r"(--set (?:'[^']*'|[^\s']+))")


def write_page(
    path: str | Path,
    template: str,
    context: Mapping[str, Any],
    *,
    scripts: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
) -> None:
    """Write a page, whole or not at all. The same content gives the same bytes.

    Args:
        path: The file; its folder is made.
        template: Name of a template beside this module.
        context: What the template shows.
        scripts: Names of scripts beside this module, in the order in which they run.
        data: What the scripts draw.
    """
    write_whole(Path(path), render(template, context, scripts=scripts, data=data))


def render(
    template: str,
    context: Mapping[str, Any],
    *,
    scripts: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
) -> str:
    """The text of a page. For the arguments see :func:`write_page`."""
    script = "\n".join(_asset(name) for name in scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src 'sha256-{digest}'" if script else "script-src 'none'",
            "style-src 'unsafe-inline'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return (
        _environment()
        .get_template(template)
        .render(
            **context,
            policy=policy,
            style=Markup(_asset("report.css")),
            script=Markup(script),
            data=data,
            version=__version__,
        )
    )


def packed(column: NDArray[Any]) -> str:
    """A column's bytes, little-endian, as base64."""
    little_endian = column.astype(column.dtype.newbyteorder("<"))
    return base64.b64encode(little_endian.tobytes()).decode()


@cache
def _environment() -> Environment:
    loader = PackageLoader("simulator.exporters.html", ".")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        seconds=format_seconds,
        bytes=format_bytes,
        words=lambda name: str(name).replace("_", " "),
        percent=lambda share: f"{100 * share:.1f} %",
        signed=signed_percent,
        signed_seconds=signed_seconds,
        data=_as_data,
        options=_with_options,
    )
    return environment


def _with_options(text: str) -> Markup:
    """A sentence in which options of a command are code that no line break tears apart."""
    parts = _OPTION.split(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part
        for number, part in enumerate(parts)
    )


def _as_data(value: object) -> Markup:
    """JSON that cannot end the block it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
