"""Which Dask cluster simulates, is it what this process is, and is it still there?

Rows must not depend on where they were computed, so all machines must run the same versions of
clustersim and of what its numbers come from. A scheduler that is lost, and a cluster without
workers, end the work with a sentence: what is finished is for the caller to keep.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from simulator.described.documents import read_yaml
from simulator.errors import InputError
from simulator.extras import require
from simulator.version import __version__

if TYPE_CHECKING:
    from distributed import Client, Security

_LOGGERS = ("distributed", "tornado")
_TIMEOUT_S = 10
_LOOK_EVERY_S = 2.0
_WITHOUT_WORKERS_S = 60.0
"""A batch system may need a moment to start workers anew; nobody waits longer without knowing."""

_LIBRARIES = ("numpy", "pandas", "pydantic", "simpy")
"""What numbers of a row come from, or how jobs reach the workers."""

_TLS_FILES = ("ca_file", "client_cert", "client_key")

_WAY_ON = (
    "with --out, finished rows are kept: give the same command "
    "once {}, or without --dask to continue on this machine"
)


@contextmanager
def dask_executor(address: str, security: Path | None = None) -> Iterator[Executor]:
    """The executor of the Dask cluster whose scheduler listens at ``address``.

    Args:
        address: Such as ``tcp://node1:8786``, or ``tls://node1:8786`` with ``security``.
        security: YAML file that names the files of TLS: ca_file, client_cert, client_key; relative
            names are beside it.

    Raises:
        InputError: Dask is not installed, nobody answers, a worker has no clustersim or other
            versions; or, from the body, the scheduler or all workers are lost.
    """
    require("distributed", "runs work on Dask clusters")
    _silence_loggers()
    client = _connected(address, None if security is None else _read_security(security, address))
    with client:
        _check_workers(client, address)
        executor = client.get_executor(pure=False)
        watch = _Watch(client, executor)
        try:
            yield executor
        except CancelledError as error:
            raise watch.loss(address) from error
        finally:
            watch.end()


def _silence_loggers() -> None:
    """Nothing of what is said here in a sentence is shown as a traceback before it."""
    import distributed  # noqa: F401 - makes its loggers

    for name in logging.root.manager.loggerDict:
        if name.startswith(_LOGGERS):
            logging.getLogger(name).disabled = True


def _connected(address: str, security: Security | None) -> Client:
    import distributed

    connect: Any = distributed.Client  # untyped, and absent without the extra
    try:
        return connect(address, timeout=_TIMEOUT_S, security=security)
    except (OSError, ValueError, ImportError, TypeError) as error:
        hint = "start one with dask scheduler, and give its address, such as tcp://node1:8786"
        if address.startswith("tls://"):
            hint = "give the files of TLS that it was started with: --dask-security FILE.yaml"
        raise InputError.single(
            "--dask", "does not answer as a Dask scheduler", address, hint
        ) from error


def _read_security(path: Path, address: str) -> Security:
    import distributed

    option = "--dask-security"
    if not address.startswith("tls://"):
        hint = "give the scheduler as tls://HOST:PORT"
        raise InputError.single(option, "is for schedulers that speak TLS", address, hint)
    wanted = f"write {', '.join(_TLS_FILES)}: names of .pem files"
    named = read_yaml(path, wanted)
    if set(named) != set(_TLS_FILES) or not all(isinstance(name, str) for name in named.values()):
        rule = f"must hold {', '.join(_TLS_FILES)} and nothing else"
        raise InputError.single(option, rule, hint=wanted, file=str(path))
    files = {name: path.parent / named[name] for name in _TLS_FILES}
    for name, file in files.items():
        if not file.is_file():
            raise InputError.single(name, "is not a file", str(file), wanted, file=str(path))
    settings = {f"tls_{name}": str(file) for name, file in files.items()}
    make: Any = distributed.Security
    found: Security = make(require_encryption=True, **settings)
    return found


class _Watch:
    """Looks after a cluster while its results are awaited.

    A cluster without workers would let everybody wait for ever, so its tasks are given up.
    """

    def __init__(self, client: Client, executor: Executor) -> None:
        self._client: Any = client
        self._executor = executor
        self._ended = Event()
        self._has_no_workers = False
        Thread(target=self._look, daemon=True).start()

    def end(self) -> None:
        """Look no longer."""
        self._ended.set()

    def loss(self, address: str) -> InputError:
        """Why tasks were cancelled."""
        if self._has_no_workers:
            rule = f"has had no workers for {_WITHOUT_WORKERS_S:g} s"
            return InputError.single("--dask", rule, address, _WAY_ON.format("it has some"))
        return InputError.single(
            "--dask", "lost its scheduler", address, _WAY_ON.format("it is there again")
        )

    def _look(self) -> None:
        without_s = 0.0
        while not self._ended.wait(_LOOK_EVERY_S):
            is_alone = self._client.status == "running" and not self._has_workers()
            without_s = without_s + _LOOK_EVERY_S if is_alone else 0.0
            if without_s >= _WITHOUT_WORKERS_S:
                self._has_no_workers = True
                self._executor.shutdown(wait=False)
                return

    def _has_workers(self) -> bool:
        try:
            return bool(self._client.scheduler_info()["workers"])
        except Exception:  # the scheduler is going away, which the tasks notice themselves
            return True


def _installed_versions() -> dict[str, str]:
    """Versions where this runs of all that a row depends on."""
    found = {"clustersim": __version__, "Python": ".".join(map(str, sys.version_info[:2]))}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "none"
    return found


def _check_workers(client: Client, address: str) -> None:
    from distributed.comm import CommClosedError

    run: Any = client.run
    wanted = _installed_versions()
    try:
        found: dict[str, dict[str, str]] = run(_installed_versions)
    except CommClosedError as error:
        rule, hint = "lost its scheduler", _WAY_ON.format("it is there again")
        raise InputError.single("--dask", rule, address, hint) from error
    except Exception as error:
        rule = f"has workers that cannot load clustersim: {error}"
        hint = "install clustersim on the workers"
        raise InputError.single("--dask", rule, address, hint) from error
    if not found:
        hint = "start some with dask worker"
        raise InputError.single("--dask", "has no workers", address, hint)
    others = sorted(
        {
            f"{name} {there.get(name, 'none')} beside {here} here"
            for there in found.values()
            for name, here in wanted.items()
            if there.get(name) != here
        }
    )
    if others:
        rule = f"has workers with {', '.join(others)}"
        raise InputError.single("--dask", rule, address, "install the same versions everywhere")
