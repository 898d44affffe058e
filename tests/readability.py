"""Which sentences and abbreviations does a reader of a page meet?

Prose is what is left of a page without code, comments, pictures and addresses: paragraphs,
headings, items of lists and cells of tables, each on its own. Code inside a sentence counts as one
word. A sentence ends with a full stop, a question mark or an exclamation mark before a space; the
stop of an abbreviation such as "e.g." ends none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

MOST_WORDS = 35
"""Words of the longest sentence allowed on our pages."""

_NO_PROSE = re.compile(
    r"^(?P<fence>```+)\w*\n.*?^(?P=fence)$"  # blocks of code
    r"|<!-- accuracy: .*?<!-- end -->"  # sections of a report
    r"|<!--.*?-->",
    flags=re.DOTALL | re.MULTILINE,
)
_PICTURE_OR_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]+`")
_NEW_BLOCK = re.compile(r"\s*(?:[-*] |\d+\. |#+ |\|)")
_RULE = re.compile(r"[\s|:-]+")
_SENTENCE_END = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<!et al\.)(?<=[.?!])[*)\"]*\s+")
_ABBREVIATION = re.compile(r"\b[A-Z][A-Za-z]*[A-Z](?=s?\b)")


def prose(text: str) -> Iterator[str]:
    """Paragraphs, headings, items and cells of a page in Markdown, each on one line."""
    text = _NO_PROSE.sub("\n\n", text)
    text = _CODE.sub("CODE", _PICTURE_OR_LINK.sub(r"\1", text))
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if not line.strip() or _NEW_BLOCK.match(line):
            yield from _cells(" ".join(block))
            block = []
        if line.startswith("#"):
            yield line.lstrip("# ")
        elif line.strip() and not line.startswith("    "):
            block.append(re.sub(r"^\s*(?:[-*] |\d+\. )?", "", line).strip())
    yield from _cells(" ".join(block))


def _cells(block: str) -> Iterator[str]:
    """A row of a table by its cells; anything else whole."""
    if not block.startswith("|"):
        yield from [block] * bool(block)
    elif not _RULE.fullmatch(block):
        yield from (cell.strip() for cell in block.strip("|").split("|") if cell.strip())


def sentences(text: str) -> Iterator[str]:
    """Sentences of a page, without headings' marks and code."""
    for block in prose(text):
        yield from _SENTENCE_END.split(block)


def words(sentence: str) -> int:
    """How many words it has; numbers and signs alone are none."""
    return len(re.findall(r"[^\W\d_][\w'/.-]*", sentence))


def long_sentences(text: str) -> list[str]:
    """Sentences that no one can read aloud in a breath."""
    return [sentence for sentence in sentences(text) if words(sentence) > MOST_WORDS]


def abbreviations(text: str) -> set[str]:
    """Words of capitals, such as MFU or ZeRO, in the singular; names with digits are none."""
    spoken = " ".join(prose(text)).replace("CODE", "")
    return set(_ABBREVIATION.findall(spoken))


def glossary_terms(page: Path) -> list[str]:
    """What the glossary explains; several spellings of one entry are separate terms."""
    rows = re.findall(r"^\| (?!term |-)(.+?) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [term.strip("` ") for row in rows for term in row.split(", ")]
