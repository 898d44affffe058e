"""Which texts and files does the project take from a user, and who reads each?

One line per reader: its sample files, and the call that a command makes of them in this process.
What may come out is a value or an InputError; anything else is a finding.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

import simulator as sim
from simulator.cli.app import BUG, main
from simulator.cli.options import note_doubts_on, parse_assignments
from simulator.described.documents import SafeLoader, parse_yaml
from simulator.described.job import Job
from simulator.described.load import load_model, load_profile, read_schedule_file
from simulator.errors import DoesNotFitError, InputError
from simulator.importers.assembly import Given
from simulator.importers.formats import FORMATS
from tests.fuzz.samples import (
    CHANGES,
    RAW,
    ROOT,
    SMALL,
    Sample,
    capture_files,
    files,
    launch_files,
    matrices,
    nccl_outputs,
    of_format,
    profiled,
    questions,
    rank_traces_file,
    texts,
)

MOST_PASSES = 256
"""Of a job that is also simulated, so that ten seconds are a fault of ours."""
_MOST_SIMULATED_LINES = 100
"""Of a table whose rows are simulated, so that ten seconds are a fault of ours."""
_FEW_REQUESTS, _MOST_TOKENS = 6, 20_000
"""Of a workload that is also served, so that ten seconds are a fault of ours."""


class BugError(Exception):
    """A command ended with exit code 3; says what it printed."""


class LateRefusalError(Exception):
    """A job was accepted, and then refused where it was simulated."""


@dataclass(frozen=True)
class Reader:
    """One way for a user's text into the project.

    Attributes:
        samples: Makes the files to start from.
        read: Reads a file as a command does.
        share: How many of a campaign's inputs are for it, against those of the others; what takes
            long gets fewer.
        needs: A library without which nothing reads it.
    """

    samples: Callable[[], Iterable[Sample]]
    read: Callable[[Path], object]
    share: float = 1.0
    needs: str = ""


@cache
def samples_of(name: str) -> tuple[Sample, ...]:
    """The files that a reader starts from, made once."""
    found = tuple(READERS[name].samples())
    assert found, name
    return found


def _text(path: Path) -> str:
    """A text that is given as an option or in a field; Python's own words are always decodable."""
    return path.read_bytes().decode(errors="replace")


_GIVEN = (
    Given(),
    Given(gpus=64),
    Given(gpus=64, model="gpt2", seq_len=1024, global_batch=4608),
)
"""What a user says beside a framework's file; which of it follows from the file."""


def _read_format(name: str) -> Callable[[Path], object]:
    """The job of a framework's file as a command prints it, read once more from there."""

    def read(path: Path) -> object:
        given = _GIVEN[zlib.crc32(path.read_bytes()) % len(_GIVEN)]
        job, report = FORMATS[name].read([path], given)
        str(report)
        printed = yaml.load(yaml.safe_dump(dict(job.document), sort_keys=False), SafeLoader)
        assert sim.load_job(printed).document == job.document, "an imported job is another one"
        return job

    return read


def _read_job(path: Path) -> Job:
    job = sim.load_job(path)
    for pool in job.cluster.pools or (job.cluster,):
        note_doubts_on(pool.profile)
    str(job.title)
    return job


def _is_large(job: Job) -> bool:
    return max(job.microbatches * job.plan.pp * job.plan.vpp, job.model.layers) > MOST_PASSES


def simulated(job: Job) -> object:
    """A small job's step, as a command prints it; others are only loaded.

    Raises:
        LateRefusalError: It is refused only now.
    """
    if _is_large(job):
        return None
    try:
        return sim.simulate(job, engine="replay").to_json()
    except InputError as refused:
        raise LateRefusalError(str(refused)) from refused


def loaded_small(changes: Mapping[str, Any]) -> Job:
    """A small job with changes."""
    return sim.load_job(SMALL, changes)


def _read_changes(path: Path) -> Job:
    """A job with one ``--set`` per line."""
    return loaded_small(parse_assignments(_text(path).splitlines()))


def _plan_with(field: str) -> Callable[[Path], object]:
    """A job one field of whose plan or batch is a text."""
    return lambda path: sim.load_job(SMALL, {field: _text(path)})


