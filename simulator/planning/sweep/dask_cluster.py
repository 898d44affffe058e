"""How does a Dask cluster do the work?

Dask brings the scheduler and the workers; all that is asked of them here is an executor.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from simulator.errors import InputError
from simulator.extras import require
from simulator.version import __version__

if TYPE_CHECKING:
    from distributed import Client

_TIMEOUT_S = 10


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """The executor of the Dask cluster whose scheduler listens at ``address``.

    Raises:
        InputError: Dask is not installed, nobody answers, or a worker has no clustersim, or
            another version of it.
    """
    require("distributed", "hands out work on Dask clusters")
    import distributed

    connect: Any = distributed.Client  # untyped, and absent without the extra
    try:
        client = connect(address, timeout=_TIMEOUT_S)
    except (OSError, ValueError, ImportError) as error:
        hint = "start one with dask scheduler, and give its address, such as tcp://node1:8786"
        raise InputError.single("--dask", "has no scheduler that answers", address, hint) from error
    with client:
        _check_workers(client, address)
        yield cast(Executor, client.get_executor(pure=False))


def installed_version() -> str:
    """Version of clustersim where this runs."""
    return __version__


def _check_workers(client: Client, address: str) -> None:
    """Rows must not depend on where they were computed, so all must run the same code."""
    try:
        versions = client.run(installed_version)
    except Exception as error:
        rule = f"has workers that cannot load clustersim: {error}"
        hint = "install clustersim where the workers run"
        raise InputError.single("--dask", rule, address, hint) from error
    if not versions:
        hint = "start some with dask worker"
        raise InputError.single("--dask", "has no workers", address, hint)
    others = {version for version in versions.values() if version != __version__}
    if others:
        rule = f"has workers with clustersim {', '.join(sorted(others))} beside {__version__} here"
        raise InputError.single("--dask", rule, address, "install the same version everywhere")
