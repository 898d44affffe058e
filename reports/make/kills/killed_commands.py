"""Which commands are killed, on which small inputs?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "workloads" / "capture" / "ddp.py"
SERVING = ROOT / "workloads" / "serving" / "llama3-70b-8xh100.yaml"

JOB = """
model: {base: gpt2, layers: 4}
cluster: {profile: a100-sxm-80gb, gpus: 8}
batch: {global: 32, seq_len: 1024}
"""

OFFERS = """
offers:
  one: {cluster: {profile: a100-sxm-80gb}, gpus: [8], price: {gpu: 1 USD/h, source: assumed}}
  two: {cluster: {profile: h100-sxm-80gb}, gpus: [8], price: {gpu: 2 USD/h, source: assumed}}
workloads:
  small: {job: {model: gpt2, batch: {global: 32, seq_len: 1024}}, tokens: 1B}
"""

_GRID = ("--grid", "plan.tp=1,2,4", "--grid", "plan.zero=0,1,2,3")


@dataclass(frozen=True)
class KilledCommand:
    """A command that is killed.

    Attributes:
        name: In the table.
        words: After ``clustersim``, in a folder with the inputs.
        out: The file that it writes; its answer is on stdout where there is none.
        keeps_rows: Whether finished rows are kept in a journal beside that file.
    """

    name: str
    words: tuple[str, ...]
    out: str = ""
    keeps_rows: bool = False

    @property
    def journal(self) -> str:
        """Name of the journal."""
        return f"{self.out}.journal"


SWEEP = KilledCommand(
    "sweep --workers 2",
    ("sweep", "job.yaml", *_GRID, "--workers", "2", "--out", "out.csv"),
    "out.csv",
    keeps_rows=True,
)
SWEEP_ALONE = KilledCommand(
    "sweep --workers 1",
    ("sweep", "job.yaml", *_GRID, "--workers", "1", "--out", "out.csv"),
    "out.csv",
    keeps_rows=True,
)
COMMANDS = (
    SWEEP,
    SWEEP_ALONE,
    KilledCommand(
        "rent --workers 2",
        ("rent", "offers.yaml", "--members", "4", "--workers", "2", "--out", "out.csv"),
        "out.csv",
        keeps_rows=True,
    ),
    KilledCommand(
        "validate published --workers 2",
        ("validate", "published", "runs.csv", "--workers", "2", "--out", "out.csv"),
        "out.csv",
    ),
    KilledCommand("plan --workers 2", ("plan", "job.yaml", "--workers", "2", "--json")),
    KilledCommand(
        "calibrate runs",
        ("calibrate", "runs", "runs.csv", "--profile", "h100-sxm-80gb", "--out", "out.yaml"),
        "out.yaml",
    ),
    KilledCommand(
        "calibrate collectives",
        (
            "calibrate",
            "collectives",
            "all_reduce.txt",
            "--profile",
            "h100-sxm-80gb",
            "--out",
            "out.yaml",
        ),
        "out.yaml",
    ),
    KilledCommand(
        "capture",
        ("capture", str(SCRIPT), "--world", "1", "--out", "out.capture"),
        "out.capture",
    ),
    KilledCommand(
        "serve sweep",
        ("serve", "sweep", str(SERVING), "--rates", "1,2", "--json"),
    ),
)


def write_inputs(folder: Path) -> None:
    """Everything that the commands read."""
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    (folder / "offers.yaml").write_text(OFFERS, encoding="utf-8")
    runs = (ROOT / "reports/data/runs_open.csv").read_text(encoding="utf-8").splitlines(True)
    (folder / "runs.csv").write_text("".join(runs[:9]), encoding="utf-8")
    (folder / "all_reduce.txt").write_text(_nccl_output(), encoding="utf-8")


def _nccl_output() -> str:
    """What nccl-tests prints for eight ranks at 400 GB/s and 20 us."""
    lines = [
        "# nThread 1 nGpus 8 minBytes 1024 maxBytes 1073741824 step: 4(factor) warmup iters: 5",
        "# Using devices",
        *(
            f"#  Rank {rank} Group 0 Pid 1 on node device {rank} [0x00] NVIDIA H100 80GB HBM3"
            for rank in range(8)
        ),
        "#       size         count      type   redop    root     time   algbw   busbw #wrong",
    ]
    for exponent in range(10, 31, 2):
        num_bytes = 2**exponent
        time_us = 20 + num_bytes * 1.75 / 400e9 * 1e6
        rate = num_bytes / time_us / 1e3
        lines.append(
            f"{num_bytes} {num_bytes // 4} float sum -1 "
            f"{time_us:.2f} {rate:.2f} {rate * 1.75:.2f} 0"
        )
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 200", "#"]
    return "\n".join(lines) + "\n"