def _plan_with_file(field: str, more: Mapping[str, Any] | None = None) -> Callable[[Path], object]:
    return lambda path: sim.load_job(SMALL, {field: {"file": str(path)}, **(more or {})})


def _read_order(path: Path) -> object:
    from simulator.schedule.written import written_schedule

    given = read_schedule_file(path, "plan.schedule")
    return written_schedule("\n".join(given.rows), str(path))


def _read_quantity(path: Path) -> object:
    from simulator.units import UNITS, parse_quantity

    read, text = [], _text(path)
    for dimension in UNITS:
        with contextlib.suppress(ValueError):  # callers say of which field
            read.append(parse_quantity(text, dimension))
    if not read:
        raise InputError.single("quantity", "has no such unit", text)
    return read


def _read_topology(path: Path) -> object:
    from simulator.importers.node_topology import node_topology, read_topology_matrix

    matrix = read_topology_matrix(path)
    return str(node_topology(matrix, load_profile("h100-sxm-80gb"), path.name).report)


def _read_nccl(path: Path) -> object:
    from simulator.importers.nccl_tests.nccl_tests_output import read_nccl_tests

    return read_nccl_tests(path, partial=bool(zlib.crc32(path.read_bytes()) % 2))


def _command(*words: str) -> Callable[[Path], int]:
    """A command on a file; FILE stands for its path."""
    return lambda path: run_command([word.replace("FILE", str(path)) for word in words])


def _published_runs(path: Path) -> int:
    """The command that simulates the rows of a table."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:_MOST_SIMULATED_LINES]))
    return run_command(["validate", "published", str(path), "--json", "--workers", "1"])


def run_command(words: list[str]) -> int:
    """The exit code of a command line.

    Raises:
        BugError: It is that of a bug.
    """
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
    if code == BUG:
        raise BugError(said.getvalue())
    if code not in (0, 1):
        raise InputError.single("", said.getvalue())
    return code


_NOT_RUN = frozenset({"studio", "mcp", "capture", "calibrate", "rent", "serve", "init", "plan"})
"""Commands that wait for somebody, run somebody's script, or search for long."""
_POOLS = frozenset({"sweep", "validate"})
"""Commands that share their work among processes, unless they are told one."""
_WRITES = frozenset({"--out", "--plot", "--html", "--trace", "--dask", "--kept"})
_LINES = (
    "run gpt2-1xa100 --json --set batch.global=24 --set batch.seq_len=512",
    "memory gpt2-1xa100 --json --set batch.global=24 --set plan.zero=1",
    "compare gpt2-1xa100 gpt2-1xa100 --set plan.precision=fp32",
    "schedule show 1f1b --pp 4 --microbatches 8",
    "schedule compare 1f1b zb-h1 --pp 4 --microbatches 8 --weight 1",
    "collective show ring_all_reduce --ranks 8 --size '64 MiB'",
    "capacity gpt2-1xa100 --tokens 1B --json",
    "diagnose gpt2-1xa100 --step 1.9s --memory 20GiB --json",
    "sweep gpt2-1xa100 --grid batch.micro=1,2 --workers 1",
    "placement gpt2-1xa100", "traffic gpt2-1xa100 --json",
    "models count gpt2 --json", "profile show h100-sxm-80gb --json",
    "limits gpt2-1xa100 --json --set batch.global=24", "sensitivity gpt2-1xa100 --json",
    "export megatron gpt2-1xa100", "export torchtitan gpt2-1xa100", "export deepspeed gpt2-1xa100",
    "export accelerate gpt2-1xa100", "export axolotl gpt2-1xa100",
)  # fmt: skip


def _read_line(path: Path) -> object:
    """A command line; commands that do not end by themselves are left out."""
    try:
        words = shlex.split(_text(path))
    except ValueError:
        return None  # of a shell's making, not of ours
    if not words or words[0] in _NOT_RUN or {w.partition("=")[0] for w in words} & _WRITES:
        return None
    line = " ".join(words).replace("=", " ")
    if (words[0] in _POOLS or "--workers" in line) and "--workers 1 " not in f"{line} ":
        return None  # it would start processes, which the limits here forbid
    return run_command([word for word in words if "\0" not in word])


