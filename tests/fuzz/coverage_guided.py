"""Which texts reach lines of a reader that no text has reached? They are kept, and changed further.

``python -m tests.fuzz.coverage_guided READER -max_total_time=600``, with the options of libFuzzer.
It needs ``pip install atheris``, which has wheels for Linux and Python 3.11 to 3.13 only, and so
belongs to no extra. Texts that reach further are kept in ``build/fuzz/reaching``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Run until a text breaks the reader, or libFuzzer's limits end it."""
    import atheris

    with atheris.instrument_imports(include=["simulator"]):
        from tests.fuzz.attempts import MOST_SECONDS, SOUND, attempt, guarded_process
        from tests.fuzz.readers import samples_of
        from tests.fuzz.samples import ROOT, Sample
    reader, options = sys.argv[1], sys.argv[2:]
    samples = samples_of(reader)
    kept = ROOT / "build" / "fuzz" / "reaching" / reader
    kept.mkdir(parents=True, exist_ok=True)
    for number, sample in enumerate(samples):
        (kept / f"sample-{number}").write_bytes(sample.content)

    def try_one(content: bytes) -> None:
        found = attempt(reader, Sample(samples[0].name, content))
        if found.outcome not in SOUND:
            raise RuntimeError(f"{found.outcome}: {found.cause}\n{found.details}")

    with tempfile.TemporaryDirectory() as folder, guarded_process(Path(folder)):
        limits = [f"-timeout={round(3 * MOST_SECONDS)}", "-rss_limit_mb=3000"]
        atheris.Setup([sys.argv[0], *limits, *options, str(kept)], try_one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
