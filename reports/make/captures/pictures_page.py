"""How far are captured steps of networks over pictures from what timm measured?

One network of each family of timm 0.6.7, as its ``benchmark.py`` trained them on one RTX 3090 in
July 2022 with torch 1.12 (``results/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv`` of
huggingface/pytorch-image-models). ``reports/data/pictures.csv`` has the measured steps and what was
predicted before anybody here had seen one; the captures are kept in one archive.

``python -m reports.make.captures.pictures_page`` writes ``reports/pictures.md``; with PYTHON and
FOLDER it first makes the captures that the folder lacks, by the Python of an environment with timm
0.6.7 and torch 2.13, and the archive of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from reports.make.captures.foundry_rows import keep, kept_captures
from reports.make.captures.own_code import ran
from reports.make.captures.published_rows import CAPTURES
from simulator.capture.result import simulate_capture
from simulator.capture.table import Capture
from simulator.cells import Row, read_table
from simulator.described.load import load_profile
from simulator.files import write_whole

PROFILE = "rtx-3090-24gb"
_HOME = CAPTURES.parents[1]
TABLE_FILE = _HOME / "reports" / "data" / "pictures.csv"
PAGE_FILE = _HOME / "reports" / "pictures.md"
KEPT = CAPTURES / "pictures.tar.xz"
_SCRIPT = _HOME / "workloads" / "capture" / "pictures.py"
_COLUMNS = (
    "model", "batch", "side", "measured_step_s", "first_step_s", "first_low_s", "first_high_s",
    "first_reserved_gib",
)  # fmt: skip

_HEAD = """# Networks over pictures, captured

Made by `make pictures`. One network of each family of timm 0.6.7 is
captured from `workloads/capture/pictures.py` and simulated on one RTX 3090. timm measured them
there in July 2022, with torch 1.12, autocast to fp16, channels last and SGD
(`results/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv` of huggingface/pytorch-image-models).

*First sight* is what was predicted before anybody here had seen one of these steps; a line of
`reports/data/pictures.csv` is written once. Fifteen networks could not be captured then: they
decide by numbers of a tensor that they make themselves, which captures know since. *Now* has
causes that the first errors pointed to and that are known without them:

