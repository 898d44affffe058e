"""What did an importer make of a foreign file?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Every setting of a foreign file, sorted by what became of it.

    Attributes:
        source: What was read.
        understood: Keys whose values are in the specification.
        ignored: Keys that change neither time nor memory of training.
        assumed: Sentences on what was taken for granted because the file does not say it.
        unsupported: Sentences on settings that do cost something and are not modelled.
    """

    source: str
    understood: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether everything that costs something is in the specification."""
        return not self.unsupported

    def __str__(self) -> str:
        """Return the report as text for a terminal, without empty sections."""
        sections: dict[str, tuple[str, ...]] = {
            "understood": _joined(self.understood),
            "ignored, costs nothing": _joined(self.ignored),
            "assumed": self.assumed,
            "not modelled": self.unsupported,
        }
        lines = [f"read {self.source}"]
        for title, sentences in sections.items():
            lines += [f"{title}:", *(f"  {s}" for s in sentences)] if sentences else []
        return "\n".join(lines)


def _joined(keys: tuple[str, ...]) -> tuple[str, ...]:
    return (", ".join(keys),) if keys else ()
