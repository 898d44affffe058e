"""What does the JSON that nccl-tests writes (``-J FILE``) hold?

The file keeps the whole environment of the process, with whatever secrets are in it, and
the command line. Neither is read, but for the program's name.

Source: the format is that of nccl-tests src/util.cu, version 2 of its files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from simulator.errors import InputError
from simulator.importers.nccl_tests.nccl_tests_run import (
    PROGRAMS,
    Device,
    Entry,
    Run,
    library_name,
    number,
)

_SECRET = ("env",)
_LAST_KEY = "average_bus_bandwidth"


def read_json(text: str, file: str, *, partial: bool) -> tuple[list[Run], list[str], str]:
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
        rule = f"is no JSON of nccl-tests: it lacks {' and '.join(missing)}"
        raise InputError.single("", rule, hint="write it with -J FILE", file=file)
    if _LAST_KEY not in document and not partial:
        count = len(_list(document, "results", file))
        rule = f"the run was cut off after {count} sizes: there is no {_LAST_KEY}"
        hint = "let the test run to its end, or take what is there with --partial"
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
    run.devices = _devices(config, run.threads * _count(config, "ngpus", file), file)
    for index, result in enumerate(_list(document, "results", file)):
        entry, is_cpu_time = _entry(result, index, file)
        run.entries.append(entry)
        run.cpu_time = run.cpu_time or is_cpu_time
    assumed = ["any algorithm was allowed: the environment, NCCL_ALGO with it, is not read"]
    return [run], assumed, str(document.get("start_time") or "")[:10]


def _document(text: str, file: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        rule = f"is cut off or no JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        hint = "nccl-tests writes it to its end only if the run ends; run it again"
        raise InputError.single("", rule, hint=hint, file=file) from error
    except ValueError as error:  # a number with thousands of digits
        raise InputError.single("", f"is no JSON ({error})", file=file) from error
    except RecursionError as error:
        raise InputError.single("", "is nested too deeply", file=file) from error
    if not isinstance(document, dict):
        raise InputError.single("", "is no JSON object of nccl-tests", file=file)
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
            raise InputError.single(path, "is no device with a rank", file=file)
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
        raise InputError.single(path, "is no result with a size", file=file)
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