def _serving(path: Path) -> object:
    """What few requests of a deployment get; that they do not fit is an answer."""
    from simulator.serving.answers import answers_of
    from simulator.serving.cluster import serve
    from simulator.serving.described import load_serving
    from simulator.serving.requests import requests_of

    load_serving(path)
    job = load_serving(path, {"workload.requests": _FEW_REQUESTS})
    requests = requests_of(job.workload)
    if sum(request.output_tokens for request in requests) > _MOST_TOKENS:
        return None
    with contextlib.suppress(DoesNotFitError):
        served = serve(job.deployment, job.workload, requests=requests)
        return answers_of(served, job.deployment, job.workload).to_dict()
    return None


def _launch_file(path: Path) -> object:
    """The deployment of a file whose name says the engine, as a command reads it."""
    from simulator.serving.described import load_serving
    from simulator.serving.launch.launch_lines import read_launch

    return load_serving(read_launch(path.stem, path, profile="h100-sxm-80gb").document)


def _requests(path: Path) -> object:
    from simulator.serving.described import load_serving
    from simulator.serving.requests import requests_of

    job = load_serving(ROOT / "workloads" / "serving" / "llama3-70b-8xh100.yaml",
                       {"workload.trace": str(path)})  # fmt: skip
    return requests_of(job.workload)


def _offers(path: Path) -> object:
    from simulator.planning.offers.offers_file import cases, load_offers

    return cases(load_offers(path), ROOT / "workloads" / "offers" / path.name)


def _campaign(path: Path) -> object:
    from simulator.described.documents import read_yaml

    given = read_yaml(path)
    return sim.load_job(SMALL, {"campaign": given.get("campaign", given)})


def _journal(path: Path) -> object:
    from simulator.planning.sweep import Journal

    with Journal(path, {"job": "a"}) as journal:
        return journal.rows


def _published_rows(path: Path) -> object:
    from simulator.validate.published.published_rows import job_document
    from simulator.validate.published.published_runs import read_rows

    read = []
    for row in read_rows(path):
        with contextlib.suppress(InputError):  # a row that cannot run is skipped with its reason
            read.append(sim.load_job(job_document(row)))
    return read


def _question(path: Path) -> object:
    """What the page of the studio asks: the name of a question, and its object."""
    from simulator.studio.controls import job_of
    from simulator.studio.job_answers import QUESTIONS, SEARCHES, answered

    try:
        name, _, body = _text(path).partition(" ")
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None  # refused by the server before it is a question
    if name not in QUESTIONS - SEARCHES or not isinstance(asked, dict):
        return None
    if isinstance(state := asked.get("state"), dict):
        with contextlib.suppress(Exception):  # what is wrong is for the answer to say
            if _is_large(job_of(state)):
                return None
    with contextlib.redirect_stderr(io.StringIO()) as said:
        answer = json.loads(answered(name, asked))
    if "bug" in answer:
        raise BugError(said.getvalue())
    if "faults" in answer:
        raise InputError.single("", str(answer["faults"]))
    return answer


def _read_capture(path: Path) -> object:
    from simulator.capture.file import read_capture
    from simulator.capture.table import COLUMNS

    capture = read_capture(path)
    return capture, [
        (table.calls, [getattr(table, c) for c in COLUMNS]) for table in capture.tables
    ]


def _replayed(path: Path) -> object:
    from simulator.chakra.to_program import replay_traces
    from simulator.chakra.trace_files import read_traces

    return replay_traces(read_traces([path]), load_profile("a100-sxm-80gb")).step_time_s


def _read_profiled(path: Path) -> object:
    from simulator.validate.measured_trace.measured_step import read_step

    return read_step(path)


def _read_raw(path: Path) -> object:
    from simulator.calibrate.gpu.raw_file import read_raw_file

    return read_raw_file(path)


