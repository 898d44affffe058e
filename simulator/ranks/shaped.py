"""How does one machine get a real network of a given rate between its ranks?

Every rank is a process in a network namespace of its own, as if it were a computer. Each has
one full-duplex link to a switch (a bridge in one more namespace), which a token bucket limits
in both directions. Collectives then meet real sockets, queues and congestion control, and the
time of their bytes is known. Needs Linux, root, and the commands ``ip`` and ``tc``.

What it is no truth for: latency (virtual links have nearly none, and processes wait for their
turn on the cores) and NCCL.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from simulator.described.job import Job
from simulator.errors import InputError
from simulator.ranks.launch import Place
from simulator.units import format_quantity

_PREFIX = "clustersim"
_SUBNET = "10.77.0"
_MOST_RANKS = 250
_DEVICE = "eth0"
_BURST, _QUEUE = "64kb", "4mb"
"""The bucket holds one of the largest packets that the kernel hands down; the queue is longer
than any window."""

_GOODPUT_SHARE = 1448 / 1514
"""Payload of a TCP segment over its Ethernet frame (52 bytes of IP and TCP headers with
timestamps, 14 of Ethernet, which the bucket counts)."""


def why_not_shaped() -> str:
    """What this machine lacks for a shaped network; empty if nothing."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    for command in ("ip", "tc"):
        if shutil.which(command) is None:
            return f"the command {command} is missing (package iproute2)"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    name = f"{_PREFIX}-{os.getpid()}-probe"
    try:
        _run("ip", "netns", "add", name)
        try:
            _run("ip", "-n", name, "link", "add", "probe", "type", "veth")
            _shape(name, "probe", 1e6)
        finally:
            _run("ip", "netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    return ""


def on_shaped_links(job: Job, bytes_per_s: float) -> Job:
    """The job on a cluster of one GPU per node, whose links have that rate."""
    changes: dict[str, Any] = {
        "cluster.network.gpus_per_node": 1,
        "cluster.network.scale_up.gpus": 1,
        "cluster.network.fabric.nics_per_node": 1,
        "cluster.network.fabric.nic": format_quantity(bytes_per_s, "bytes_per_s"),
        "cluster.network.fabric.efficiency": _GOODPUT_SHARE,
    }
    return job.replace(changes)


@contextlib.contextmanager
def shaped_network(ranks: int, bytes_per_s: float) -> Iterator[Place]:
    """A place for so many ranks, each with a link of that rate to the others.

    Raises:
        InputError: This machine cannot make one.
    """
    reason = why_not_shaped()
    if reason:
        hint = "leave the option out, or run as root on Linux with iproute2"
        raise InputError.single("--shaped", f"cannot be had here: {reason}", hint=hint)
    if ranks > _MOST_RANKS:
        raise InputError.single("cluster.gpus", f"at most {_MOST_RANKS} ranks fit", ranks)
    _remove_left_over()
    names = [f"{_PREFIX}-{os.getpid()}-{rank}" for rank in range(ranks)]
    switch = f"{_PREFIX}-{os.getpid()}-switch"
    try:
        _add_switch(switch)
        for rank, name in enumerate(names):
            _add_rank(name, rank, switch, bytes_per_s)
        prefixes: Sequence[Sequence[str]] = [("ip", "netns", "exec", name) for name in names]
        yield Place(f"{_SUBNET}.1", prefixes, {"GLOO_SOCKET_IFNAME": _DEVICE})
    finally:
        for name in (*names, switch):
            with contextlib.suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "del", name)


def _remove_left_over() -> None:
    """Namespaces of processes that were killed before they could clean up."""
    listed = subprocess.run(
        ("ip", "netns", "list"), check=True, capture_output=True, text=True
    ).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line):
        prefix, _, rest = name.partition("-")
        owner = rest.partition("-")[0]
        if prefix == _PREFIX and owner.isdecimal() and not os.path.exists(f"/proc/{owner}"):
            with contextlib.suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "del", name)


def _add_switch(switch: str) -> None:
    _run("ip", "netns", "add", switch)
    _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
    _run("ip", "-n", switch, "link", "set", "bridge", "up")


def _add_rank(name: str, rank: int, switch: str, bytes_per_s: float) -> None:
    port = f"port{rank}"
    _run("ip", "netns", "add", name)
    _run(
        "ip", "-n", switch, "link", "add", port, "type", "veth",
        "peer", "name", _DEVICE, "netns", name,
    )  # fmt: skip
    _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
    _run("ip", "-n", name, "address", "add", f"{_SUBNET}.{rank + 1}/24", "dev", _DEVICE)
    for device in ("lo", _DEVICE):
        _run("ip", "-n", name, "link", "set", device, "up")
    # A loss-based control fills a shaped link evenly; others probe for its rate.
    with contextlib.suppress(subprocess.CalledProcessError):
        _run(
            "ip", "-n", name, "route", "replace", f"{_SUBNET}.0/24", "dev", _DEVICE,
            "congctl", "cubic",
        )  # fmt: skip
    _shape(name, _DEVICE, bytes_per_s)
    _shape(switch, port, bytes_per_s)


def _shape(namespace: str, device: str, bytes_per_s: float) -> None:
    rate = f"{round(8 * bytes_per_s)}bit"
    _run(
        "ip", "netns", "exec", namespace, "tc", "qdisc", "replace", "dev", device, "root",
        "tbf", "rate", rate, "burst", _BURST, "limit", _QUEUE,
    )  # fmt: skip


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
