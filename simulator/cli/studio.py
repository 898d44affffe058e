"""clustersim studio: a page to click, in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.console import note
from simulator.cli.options import Changes, option, read_job
from simulator.extras import require

_PORT = 8421


def studio(
    job_file: Annotated[
        Path | None,
        typer.Argument(metavar="JOB.yaml", help="The job to start with; by default Llama 3 70B."),
    ] = None,
    changes: Changes = None,
    *,
    port: Annotated[
        int, option("Port; 0 chooses a free one.", "PORT", name="--port", min=0, max=65535)
    ] = _PORT,
    host: Annotated[
        str,
        option(
            "Address to listen on; any but this machine's own needs a token.",
            "ADDRESS",
            name="--host",
        ),
    ] = "127.0.0.1",
    no_browser: Annotated[
        bool, option("Print the address without opening a browser.", name="--no-browser")
    ] = False,
    workers: Annotated[
        int,
        option(
            "Number of jobs to simulate at the same time.", "N", name="--workers", min=1, max=64
        ),
    ] = 2,
) -> None:
    """Try changes to a job on a page in the browser.

    It listens on this machine only. With --host 0.0.0.0, others can reach it with the token in the
    address that is printed; the connection is not encrypted.

    Example:  clustersim studio llama3-70b-64xh100
    """
    for library in ("starlette", "uvicorn"):
        require(library, "serves the page")
    from simulator.studio import web_app
    from simulator.studio.controls import START, job_of, state_of
    from simulator.studio.workers import Workers

    if changes and job_file is None:
        from simulator.errors import InputError

        hint = "clustersim studio llama3-70b-64xh100 --set plan.tp=8"
        raise InputError.single("--set", "changes a job, and none is given", hint=hint)
    start = START if job_file is None else state_of(read_job(job_file, changes, unfolded=None))
    job_of(start)  # refuses what the page could not show, such as a profile in a file
    token = "" if web_app.is_loopback(host) else web_app.new_token()
    opened = web_app.listening_socket(host, port)
    url = web_app.address(opened, token)
    typer.echo(url)
    note("press Ctrl+C to stop the studio")
    if not no_browser:
        import webbrowser

        # The socket already accepts, so that the browser's first request waits for the server.
        webbrowser.open(url)
    listens_on = str(opened.getsockname()[0])
    web_app.serve(web_app.build_app(lambda: Workers(workers), start, token, listens_on), opened)