_JOBS = "workloads/*.yaml"
READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "job": Reader(files(_JOBS), _read_job, 6),
        "job-simulated": Reader(files(_JOBS), lambda path: simulated(_read_job(path)), 0.3),
        "set-options": Reader(texts(".txt", *CHANGES), _read_changes, 6),
        "value": Reader(texts(".txt", "8", "[1, 2]", "{a: b}", "80 GiB"),
                        lambda path: parse_yaml(_text(path)), 14),
        "quantity": Reader(texts(".txt", "80 GiB", "450 GB/s", "2.5 us", "1.5 USD/h", "3T"),
                           _read_quantity, 12),
        "layout": Reader(texts(".txt", "Ett|ttL", "Et*3|tL", "E|t*4,L"),
                         _plan_with("plan.layout"), 6),
        "schedule": Reader(texts(".csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
                                  "0F0,,,0I0,0W0\n,1F0,1B0,,\n"), _read_order, 10),
        "lengths": Reader(texts(".txt", "128\n512\n64\n"), _plan_with_file("batch.lengths"), 3),
        "expert-load": Reader(
            texts(".txt", "1 1 2 4 1 1 2 4", "0.5, 0.25, 0.25, 1, 1, 1, 1, 1"),
            _plan_with_file("plan.expert_load", {"model.base": "mixtral-8x7b", "plan.ep": 2}), 3),
        "model": Reader(files("workloads/models/*.yaml"), load_model, 6),
        "config.json": Reader(files("tests/importers/configs/*.json"),
                              load_model, 8),
        "profile": Reader(files("hardware_profiles/h*.yaml", "hardware_profiles/[vmg]*.yaml"),
                          lambda path: note_doubts_on(load_profile(path)), 1.5),
        "topology": Reader(matrices, _read_topology, 6),
        "nccl-tests": Reader(nccl_outputs, _read_nccl, 5),
        "campaign": Reader(files("reports/data/campaigns/*.yaml"), _campaign, 3),
        "offers": Reader(files("workloads/offers/*.yaml"), _offers, 1),
        "serving": Reader(files("workloads/serving/*.yaml"), _serving, 3),
        "launch-file": Reader(launch_files, _launch_file, 3),
        "serving-runs": Reader(
            texts(".csv", "id,source,engine,engine_version,model,weight_dtype,gpu,gpus,tp,pp,ep,"
                           "dp,scenario,isl,osl,concurrency_or_batch,output_tokens_per_s\n"
                           "a,a paper,vllm,0.9,llama3.1-8b,bf16,h100-sxm-80gb,1,1,1,1,1,"
                           "closed loop (fixed concurrency),128,8,4,200\n"),
            _command("validate", "serving", "FILE", "--json", "--workers", "1"), 0.1),
        "requests": Reader(
            lambda: [
                Sample("t.csv", b"arrival_s,input_tokens,output_tokens\n0,10,5\n0.5,20,5\n"),
                Sample("t.jsonl", b'{"timestamp": 0, "input_length": 600, "output_length": 5, '
                                  b'"hash_ids": [1, 2]}\n' * 2),
            ], _requests, 3),
        "journal": Reader(texts(".journal", '{"job": "a"}\n{"number": 0, "row": {"error": ""}}\n'),
                          _journal, 6),
        "capture": Reader(capture_files, _read_capture, 6),
        "chakra": Reader(rank_traces_file, _replayed, 1, "google.protobuf"),
        "profiler-trace": Reader(profiled, _read_profiled, 1),
        "gpu-measurements": Reader(texts(".jsonl", RAW + "\n"), _read_raw, 6, "torch"),
        "published-runs": Reader(files("reports/data/runs_open*.csv"), _published_rows, 0.3),
        "published-runs-simulated": Reader(
            files("reports/data/runs_open*.csv"), _published_runs, 0.02),
        "collectives": Reader(files("reports/data/collectives_open*.csv"),
                              _command("validate", "collectives", "FILE", "--json"), 0.1),
        "kernels": Reader(
            texts(".csv", "id,op,gpu,dtype,m,n,k,batch,seq,head_dim,causal,direction,"
                           "time_us,notes\n"
                           "a,gemm,NVIDIA H100 SXM,bf16,4096,4096,4096,,,,,,250,\n"
                           "b,flash_attention_3,NVIDIA H100 SXM,fp16,,,,2,1024,128,True,fwd,100,"
                           '"heads 16, kv heads 4"\n'),
            _command("validate", "kernels", "FILE", "--json"), 0.1),
        "studio-question": Reader(questions, _question, 0.5),
        "command-line": Reader(texts(".txt", *_LINES), _read_line, 0.2),
        **{name: Reader(of_format(name), _read_format(name), 2) for name in FORMATS},
    }
)  # fmt: skip
