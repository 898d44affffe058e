"""Where does the page ask, and who may?

Files of the page are open to all who reach the port; questions need the token where there is
one. Nothing is loaded from elsewhere: the page's content security policy allows this server only.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from simulator.errors import InputError
from simulator.exporters import html
from simulator.studio.controls import START, State, controls
from simulator.studio.job_answers import FORMS, QUESTIONS
from simulator.studio.workers import StaleError, Workers

_PAGE = Path(__file__).parent / "page"
_SHARED = Path(str(html.__file__)).parent
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_FILES: Mapping[str, Path] = {
    "": _PAGE / "studio.html",
    **{name: _PAGE / name for name in ("studio.css", "state.js", "panel.js", "results.js")},
    **{name: _PAGE / name for name in ("studio.js", "icon.svg")},
    **{name: _SHARED / name for name in ("report.css", "lanes.js", "axis.js", "details.js")},
    "timeline.js": _SHARED / "timeline.js",
}
"""Files of the page by their address; the timeline is that of the page of one step."""

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_MOST_BYTES = 1_000_000
"""Of a question; the longest real ones hold a pasted config.json."""
_MOST_VISITOR = 64


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that accepts; with port 0 on any free port.

    Raises:
        InputError: The address cannot be taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except (OSError, OverflowError) as error:
        rule = f"cannot be opened: {error}"
        hint = "choose another --port, or --port 0 for a free one"
        raise InputError.single("--host and --port", rule, f"{host}:{port}", hint) from error
    opened.listen()
    return opened


def new_token() -> str:
    """A token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def address(opened: socket.socket, token: str) -> str:
    """What to type into a browser."""
    host, port = opened.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


def build_app(
    workers: Callable[[], Workers],
    start: State = START,
    token: str = "",
    host: str = "127.0.0.1",
) -> Starlette:
    """The web app.

    Args:
        workers: Starts the processes that answer, once the server runs.
        start: What the page shows first.
        token: What questions must bring; empty where all may ask, which are those on this machine.
        host: Address that is listened on.
    """

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        app.state.workers = workers()
        yield
        app.state.workers.close()

    async def file(request: Request) -> Response:
        path = _FILES.get(request.path_params.get("name", ""))
        if path is None:
            return Response("no such page", 404)
        return Response(path.read_bytes(), media_type=_TYPES[path.suffix], headers=_HEADERS)

    async def ask(request: Request) -> Response:
        given = request.headers.get("x-studio-token", "")
        if token and not secrets.compare_digest(given.encode(), token.encode()):
            return _refusal("token", "is wrong or missing", "open the printed address")
        # Of a page of another site, a browser sends this type only after it has asked the studio.
        if request.headers.get("content-type") != "application/json":
            rule = "must have the content type application/json"
            return _refusal("a question", rule, "open the printed address")
        name = request.path_params["name"]
        if name == "page":
            return JSONResponse(_page_data(start), headers=_HEADERS)
        asked = await _asked(request)
        if name not in QUESTIONS or asked is None:
            return _refusal("", "is not a request of the page", "load the page again")
        visitor = str(asked.get("visitor", ""))[:_MOST_VISITOR]
        try:
            found = await request.app.state.workers.answer(visitor, name, asked)
        except StaleError:
            found = b'{"stale":true}'
        return Response(found, media_type="application/json", headers=_HEADERS)

    # A page of another site must not reach the studio under a name of its own.
    names = ["localhost", "127.0.0.1", "[::1]", host]
    local = Middleware(TrustedHostMiddleware, allowed_hosts=names)
    return Starlette(
        routes=[
            Route("/", file),
            Route("/{name}", file),
            Route("/ask/{name}", ask, methods=["POST"]),
        ],
        middleware=[] if token else [local],
        lifespan=running,
    )


def serve(app: Starlette, opened: socket.socket) -> None:
    """Serve until interrupted."""
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[opened])


def _page_data(start: State) -> dict[str, Any]:
    return {"controls": controls(), "start": dict(start), "forms": list(FORMS)}


async def _asked(request: Request) -> dict[str, Any] | None:
    """The question's JSON object; None where it is none, or too long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _refusal(path: str, rule: str, hint: str) -> Response:
    text = f"{path} {rule}; {hint}".strip()
    fault = {"path": path, "rule": rule, "hint": hint, "text": text}
    return JSONResponse({"faults": [fault]}, status_code=403, headers=_HEADERS)
