"""clustersim mcp: how does a coding agent ask these questions, by the Model Context Protocol?

Each tool runs one command with ``--json`` in a process of its own and answers with the object that
the command prints. So an answer never differs from the command's, a search blocks no other tool,
and nothing but the protocol is written to stdout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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

    from simulator.cli.mcp_tools import diagnose, memory, names, plan, rent, run
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
