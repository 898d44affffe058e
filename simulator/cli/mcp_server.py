"""clustersim mcp: how does a coding agent ask these questions, by the Model Context Protocol?

Each tool runs one command with ``--json`` in a process of its own and answers with the object that
the command prints. So an answer never differs from the command's, a search blocks no other tool,
and nothing but the protocol is written to stdout.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

import simulator
from simulator.extras import require

if TYPE_CHECKING:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.tools import Tool

_INSTRUCTIONS = (
    "Predict step time, memory, cost and the best parallel plan of LLM training on a GPU cluster, "
    "without a GPU. Start with `plan` if the parallel plan is open, with `run` or `memory` "
    "if it is known. A job that does not fit is an answer (fits: false), not an error. Times "
    "are seconds, sizes bytes. docs/fields.md lists every field of a job."
)
_FITS, _DOES_NOT_FIT = 0, 1

JobText = Annotated[
    dict[str, Any] | str,
    Field(
        description="The job: the name of a shipped job, the path of a YAML file, or its content "
        "as text or object, such as "
        '{"model": "llama3-70b", "cluster": {"profile": "h100-sxm-80gb", "gpus": 64}, '
        '"batch": {"global": 256, "micro": 1, "seq_len": 8192}, "plan": {"tp": 8, "pp": 2}}'
    ),
]
Changes = Annotated[
    dict[str, Any] | None,
    Field(description='Fields of the job to change, by path: {"plan.tp": 4, "cluster.gpus": 128}.'),
]
Risk = Annotated[
    float, Field(ge=0.001, le=0.5, description="Accepted probability of running out of memory.")
]


def mcp() -> None:
    """Serve the commands as tools for coding agents.

    The tools plan, run, memory, rent, diagnose and names, over stdin and stdout, by the Model
    Context Protocol. Needs the extra mcp: pip install '.[mcp]' in a clone

    Example:  clustersim mcp
    """
    require("mcp", "speaks the Model Context Protocol")
    build_server().run("stdio")


def build_server() -> MCPServer[Any]:
    """The server with its tools; ``clustersim mcp`` runs it over stdin and stdout."""
    from mcp.server import MCPServer

    from simulator.version import __version__

    return MCPServer(
        "clustersim",
        instructions=_INSTRUCTIONS,
        version=__version__,
        log_level="WARNING",
        tools=[_strict_tool(tool) for tool in (plan, run, memory, rent, diagnose, names)],
    )


def _strict_tool(function: Callable[..., Any]) -> Tool:
    """A tool that refuses arguments it does not know; the package's own ignore them in silence."""
    from mcp.server.mcpserver.tools import Tool

    tool = Tool.from_function(function, structured_output=True)
    arguments = tool.fn_metadata.arg_model
    arguments.model_config["extra"] = "forbid"
    arguments.model_rebuild(force=True)
    return tool.model_copy(update={"parameters": arguments.model_json_schema(by_alias=True)})


async def plan(
    job: JobText,
    changes: Changes = None,
    top: Annotated[
        int, Field(ge=1, le=50, description="Number of plans to show, fastest first.")
    ] = 3,
    risk: Risk = 0.1,
    vary: Annotated[
        dict[str, list[Any]] | None,
        Field(description='Values to try instead of the default ones: {"plan.zero": [1, 3]}.'),
    ] = None,
) -> dict[str, Any]:
    """Search for the fastest plans that fit, proven to be so under the full simulation.

    Answers with choices (changes to the job, step_time_s, fits_probability, where time goes), how
    many plans were looked at, and the nearest plan that fits where none does.
    """
    axes = [f"--vary={path}={','.join(map(_yaml, each))}" for path, each in (vary or {}).items()]
    return await _answer(
        "plan", job, changes, [f"--top={top}", f"--risk={risk}", "--no-why", *axes]
    )


async def run(job: JobText, changes: Changes = None) -> dict[str, Any]:
    """Simulate a training step: its time and band, MFU, where it goes, memory, whether it fits."""
    return await _answer("run", job, changes, [])


