"""The runner as one file: a zipapp of the folder ``device`` and the kernels of ``calibrate gpu``.

The same code that ``calibrate gpu`` measures with is packed, so that both mean the same by a row.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import zipapp
from pathlib import Path
from typing import Any

import simulator
from simulator.calibrate.gpu.kernel_cases import GPU_EXTENT, kernel_cases

_HERE = Path(__file__).parent
_MEASURING = ("kernel_case.py", "kernel_calls.py", "system_calls.py")
_FORMATS = ("bf16", "fp8", "fp16", "tf32", "fp32")
_ATTENTION = {
    "9": ("cudnn_attention (sdpa)", "flash_attention_2 (sdpa)", "unfused_attention (sdpa math)"),
    "8": ("flash_attention (sdpa)", "cudnn_attention (sdpa)", "unfused_attention (sdpa math)"),
}
"""Operations by the major compute capability that they are named for, as in ``device_facts``."""

_MAIN = """\
import json
import pkgutil
import sys

from reports.make.gpu_bundle.device.main import main

if __name__ == "__main__":
    cases = pkgutil.get_data("reports.make.gpu_bundle.device", "cases.json")
    sys.exit(main(None, json.loads(cases)))
"""


def packed_cases(capability: str = "9") -> list[dict[str, Any]]:
    """The kernels that a device of that major capability or later is asked for."""
    found = kernel_cases(GPU_EXTENT, _FORMATS, _ATTENTION[capability])
    return [dataclasses.asdict(case) for case in found]


def pack(target: Path, capability: str = "9") -> int:
    """Write the runner; its size [B]."""
    package = Path(simulator.__file__).parent
    files = {f"simulator/calibrate/gpu/{name}": package / "calibrate" / "gpu" / name
             for name in _MEASURING}  # fmt: skip
    files |= {f"reports/make/gpu_bundle/device/{path.name}": path
              for path in sorted((_HERE / "device").glob("*.py"))}  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for inside, path in files.items():
            place = root / inside
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        for folder in {p for inside in files for p in Path(inside).parents if p != Path()}:
            (root / folder / "__init__.py").touch()
        cases = json.dumps(packed_cases(capability))
        (root / "reports/make/gpu_bundle/device/cases.json").write_text(cases, encoding="utf-8")
        (root / "__main__.py").write_text(_MAIN, encoding="utf-8")
        zipapp.create_archive(root, target, compressed=True)
    return target.stat().st_size
