"""The process that is one rank of a captured script; started by :mod:`.make`."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import NoReturn

from simulator.errors import InputError

_NO_CONTENTS = "captured tensors have no contents: numbers of theirs are printed as nan"


def main() -> None:
    """Capture the rank that standard input orders, into the file that it names."""
    # The command that started this one answers Ctrl+C, and torch takes seconds to load.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from simulator.capture.file import write_capture
    from simulator.capture.recording.one_rank import captured_script, device_answers
    from simulator.capture.recording.unknown.values import UnknownNumber

    order = json.loads(sys.stdin.read())
    os.dup2(2, 1)  # What a script prints is talk, not data.
    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    target = Path(order["target"])

    def refuse(error: InputError) -> NoReturn:
        fault = error.faults[0]
        refused = {"path": fault.path, "rule": fault.rule, "hint": fault.hint}
        target.with_suffix(".json").write_text(json.dumps(refused), encoding="utf-8")
        sys.stderr.flush()
        os._exit(1)

    try:
        found = captured_script(
            order["script"],
            order["arguments"],
            order["rank"],
            order["world"],
            device_answers(order["device"]),
            Path(order["mailbox"]),
            refuse,
            order["values"],
        )
    except InputError as error:
        refuse(error)
    if UnknownNumber.was_asked_for:
        print(_NO_CONTENTS, file=sys.stderr)
    write_capture(found.as_capture(order["world"]), target)


if __name__ == "__main__":
    main()