- a group of channels is a product of its own, or several share a tile (CUTLASS's `GroupMode`); a
  filter over single channels is no product;
- a convolution reads its picture once, not once for each place of its filter (implicit GEMM,
  arXiv 1410.0759);
- norms over pictures read their input twice;
- the gradient of a bias streams, after a start that was measured on an H100 (`column_sum_start`);
- a product with a small result and a long sum may be cut into more than 16 parts.

All these steps ran, with the largest batch that timm's search found to fit. *Fits* counts those
whose reserved memory is predicted within the device.

"""

_NOT_MODELLED = """
Not modelled:

- **Kernels for groups of channels in this layout.** RegNet, ResNeSt, NFNet and DPN take one and a
  half to four times as long as predicted. timm's own tables show that this is the layout. In July
  2022 the same card trained `regnetx_032` in 486 ms without channels last and in 1,242 ms with it,
  and `nfnet_f0` in 806 and in 1,926 ms (`benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv`); most
  networks gain from it. Newer releases may be quicker: with torch 2.4 the forward pass of
  `regnetx_032` is 1.32 times as fast as with torch 1.12, and that of `resnext50_32x4d`, whose
  groups are narrow, 1.01 times (`benchmark-infer-amp-nhwc-*`). One such kernel does without matrix
  units (`wgrad2d_grouped_direct_kernel`, pytorch/pytorch#34977: 35 times as slow as in the other
  layout).
- **Backward of filters over single channels where there are few**: MobileNet, EfficientNet and
  GhostNet are met in the forward pass and too fast in backward.
- **Changes of layout inside of a convolution**, of inputs that are not in channels last as its
  weights are: a capture does not keep strides (PoolFormer, CoaT).
- **Its fused LSTM**: Sequencer is captured step by step, and bound by launches.
- **One card of a kind clocks higher than another**: networks of plain products are too slow on the
  clock that language models ask of this card.
"""


@dataclass(frozen=True)
class Picture:
    """One network.

    Attributes:
        row: Of the table.
        step_s, low_s, high_s: Predicted now, and the band of eight in ten [s].
        reserved_gib: What the allocator reserves [GiB].
        has_groups: Whether a convolution has groups of several channels.
    """

    row: Row
    step_s: float
    low_s: float
    high_s: float
    reserved_gib: float
    has_groups: bool

    @property
    def measured_s(self) -> float:
        """Measured step [s]."""
        return float(self.row["measured_step_s"])

    @property
    def error_pct(self) -> float:
        """Of the step now [%]."""
        return 100 * (self.step_s / self.measured_s - 1)

    @property
    def first_error_pct(self) -> float | None:
        """Of the step at first sight [%]; None where it could not be captured."""
        first_s = self.row["first_step_s"]
        return 100 * (float(first_s) / self.measured_s - 1) if first_s else None

    @property
    def was_in_band(self) -> bool:
        """Whether the first band held."""
        return float(self.row["first_low_s"]) <= self.measured_s <= float(self.row["first_high_s"])

    @property
    def is_in_band(self) -> bool:
        """Whether the band holds now."""
        return self.low_s <= self.measured_s <= self.high_s

    def line(self) -> str:
        """Its line of the table, in Markdown."""
        row, first_pct = self.row, self.first_error_pct
        cells = (
            row["model"],
            f"{row['batch']} of {row['side']}",
            f"{1000 * self.measured_s:.0f} ms",
            "not captured" if first_pct is None else f"{first_pct:+.1f} %",
            f"{1000 * self.step_s:.0f} ms, {self.error_pct:+.1f} %",
            f"{self.reserved_gib:.1f} GiB",
        )
        return f"| {' | '.join(cells)} |"


def picture(row: Row, capture: Capture) -> Picture:
    """A network's step on the card."""
    found = simulate_capture(capture, load_profile(PROFILE))
    reserved_bytes = max(each.peak_reserved_bytes for each in found.memory)
    low_s, high_s = found.step_time_band_s or (found.step_time_s, found.step_time_s)
    gib = reserved_bytes / 2**30
    return Picture(row, found.step_time_s, low_s, high_s, gib, _has_groups(capture))


def _has_groups(capture: Capture) -> bool:
    """Whether a convolution has several groups, of more than one channel each."""
    convolutions = (
        each.inputs for each in capture.tables[0].calls if each.name == "aten.convolution.default"
    )
    return any(1 < weight.shape[1] < given.shape[1] for given, weight, *_ in convolutions)


def page(found: Sequence[Picture]) -> str:
    """The page, in Markdown."""
    return _HEAD + "\n".join((*_summary(found), "", *_lines(found))) + "\n" + _NOT_MODELLED


def _summary(found: Sequence[Picture]) -> Iterator[str]:
    memory_gib = load_profile(PROFILE).device.memory_bytes / 2**30
    seen = [each for each in found if each.first_error_pct is not None]
    first = _errors(each.first_error_pct or 0.0 for each in seen)
    first_fits = sum(float(each.row["first_reserved_gib"]) <= memory_gib for each in seen)
    now_fits = sum(each.reserved_gib <= memory_gib for each in found)
    yield "| | networks | mean % | median % | bias % | in the band of 80 % | fits |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    held = sum(each.was_in_band for each in seen), sum(each.is_in_band for each in found)
    now = _errors(each.error_pct for each in found)
    yield f"| first sight | {len(seen)} | {first} | {held[0]} | {first_fits} |"
    yield f"| now | {len(found)} | {now} | {held[1]} | {now_fits} |"
    plain = [each for each in found if not each.has_groups]
    fits = sum(each.reserved_gib <= memory_gib for each in plain)
    errors = _errors(each.error_pct for each in plain)
    in_band = sum(each.is_in_band for each in plain)
    yield f"| now, without groups of channels | {len(plain)} | {errors} | {in_band} | {fits} |"


def _errors(errors_pct: Iterable[float]) -> str:
    """Mean, median and bias, as cells."""
    known = list(errors_pct)
    sizes = [abs(each) for each in known]
    return f"{fmean(sizes):.1f} | {median(sizes):.1f} | {fmean(known):+.1f}"


def _lines(found: Iterable[Picture]) -> Iterator[str]:
    yield "| network | pictures | measured | first sight | now | reserved |"
    yield "|---|---:|---:|---:|---:|---:|"
    yield from (each.line() for each in found)


def pictures(kept: Mapping[str, Capture]) -> list[Picture]:
    """Every row that has a capture, in the order of the table."""
    rows = read_table(TABLE_FILE, _COLUMNS)
    return [picture(row, kept[row["model"]]) for row in rows if row["model"] in kept]


def make_missing(python: str, folder: Path) -> None:
    """Make the captures that a folder lacks."""
    for row in read_table(TABLE_FILE, _COLUMNS):
        file = folder / f"{row['model']}.capture"
        if file.is_file():
            continue
        sys.stderr.write(f"{row['model']}\n")
        command = [python, "-m", "simulator", "capture", str(_SCRIPT), "--out", str(file)]
        given = ["--world", "1", "--device", PROFILE, "--", "--model", row["model"]]
        sizes = ["--batch", row["batch"], "--side", row["side"]]
        with TemporaryDirectory() as talk:
            ran([*command, *given, *sizes], Path(talk))


def main(arguments: Sequence[str]) -> None:
    """Make what is missing, and the page."""
    if arguments:
        python, folder = arguments[0], Path(arguments[1])
        make_missing(python, folder)
        keep(folder, KEPT)
    write_whole(PAGE_FILE, page(pictures(kept_captures(KEPT))))


if __name__ == "__main__":
    main(sys.argv[1:])
