"""What do the text that nccl-tests and rccl-tests print, and the JSON of nccl-tests, hold?

Logs come as people keep them: several runs in one file, debug lines of NCCL between the rows,
labels of srun or mpirun before every line, colours. Columns are found by their heading. The JSON
keeps the whole environment of the process and the command line; neither is read, but for the
program's name.

Source: src/util.cu and src/common.cu of nccl-tests; version 2 of its JSON files.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.files import read_text as read_file
from simulator.files import strict_json
from simulator.importers.nccl_tests.measured_collective import ALGORITHM_OF_NAME
from simulator.importers.nccl_tests.nccl_tests_run import (
    PROGRAMS,
    SAY,
    CollectiveFile,
    Device,
    Entry,
    Excerpt,
    Excluded,
    Run,
    file_of_runs,
    library_name,
    number,
)

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LABEL = re.compile(
    r"^\s*(?:\[[^\]\s]+\](?:<\w+>)?:?|\d+:|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-][\d:]+)?)\s?"
)
_PROGRAM = re.compile(rf"(?<![a-z_])({'|'.join(PROGRAMS)})_perf(?![a-z]*\.)")
_BUILDING = re.compile(r"^\s*(?:Compiling|Linking|make)\b")
_SETTINGS = re.compile(r"\bnThread (\d+) nGpus (\d+) minBytes (\d+) maxBytes (\d+)")
_OPERATIONS = re.compile(r"\bagg iters: (\d+)")
_DEVICE = re.compile(
    r"\bRank +(\d+)(?: +Group +(\d+))? +Pid +(\d+) +on +(\S+) +device +\d+ +\[[^\]]*\] +(.+?)\s*$"
)
_LIBRARY_CODE = re.compile(r"\bnccl-library=(\d+)")
_LIBRARY = re.compile(r"\b(R?N?CCL) version ?:? *(\d+\.\d+\.\d+)")
_ALGORITHM = re.compile(r"\bNCCL_ALGO(=| set by environment to )\"?([^\s\"]+)")
_ERRORS = re.compile(r"Out of bounds values *: *(\d+)")
_END = "Avg bus bandwidth"
_TYPES = re.compile(r"^(?:u?int(?:8|32|64)|half|float|double|bfloat16|f(?:p)?8\w*|char|int)$")


def read_text(
    text: str, file: str, *, partial: bool, excerpt: Excerpt | None = None
) -> tuple[list[Run], list[str]]:
    """The runs of a log, and what was taken for granted.

    Args:
        text: Everything that was printed.
        file: Its name, for messages; it may also tell the collective.
        partial: Take the rows of runs that were cut off.
        excerpt: What ran, for tables without the lines that say so.

    Raises:
        InputError: No output of these programs, or a run that was cut off.
    """
    reader = _Reader(file, excerpt)
    for count, raw in enumerate(text.splitlines(), start=1):
        line = _LABEL.sub("", _COLOUR.sub("", raw), count=1)
        reader.read(line, count)
    if not reader.runs:
        rule = "is not output of nccl-tests or rccl-tests: no line '# nThread ... nGpus ...'"
        hint = "give all that they print, from '#       size' on at the least, or their JSON"
        raise InputError.single("", rule, hint=hint, file=file)
    for run in reader.runs:
        run.program = run.program or _program_of_file(file)
    if not partial:
        _check_complete(reader, file)
    return [run for run in reader.runs if run.devices or run.entries], reader.assumed


class _Reader:
    """Reads line by line; keeps what a line says of the run to come."""

    def __init__(self, file: str, excerpt: Excerpt | None) -> None:
        self.file = file
        self._excerpt = excerpt
        self.runs: list[Run] = []
        self.assumed: list[str] = []
        self.last_line: dict[int, int] = {}
        self.complete: set[int] = set()
        self._program = ""
        self._library = ""
        self._algorithm = ""
        self._columns: list[str] = []

    def read(self, line: str, count: int) -> None:
        """Take in one line, without label and colours."""
        self._read_library(line)
        self._read_algorithm(line, count)
        if settings := _SETTINGS.search(line):
            self._begin(settings, line, count)
        elif (named := _PROGRAM.search(line)) and not _BUILDING.match(line):
            if "concluded" in line and self.runs:
                self.runs[-1].program = self.runs[-1].program or named[1]
            else:
                self._program = named[1]
        elif device := _DEVICE.search(line):
            self._add_device(device, count)
        elif _END in line and self.runs:
            self.complete.add(len(self.runs) - 1)
        elif (errors := _ERRORS.search(line)) and self.runs:
            located = "wrong" in self._columns
            self.runs[-1].unlocated_errors = 0 if located else int(errors[1])
        else:
            self._read_table(line, count)
        if self.runs:
            self.last_line[len(self.runs) - 1] = count

    def _begin(self, settings: re.Match[str], line: str, count: int) -> None:
        operations = _OPERATIONS.search(line)
        self.runs.append(
            Run(
                place=f"line {count}",
                program=self._program,
                threads=int(settings[1]),
                operations=int(operations[1]) if operations else 1,
                library=self._library,
                algorithm=self._algorithm,
            )
        )
        self._program, self._algorithm, self._columns = "", "", []

    def _add_device(self, device: re.Match[str], count: int) -> None:
        if not self.runs:
            rule = "names a rank before any line '# nThread ... nGpus ...'"
            hint = "keep the output from its first line on"
            raise InputError.single(f"line {count}", rule, hint=hint, file=self.file)
        rank, group, process, host, gpu = device.groups()
        known = self.runs[-1].devices
        if known and int(rank) <= known[-1].rank:
            rule = f"names rank {rank} after rank {known[-1].rank}: each process ran by itself"
            hint = "build nccl-tests with MPI=1, so that the processes form one group"
            raise InputError.single(f"line {count}", rule, hint=hint, file=self.file)
        known.append(Device(int(rank), int(group or 0), host, f"{host} {process}", gpu))

    def _read_library(self, line: str) -> None:
        if code := _LIBRARY_CODE.search(line):
            self._library = library_name(int(code[1]))
            return  # the line stands above its run
        known = self.runs[-1].library if self.runs else self._library
        if "rccl-tests" in line:
            self._library = "RCCL"
        elif version := _LIBRARY.search(line):
            # RCCL also gives the version of the NCCL that it follows.
            name = "RCCL" if known.startswith("RCCL") else version[1]
            self._library = f"{name} {version[2]}"
        else:
            return
        if self.runs:
            self.runs[-1].library = self._library

    def _read_algorithm(self, line: str, count: int) -> None:
        if not (named := _ALGORITHM.search(line)):
            return
        algorithm = ALGORITHM_OF_NAME.get(named[2].lower(), "")
        if not algorithm:
            sentence = f"line {count}: NCCL_ALGO is not a single known algorithm: any is assumed"
            self.assumed.append(sentence)
        elif self.runs and named[1] != "=":
            self.runs[-1].algorithm = algorithm
        else:
            self._algorithm = algorithm  # of a command line, which stands above its run

    def _read_table(self, line: str, count: int) -> None:
        cells = line.replace("#wrong", "wrong").lstrip("# \t").split()
        if cells[:2] == ["size", "count"]:
            self._begin_table(cells, count)
            return
        if len(cells) < 3 or not (cells[0].isdecimal() and cells[1].isdecimal()):
            return
        if not self._columns:
            if _TYPES.match(cells[2]):
                rule = "is a table row without a heading"
                hint = "keep the line '#       size ...' above the table: it names the columns"
                raise InputError.single(f"line {count}", rule, hint=hint, file=self.file)
            return
        self._add_entry(cells, count)

    def _begin_table(self, columns: list[str], count: int) -> None:
        """Note the columns; an excerpt begins with them, and what ran is said beside it."""
        is_excerpt = not self.runs or bool(self.runs[-1].entries)
        if is_excerpt:
            if self._excerpt is None:
                rule = (
                    "is the heading of a table, and no line above it says what ran on which ranks"
                )
                raise InputError.single(f"line {count}", rule, hint=SAY, file=self.file)
            self.runs.append(Run(f"line {count}", library=self._library))
        run = self.runs[-1]
        if self._excerpt is not None:
            run.program = run.program or self._excerpt.program
            if not run.devices:
                run.devices = self._excerpt.devices()
                self.complete.add(len(self.runs) - 1)
        self._columns, run.cpu_time = columns, "cputime" in columns

    def _add_entry(self, cells: Sequence[str], count: int) -> None:
        run, columns, place = self.runs[-1], self._columns, f"line {count}"
        stamps = 1 if columns[-1] == "timestamp" else 0  # a date and a time below one heading
        if len(cells) != len(columns) + stamps:
            reason = (
                f"has {len(cells)} of {len(columns) + stamps} columns: cut off, or interrupted by "
                "other output"
            )
            run.excluded.append(Excluded(place, reason))
            return
        # The first of two columns of one name is that out of place.
        values = dict(reversed(list(zip(columns, cells, strict=False))))
        algorithm = ALGORITHM_OF_NAME.get(values.get("algo", "").lower(), "")
        run.entries.append(
            Entry(
                place,
                int(cells[0]),
                number(values.get("cputime" if run.cpu_time else "time")),
                number(values.get("algbw")),
                number(values.get("busbw")),
                number(values.get("wrong")),
                algorithm,
            )
        )


def _check_complete(reader: _Reader, file: str) -> None:
    for index, run in enumerate(reader.runs):
        if index in reader.complete:
            continue
        last = reader.last_line[index]
        what = f"{run.program}_perf" if run.program else "the run"
        if run.entries:
            reached = f"after {len(run.entries)} sizes, the last of {run.entries[-1].num_bytes} B"
        else:
            reached = "before its first size"
        rule = f"{what} of {run.place} was cut off {reached}: there is no line '# {_END}'"
        hint = "let the test run to its end, or use the rows so far with --partial"
        raise InputError.single(f"line {last}", rule, hint=hint, file=file)


def _program_of_file(file: str) -> str:
    name = re.sub(r"[^a-z]", "", file.rsplit("/", 1)[-1].lower())
    found = [p for p in sorted(PROGRAMS, key=len, reverse=True) if p.replace("_", "") in name]
    return found[0] if found else ""


_SECRET = ("env",)
_LAST_KEY = "average_bus_bandwidth"


def _read_json(text: str, file: str, *, partial: bool) -> tuple[list[Run], list[str], str]:
    """The run of a file, what was taken for granted, and the day it began.

    Args:
        text: The JSON document.
        file: Its name, for messages.
        partial: Take the rows of a run that did not end.

    Raises:
        InputError: No JSON of nccl-tests, or of a run that was cut off.
    """
    document = _document(text, file)
    missing = [key for key in ("config", "results") if key not in document]
    if missing:
        rule = f"is not JSON of nccl-tests: it lacks {' and '.join(missing)}"
        raise InputError.single("", rule, hint="write it with -J FILE", file=file)
    if _LAST_KEY not in document and not partial:
        count = len(_list(document, "results", file))
        rule = f"the run was cut off after {count} sizes: there is no {_LAST_KEY}"
        hint = "let the test run to its end, or use the rows so far with --partial"
        raise InputError.single(_LAST_KEY, rule, hint=hint, file=file)
    config = _mapping(document, "config", file)
    version = document.get("nccl_version")
    run = Run(
        place="results",
        program=_program(document.get("args")),
        threads=_count(config, "nthreads", file),
        operations=_count(config, "aggregated_iterations", file),
        library=library_name(version) if isinstance(version, int) else "",
    )
    per_process = run.threads * _count(config, "ngpus", file)
    if per_process > _MOST_GPUS_PER_PROCESS:
        rule = f"makes {per_process} GPUs per process, of at most {_MOST_GPUS_PER_PROCESS}"
        raise InputError.single("config.ngpus", rule, file=file)
    run.devices = _devices(config, per_process, file)
    for index, result in enumerate(_list(document, "results", file)):
        entry, is_cpu_time = _entry(result, index, file)
        run.entries.append(entry)
        run.cpu_time = run.cpu_time or is_cpu_time
    assumed = ["any algorithm is assumed: the environment, and so NCCL_ALGO, is not read"]
    return [run], assumed, str(document.get("start_time") or "")[:10]


_MOST_GPUS_PER_PROCESS = 1024
"""Those of a host; none has a hundred."""


def _document(text: str, file: str) -> Mapping[str, Any]:
    try:
        document = strict_json(text)
    except json.JSONDecodeError as error:
        rule = f"is cut off or no JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        hint = "nccl-tests completes the file only if the run finishes; run it again"
        raise InputError.single("", rule, hint=hint, file=file) from error
    except ValueError as error:  # a number with thousands of digits, a key that appears twice
        raise InputError.single("", f"is not JSON ({error})", file=file) from error
    except RecursionError as error:
        raise InputError.single("", "is nested too deeply", file=file) from error
    if not isinstance(document, dict):
        raise InputError.single("", "is not a JSON object of nccl-tests", file=file)
    return {key: value for key, value in document.items() if key not in _SECRET}


def _program(arguments: object) -> str:
    words = [str(word) for word in arguments] if isinstance(arguments, list) else []
    name = words[0].rsplit("/", 1)[-1] if words else ""
    return next((p for p in PROGRAMS if name.startswith(f"{p}_perf")), "")


def _devices(config: Mapping[str, Any], per_process: int, file: str) -> list[Device]:
    """One device per rank; the file holds the first one of each process."""
    devices = []
    for index, given in enumerate(_list(config, "devices", file)):
        path = f"config.devices[{index}]"
        if not isinstance(given, dict) or type(given.get("rank")) is not int:
            raise InputError.single(path, "is not a device with a rank", file=file)
        host = str(given.get("hostname"))
        devices += [
            Device(
                given["rank"] + offset,
                int(number(given.get("group")) or 0),
                host,
                f"{host} {given.get('pid')}",
                str(given.get("device_info")),
            )
            for offset in range(per_process)
        ]
    return devices


def _entry(result: object, index: int, file: str) -> tuple[Entry, bool]:
    path = f"results[{index}]"
    if not isinstance(result, dict) or type(result.get("size")) is not int:
        raise InputError.single(path, "is not a result with a size", file=file)
    body = result.get("out_of_place") or {}
    if not isinstance(body, dict):
        raise InputError.single(f"{path}.out_of_place", "must be an object", body, file=file)
    is_cpu_time = "cpu_time" in body
    entry = Entry(
        path,
        result["size"],
        number(body.get("cpu_time" if is_cpu_time else "time")),
        number(body.get("alg_bw")),
        number(body.get("bus_bw")),
        number(body.get("nwrong")),
    )
    return entry, is_cpu_time


def _mapping(document: Mapping[str, Any], key: str, file: str) -> Mapping[str, Any]:
    value = document.get(key)
    if not isinstance(value, dict):
        raise InputError.single(key, "must be an object", file=file)
    return value


def _list(document: Mapping[str, Any], key: str, file: str) -> list[Any]:
    value = document.get(key)
    if not isinstance(value, list):
        raise InputError.single(key, "must be a list", file=file)
    return value


def _count(config: Mapping[str, Any], key: str, file: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise InputError.single(f"config.{key}", "must be a whole number above 0", file=file)
    return value


MAX_OUTPUT_BYTES = 32 * 1024**2
"""Larger files are refused; a run prints some thousand bytes."""
_WANTED = "give the output of nccl-tests or rccl-tests, or the JSON that they write"


def read_nccl_tests(
    path: str | Path, *, partial: bool = False, excerpt: Excerpt | None = None
) -> CollectiveFile:
    """The measured collectives of a file, and what became of the rest of it.

    Times are those out of place. Hosts are counted, their names are not kept; nor is the
    environment that the JSON holds.

    Args:
        path: Text as nccl-tests or rccl-tests print it, or JSON as nccl-tests writes it.
        partial: Take the rows of runs that were cut off, instead of refusing the file.
        excerpt: What ran, for text without the lines that say so.

    Raises:
        InputError: Another kind of file, a run that was cut off, or one that contradicts
            itself; with the line.
    """
    file = Path(path)
    text = read_file(file, _WANTED, max_bytes=MAX_OUTPUT_BYTES, errors="replace")
    modified_s = file.stat().st_mtime
    date = ""
    if text.lstrip().startswith("{"):
        runs, assumed, date = _read_json(text, file.name, partial=partial)
    else:
        runs, assumed = read_text(text, file.name, partial=partial, excerpt=excerpt)
    modified = datetime.datetime.fromtimestamp(modified_s, datetime.UTC)
    return file_of_runs(runs, file.name, assumed, date or modified.date().isoformat())
