"""How are the events of a trace read, however large the file is?

One by one, from a window of bounded size onto the text: a trace of a large job has gigabytes.
Nothing in the file is executed, and a file that is cut off or no trace is distinguished from one
that is wrong in one place.

Source:
    Trace Event Format (Google, 2016), the object form: an object whose key ``traceEvents``
    holds a list of objects.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from simulator.errors import InputError
from simulator.files import Unpacked, why_unreadable

MAX_TEXT_BYTES = 4 * 1024**3
"""Unpacked; more is no trace of a few steps but a trap."""
MAX_VALUE_CHARS = 4 * 1024**2
"""Of one event, or of one field beside the events; real ones have a few hundred."""

_CHUNK_BYTES = 1024**2
_HEADER = frozenset({"distributedInfo", "deviceProperties"})
_NO_SPACE = re.compile(r"[^ \t\r\n]")
_WANTED = "record it with torch.profiler and export_chrome_trace"

Event = dict[str, Any]


class TraceFile:
    """A trace, read once from its beginning to its end.

    Attributes:
        header: Who recorded what, beside the events; whole once all of them are read.
    """

    def __init__(self, path: Path) -> None:
        self.header: dict[str, Any] = {}
        self._path = path
        self._text = ""
        self._place = 0
        self._num_bytes = 0
        self._is_over = False
        self._file: Unpacked
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # Names may hold tabs and line ends as they are.
        self._json = json.JSONDecoder(strict=False)

    def events(self) -> Iterator[Event]:
        """Every event, in the order of the file.

        Raises:
            InputError: It is no file, no trace, damaged, or larger than any trace.
        """
        try:
            with Unpacked(self._path) as self._file:
                yield from self._fields()
        except EOFError:
            self._refuse("is cut off")
        except zlib.error as error:
            self._refuse(f"cannot be read: its archive is damaged ({error})")
        except OSError as error:
            self._refuse(why_unreadable(error))

    def _fields(self) -> Iterator[Event]:
        if self._next() != "{":
            self._refuse("is not a trace: it must be a JSON object with a list traceEvents")
        has_events, separator = False, "{"
        while separator != "}":
            self._place += 1
            if separator == "{" and self._next() == "}":
                break
            key = self._value()
            if self._next() != ":" or not isinstance(key, str):
                self._refuse("is not JSON")
            self._place += 1
            if key == "traceEvents":
                if has_events or self._next() != "[":
                    self._refuse("must have one list traceEvents")
                has_events = True
                yield from self._list()
            else:
                value = self._value()
                if key in _HEADER:
                    self.header[key] = value
            separator = self._next()
            if separator not in {",", "}"}:
                self._refuse("is not JSON")
        if not has_events:
            self._refuse("is not a trace: it has no list traceEvents")

    def _list(self) -> Iterator[Event]:
        separator = "["
        while separator != "]":
            self._place += 1
            if separator == "[" and self._next() == "]":
                break
            event = self._value()
            if not isinstance(event, dict):
                self._refuse("is not a trace: events must be objects")
            yield event
            separator = self._next()
            if separator not in {",", "]"}:
                self._refuse("is not JSON")
        self._place += 1

    def _next(self) -> str:
        """The next character that is no space; it is not consumed."""
        while True:
            found = _NO_SPACE.search(self._text, self._place)
            if found:
                self._place = found.start()
                return found.group()
            self._place = len(self._text)
            if not self._more():
                self._refuse("is cut off")

    def _value(self) -> Any:
        """The JSON value that begins at the next character."""
        self._next()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._place)
            except (ValueError, RecursionError) as error:
                if len(self._text) - self._place > MAX_VALUE_CHARS:
                    self._refuse(f"is not JSON: a value is malformed or too long ({error})")
                if not self._more():
                    self._refuse("is cut off or is not JSON")
                continue
            # A number may go on behind the window, which may end after its point, too.
            is_whole = end < len(self._text) and self._text[end] not in ".eE"
            is_whole |= len(self._text) - self._place > MAX_VALUE_CHARS
            if is_whole or not self._more():
                self._place = end
                return value

    def _more(self) -> bool:
        """Move the window on; False where the file ends."""
        chunk = b"" if self._is_over else self._file.read(_CHUNK_BYTES)
        self._num_bytes += len(chunk)
        if self._num_bytes > MAX_TEXT_BYTES:
            self._refuse(f"has more than {MAX_TEXT_BYTES} bytes of text")
        self._is_over = not chunk
        self._text = self._text[self._place :] + self._decode.decode(chunk, final=self._is_over)
        self._place = 0
        return not self._is_over

    def _refuse(self, rule: str) -> NoReturn:
        raise InputError.single("", rule, file=str(self._path), hint=_WANTED)