async def memory(
    job: JobText,
    changes: Changes = None,
    savings: Annotated[
        bool, Field(description="Also simulate single changes that save memory, and rank them.")
    ] = False,
) -> dict[str, Any]:
    """Say who holds which bytes on every pipeline stage, and how likely the job fits."""
    return await _answer("memory", job, changes, ["--savings"] if savings else [])


async def rent(
    offers: Annotated[
        dict[str, Any] | str,
        Field(
            description="Offers of GPUs and the training runs that are wanted: path of a YAML "
            'file, or its content, such as {"offers": {"a": {"cluster": {"profile": '
            '"h100-sxm-80gb"}, "gpus": [64, 128], "price": {"gpu": "2.5 USD/h", "source": "quote"}'
            '}}, "workloads": {"run": {"job": {"model": "llama3.1-8b", "batch": {"global": 256, '
            '"seq_len": 8192}}, "tokens": "500B", "deadline": "45 d"}}}'
        ),
    ],
    risk: Risk = 0.05,
    late_risk: Annotated[
        float,
        Field(ge=0.001, le=0.5, description="Accepted probability of missing a deadline."),
    ] = 0.1,
) -> dict[str, Any]:
    """Say which of several offers of GPUs to rent, and why: fewest GPUs, cheapest, safest.

    Each offer runs each workload under its own fastest plan that fits; answers with time, money,
    energy and the probability of missing the deadline. Takes minutes. Never invent a price: leave
    it out, or ask.
    """
    return await _answer("rent", offers, None, [f"--risk={risk}", f"--late-risk={late_risk}"])


async def diagnose(
    job: JobText,
    step: Annotated[str, Field(description='The measured step, with its unit: "15.9 s".')],
    changes: Changes = None,
    memory: Annotated[str | None, Field(description='The measured peak memory: "61 GiB".')] = None,
    memory_kind: Annotated[
        Literal["allocated", "reserved", "device"],
        Field(description="Kind of memory: tensors, torch's reserved memory, or nvidia-smi's."),
    ] = "reserved",
) -> dict[str, Any]:
    """Find likely reasons why a run differs from its prediction, with probabilities."""
    measured = [f"--step={step}", f"--memory-kind={memory_kind}"]
    return await _answer(
        "diagnose", job, changes, [*measured, *([f"--memory={memory}"] if memory else [])]
    )


async def names(
    kind: Annotated[
        Literal["models", "profiles", "jobs"], Field(description="What to list the names of.")
    ],
) -> dict[str, Any]:
    """List what ships with the package and can be named in a job: models, profiles, jobs."""
    from simulator.described.load import job_names, model_names, profile_names

    known = {"models": model_names, "profiles": profile_names, "jobs": job_names}
    return {kind: known[kind]()}


async def _answer(
    command: str,
    job: Mapping[str, Any] | str,
    changes: Mapping[str, Any] | None,
    options: list[str],
) -> dict[str, Any]:
    """What a command prints with ``--json``.

    Raises:
        ToolError: The command refuses its input; the message is the command's.
    """
    from mcp.server.mcpserver.exceptions import ToolError

    sets = [f"--set={path}={_yaml(value)}" for path, value in (changes or {}).items()]
    text = job if isinstance(job, str) else json.dumps(job)  # JSON is YAML
    is_content = "\n" in text or text.lstrip().startswith("{")
    # -P: of a folder named simulator where the agent works nothing is run.
    words = [sys.executable, "-P", "-m", "simulator", command]
    process = await asyncio.create_subprocess_exec(
        *words, *sets, *options, "--json", "--", "-" if is_content else text,
        env={**os.environ, "PYTHONPATH": _search_path()},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await process.communicate(text.encode() if is_content else b"")
    finally:
        if process.returncode is None:
            process.kill()  # whoever asked does not wait any more
    if process.returncode not in {_FITS, _DOES_NOT_FIT} or not out.strip():
        said = err.decode(errors="replace").strip().replace("standard input", "the job")
        raise ToolError(said or f"{command} was stopped")
    answer: dict[str, Any] = json.loads(out)
    return answer


def _search_path() -> str:
    """``PYTHONPATH`` by which a process finds this package wherever it runs."""
    own = str(Path(simulator.__file__).parent.parent)
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([own, given] if given else [own])


def _yaml(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
