"""What would the README say if it were written now?

``python -m tests.readme`` (or ``make readme``) puts the real output of every console block,
and the accuracy table, into the file; review the difference. A test compares.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from pathlib import Path

from simulator.cli import main

ROOT = Path(__file__).parent.parent
PATH = ROOT / "README.md"
DEMO = "clustersim run workloads/llama3-70b-64xh100.yaml"
"""What ``make demo`` prints on stdout is what this command prints."""


def written_now(text: str) -> str:
    """The README with the outputs and figures of this moment."""
    text = re.sub(r"```console\n\$ ([^\n]*)\n.*?```", _with_output, text, flags=re.DOTALL)
    report = (ROOT / "reports" / "accuracy.md").read_text(encoding="utf-8")
    headline = report.partition("## Headline\n\n")[2].partition("\n\n")[0]
    marked = f"<!-- accuracy -->\n{headline}\n<!-- end -->"
    return re.sub(r"<!-- accuracy -->.*?<!-- end -->", lambda _: marked, text, flags=re.DOTALL)


def _with_output(match: re.Match[str]) -> str:
    command = match.group(1)
    output = io.StringIO()
    words = shlex.split(DEMO if command == "make demo" else command)
    talk = contextlib.redirect_stderr(output if words[-1] == "2>&1" else io.StringIO())
    leaving = contextlib.suppress(SystemExit)
    with contextlib.redirect_stdout(output), talk, contextlib.chdir(ROOT), leaving:
        main([word for word in words[1:] if word != "2>&1"])
    return f"```console\n$ {command}\n{output.getvalue().rstrip()}\n```"


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    PATH.write_text(written_now(PATH.read_text(encoding="utf-8")), encoding="utf-8")
