"""Which files does a campaign of hostile inputs start from?

Each is read without a fault, or nearly so: files of the repository, or written here.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import simulator as sim
from tests.importers.samples import files_of_formats

ROOT = Path(__file__).parents[2]
IMPORTED = ROOT / "tests" / "importers"
_MOST_SAMPLE_BYTES = 20_000
_TABLE_ROWS = 3


class Sample(NamedTuple):
    """A file that is read without a fault, or nearly so.

    Attributes:
        name: How the file is called; the suffix decides who reads it.
        content: What it holds.
    """

    name: str
    content: bytes


def files(*patterns: str) -> Callable[[], Iterator[Sample]]:
    """Files of the repository; of long tables the first rows."""

    def read() -> Iterator[Sample]:
        for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
            content = path.read_bytes()
            if path.suffix == ".csv":
                content = b"".join(content.splitlines(keepends=True)[: 1 + _TABLE_ROWS])
            if len(content) <= _MOST_SAMPLE_BYTES:
                yield Sample(path.name, content)

    return read


def of_format(name: str) -> Callable[[], Iterator[Sample]]:
    """Sample files of a training framework."""
    return lambda: (
        Sample(path.name, path.read_bytes()) for path, form in files_of_formats() if form == name
    )


def texts(suffix: str, *texts: str) -> Callable[[], Iterator[Sample]]:
    def made() -> Iterator[Sample]:
        for text in texts:
            yield Sample(f"sample{suffix}", text.encode())

    return made


SMALL: Mapping[str, Any] = MappingProxyType(
    {
        "model": {"base": "gpt2", "layers": 4},
        "cluster": {"profile": "h100-sxm-80gb", "gpus": 16},
        "batch": {"global": 32, "seq_len": 512},
        "plan": {"tp": 2, "pp": 2},
    }
)


def launch_files() -> Iterator[Sample]:
    from tests.serving import test_launch_lines as made

    for name, text in (("vllm.sh", made.VLLM), ("sglang.sh", made.SGLANG),
                       ("tensorrt-llm.yaml", made.TRTLLM)):  # fmt: skip
        yield Sample(name, text.encode())


def questions() -> Iterator[Sample]:
    from simulator.studio.controls import START

    for name, more in (("step", {"timeline": False}), ("copy", {"form": "yaml"})):
        yield Sample("q.txt", f"{name} {json.dumps({'state': START, **more})}".encode())
    config = (IMPORTED / "configs" / "gpt2.json").read_text()
    yield Sample("q.txt", f"model {json.dumps({'text': config})}".encode())


def capture_files() -> Iterator[Sample]:
    from simulator.capture.file import write_capture
    from tests.capture.made_up import Step, capture_of

    step = Step()
    step.kernel(after=[step.kernel()])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample.capture"
        write_capture(capture_of(step), path)
        yield Sample(path.name, path.read_bytes())


def rank_traces_file() -> Iterator[Sample]:
    from simulator.chakra.from_program import rank_traces
    from simulator.chakra.trace_files import write_trace

    job = sim.load_job(SMALL, {"model.layers": 2, "batch.global": 16})
    program = sim.simulate(job, engine="replay").timeline.program
    with tempfile.TemporaryDirectory() as folder:
        trace = next(iter(rank_traces(job, program, None, 1.0)))
        path = Path(folder) / "job.0.et"
        write_trace(trace, path)
        yield Sample(path.name, path.read_bytes())


def profiled() -> Iterator[Sample]:
    from tests.validate.test_trace_recounts import CASES, nsight

    packed = ROOT / "tests" / "validate" / "ddp_2.trace.json.gz"
    document = json.loads(gzip.decompress(packed.read_bytes()))
    events = document["traceEvents"][:60]
    yield Sample("t.json", json.dumps({**document, "traceEvents": events}).encode())
    yield Sample("t.json.gz", gzip.compress(json.dumps({"traceEvents": events[:9]}).encode()))
    with tempfile.TemporaryDirectory() as folder:
        trace, _ = next(iter(CASES.values()))
        yield Sample("t.sqlite", nsight(Path(folder) / "t.sqlite", trace).read_bytes())


def nccl_outputs() -> Iterator[Sample]:
    from tests.nccl_output import Bench, json_output, rccl_output, text_output

    bench = Bench("all_reduce", time_us=lambda size: 20.0 + size / 4e5)
    sizes = [1024, 2**20]
    yield Sample("nccl.txt", text_output(bench, sizes).encode())
    yield Sample("rccl.txt", rccl_output(bench, sizes).encode())
    yield Sample("nccl.json", json_output(bench, sizes).encode())


def matrices() -> Iterator[Sample]:
    from tests import topology_text as made

    yield Sample("topo.txt", made.nvidia_text(made.CUBE_MESH).encode())
    yield Sample(
        "topo.txt", made.nvidia_text(made.uniform(4, "NV18"), ["PIX SYS SYS SYS"]).encode()
    )
    yield Sample("topo.txt", made.amd_text(4, "XGMI").encode())


CHANGES = (
    "plan.tp=4\nplan.schedule=1f1b\nbatch.micro=2",
    "model.experts={count: 8, top_k: 2, ffn_hidden: 64}\nplan.ep=2",
    "cluster.device.memory=80 GiB\ncluster.network.fabric.nic=400 Gbit/s",
    "perturbations=[{gpu: 0, slowdown: 0.2}]\nplan.zero=1",
    "plan.lora={rank: 8, targets: [qkv]}\nplan.recompute=full",
    "plan.schedule=interleaved-1f1b\nplan.vpp=2\nplan.overlap_p2p=true",
)


RAW = "\n".join(
    json.dumps(line)
    for line in (
        {"kind": "device", "name": "H100", "type": "cuda", "torch": "2.5", "date": "2026-01-01",
         "memory_bytes": 85 * 10**9},
        {"kind": "kernel", "case": {"op": "gemm", "dtype": "bf16", "m": 128, "n": 128},
         "samples_s": [1e-5], "flop": 1.0, "num_bytes": 2.0, "notes": ""},
    )
)  # fmt: skip
