"""How far are captured steps of llm-foundry's MPT from its published runs?

Runs that differ in their system, GPUs or microbatches share one captured microbatch. All are kept
in one archive, ``reports/captures/llm-foundry.tar.xz``, because they have much in common.

``python -m reports.make.captures.foundry_rows PYTHON FOLDER`` makes those that a folder lacks, and
writes the archive of them. PYTHON is that of an environment with torch 2.13 and what it takes to
import llm-foundry 0.22.0, mosaicml 0.32.1 (Composer) and mosaicml-streaming 0.13.0, which ask
for an older torch: they are installed with ``--no-deps``, beside transformers 4.51 and torchmetrics
1.7.
"""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from reports.make.captures.own_code import ran
from reports.make.captures.published_rows import (
    CAPTURES,
    both_ways,
    published_file,
    published_rows,
    runs_and_errors,
)
from simulator.capture.file import read_capture
from simulator.capture.table import Capture
from simulator.cells import Row

KEPT = CAPTURES / "llm-foundry.tar.xz"
_SCRIPT = CAPTURES.parents[1] / "workloads" / "capture" / "foundry.py"
_CAPTURED_GPUS = 8
_SHARDING = {"2": "SHARD_GRAD_OP", "3": "FULL_SHARD"}

_HEAD = """
### Runs of llm-foundry

`workloads/capture/foundry.py`: MPT of llm-foundry 0.22, sharded and trained as Composer 0.32 does;
the script stands in for the trainer's loop and for kernels of flash-attn. One microbatch is
captured, on 8 ranks, for all runs of a model, length, microbatch and kind of sharding. Composer
reduces gradients after every microbatch, so that a step is as many of them as the run has, and one
step of the optimizer.
"""


def foundry_rows() -> dict[str, Row]:
    """llm-foundry's published runs that are captured, by their names."""
    left_out = published_file()["not_captured"]
    return {
        run: row
        for run, row in published_rows().items()
        if run.startswith("llmf-") and run not in left_out
    }


def script_arguments(row: Row) -> tuple[str, ...]:
    """What ``workloads/capture/foundry.py`` is told to train one microbatch of a run."""
    return (
        "--model", row["model"].removeprefix("MPT-"),
        "--seq-len", row["seq_len"],
        "--batch", row["micro_batch"],
        "--recompute", "1" if row["recompute"] == "full" else "0",
        "--strategy", _SHARDING[row["zero"]],
        "--precision", "PURE" if "MP mode PURE" in row["notes"] else "DEFAULT",
    )  # fmt: skip


def capture_name(row: Row) -> str:
    """Of the capture that stands for a run, after its shape and what is special."""
    model, length, batch, recompute, sharding, precision = script_arguments(row)[1::2]
    parts = [f"{model}-{length}x{batch}"]
    parts += ["full"] if recompute == "1" else []
    parts += ["zero2"] if sharding == "SHARD_GRAD_OP" else []
    parts += ["pure"] if precision == "PURE" else []
    return "-".join(parts)


def microbatches(row: Row) -> int:
    """Of each rank in a step."""
    return int(row["global_batch"]) // (int(row["dp"]) * int(row["micro_batch"]))


def kept_captures(archive: Path = KEPT) -> dict[str, Capture]:
    """The captures of an archive by their names."""
    with tarfile.open(archive) as kept, TemporaryDirectory() as folder:
        kept.extractall(folder, filter="data")
        return {file.stem: read_capture(file) for file in Path(folder).iterdir()}


def foundry_section() -> Iterator[str]:
    """Lines of the page's section, in Markdown."""
    kept = kept_captures()
    yield from _HEAD.splitlines()
    yield ""
    yield from runs_and_errors(
        [
            both_ways(row, kept[capture_name(row)], microbatches(row))
            for row in foundry_rows().values()
        ]
    )


def make_missing(python: str, folder: Path) -> None:
    """Make the captures that a folder lacks."""
    rows = {capture_name(row): row for row in foundry_rows().values()}
    for name, row in rows.items():
        file = folder / f"{name}.capture"
        if not file.is_file():
            print(name, file=sys.stderr, flush=True)
            command = [python, "-m", "simulator", "capture", str(_SCRIPT), "--out", str(file)]
            given = ["--world", str(_CAPTURED_GPUS), "--device", "a100-sxm-80gb"]
            with TemporaryDirectory() as talk:
                ran([*command, *given, "--", *script_arguments(row)], Path(talk))


def keep(folder: Path, archive: Path = KEPT) -> None:
    """Write the archive of a folder's captures; equal captures make equal bytes.

    Each is unpacked first, so that the archive stores only once what captures have in common.
    """
    with tarfile.open(archive, "w:xz", preset=9) as kept:
        for file in sorted(folder.glob("*.capture")):
            stored = io.BytesIO()
            with zipfile.ZipFile(file) as packed, zipfile.ZipFile(stored, "w") as unpacked:
                for name in packed.namelist():
                    unpacked.writestr(zipfile.ZipInfo(name), packed.read(name))
            member = tarfile.TarInfo(file.name)
            member.size = stored.tell()
            stored.seek(0)
            kept.addfile(member, stored)


if __name__ == "__main__":
    make_missing(sys.argv[1], Path(sys.argv[2]))
    keep(Path(sys.argv[2]))
