"""Write the one-file runner for a machine with a GPU, or print what it would do.

    python -m reports.make.gpu_bundle --out gpu_bundle.pyz [--capability 9]
    python -m reports.make.gpu_bundle --plan

There: ``python gpu_bundle.pyz --out raw.jsonl``, again and again until nothing is left. Back here:
``make gpu-report RAW=FOLDER``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from reports.make.gpu_bundle.device.main import items, plan_lines
from reports.make.gpu_bundle.pack import pack, packed_cases

_FIRST_S = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack, or print the plan and the size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="the file to write, ending in .pyz")
    parser.add_argument("--plan", action="store_true", help="print items and expected seconds")
    parser.add_argument("--capability", choices=("8", "9"), default="9", help="8 before Hopper")
    given = parser.parse_args(arguments)
    if given.plan:
        for line in plan_lines(items(packed_cases(given.capability)), _FIRST_S):
            print(line)
        with tempfile.TemporaryDirectory() as folder:
            print(f"one file of {pack(Path(folder) / 'b.pyz', given.capability) / 1e3:.0f} kB")
        return 0
    if given.out is None:
        parser.error("--out or --plan is needed")
    size = pack(given.out, given.capability)
    sys.stderr.write(f"wrote {given.out}, {size / 1e3:.0f} kB\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
