"""A studio that runs for tests, on any free port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

pytest.importorskip("starlette", reason="starlette is not installed (extra studio)")
uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed (extra studio)")

from simulator.studio import web_app  # noqa: E402
from simulator.studio.workers import Workers  # noqa: E402


@contextmanager
def running_studio(token: str = "", workers: int = 1) -> Iterator[str]:
    """The address of a studio that runs meanwhile."""
    opened = web_app.listening_socket("127.0.0.1", 0)
    app = web_app.build_app(lambda: Workers(workers), token=token)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    try:
        with patch("simulator.studio.workers.LONGEST_S", 600.0):  # on a busy machine
            yield web_app.address(opened, token)
    finally:
        server.should_exit = True
        thread.join()
