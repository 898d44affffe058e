"""Which sentences, words and abbreviations does a reader of a page or a command meet?

Prose is what is left of a page without code, comments, pictures and addresses: paragraphs,
headings, items of lists and cells of tables, each on its own. Code inside a sentence counts as one
word. A sentence ends with a full stop, a question mark or an exclamation mark before a space; the
stop of an abbreviation such as "e.g." ends none.

What commands print stands in string literals of the package: parts of a literal that are computed
count as one word. Docstrings are none of them, but the help of a command is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

MOST_WORDS = 35
"""Words of the longest sentence allowed on our pages."""

STANDARD_WORDS = {
    r"(?<!there )\bis no (?!change\b|longer\b|more\b)": "is not a",
    r"\bhas no meaning with\b": "does not apply with",
    r"\b(?:or|,) take (?!turns)|^take (?!turns)": "use, set",
    r"\bleave it out\b": "remove it",
    r"\bgo(?:es)? on\b": "continue",
    r"\bwhence\b": "from which",
    r"\banew\b": "again",
    r"\blearnt\b": "learned",
    r"\bknobs?\b": "field, change",
    r"\bdialect\b": "stack",
    r"\bkin\b": "similar",
    r"\blone\b": "single",
    r"\bleap\b": "large change",
    r"\bpuzzl\w*": "(say it)",
    r"\bin the mean\b": "on average, mean",
    r"\bat even odds\b": "50 % likely",
    r"\bmoney\b": "cost",
    r"\bbears?\b": "sustains",
    r"\btells? (?:\w+ )?(?:apart|of)\b": "separates, shows",
    r"\bwaits? for ever\b": "deadlock, forever",
    r"\bmend(?:s|ed)?\b": "fix",
    r"\bpriced anew\b": "predicted",
    r"\bwhat people do\b": "usual remedies",
    r"\btalks? to\b": "communicates with",
    r"\bis not there\b": "does not exist",
    r"\blies in\b": "is in",
    r"\bcomes (?:twice|a second time)\b": "appears twice",
    r"\bsays? itself\b": "determines",
    r"\bown runs\b": "measured runs",
}
"""Words that made readers stop, as patterns, and what is written for them."""

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


def printed_texts(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every literal of a module that a person may read: two words at least."""
    tree = ast.parse(source)
    aside = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            aside.update(id(part) for part in node.values)
    for node in ast.walk(tree):
        text = None if id(node) in aside else _literal(node)
        if text and " " in text.strip() and not _CODE_OF_OTHERS.search(text) and words(text) > 1:
            yield getattr(node, "lineno", 0), _BRACES.sub("CODE", " ".join(text.split()))


_CODE_OF_OTHERS = re.compile(
    r"\(\?|\\[a-zA-Z(]|-src |'none'|repeated |^--\w|\b(?:SELECT|PRAGMA|FROM|WHERE|JOIN|LIMIT) "
)
"""What marks a regular expression, a query, a policy or a line of options."""
_BRACES = re.compile(r"\{.*\}")


def _literal(node: ast.AST) -> str | None:
    """The text of a literal, each computed part of it as one word."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(part) or "x" for part in node.values)
    return None


_UNUSUAL = re.compile("|".join(STANDARD_WORDS))


def unusual_words(text: str) -> list[str]:
    """Words of a text that have a standard one, each with that."""
    if not _UNUSUAL.search(text):
        return []
    return [
        f"{found[0].strip()} -> {standard}"
        for pattern, standard in STANDARD_WORDS.items()
        if (found := re.search(pattern, text))
    ]
