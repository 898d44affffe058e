"""Processes as ranks, and a network between them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist

from simulator.errors import InputError, UnsupportedError
from simulator.ranks.launch import (
    Place,
    RankFailedError,
    loopback,
    on_shaped_links,
    run_ranks,
    shaped_network,
    why_not_shaped,
)
from simulator.ranks.world import joined, own_world
from tests.validate.test_torch_strategies import job

MEBIBYTE = 2**20


def greet(count: Callable[[], None]) -> list[str] | None:
    count()
    names = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")]
    return names if names[0] == "0" else None


def refuse(count: Callable[[], None]) -> None:
    raise UnsupportedError.single("plan.schedule", "is refused by the rank", "zb-v")


def crash(count: Callable[[], None]) -> None:
    raise ValueError("nothing left to give")


def all_reduce_s(num_bytes: int, count: Callable[[], None]) -> float | None:
    """The second of two, from a barrier."""
    world = own_world("gloo", 2, int(os.environ["RANK"]))
    with joined(world):
        buffer = torch.ones(num_bytes // 4)
        dist.all_reduce(buffer)
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(buffer)
        assert float(buffer[0]) == 4.0
        return time.perf_counter() - started if world.rank == 0 else None


def test_every_rank_finds_its_place_and_one_answers():
    counted: list[int] = []
    answer = run_ranks(greet, loopback(2), lambda: counted.append(1))
    assert answer == ["0", "2", "0", "127.0.0.1"]
    assert counted == [1]


def test_a_refusal_of_a_rank_reaches_the_user_as_it_is():
    with pytest.raises(UnsupportedError, match="is refused by the rank") as raised:
        run_ranks(refuse, loopback(1))
    assert raised.value.faults[0].path == "plan.schedule"


def test_the_last_words_of_a_rank_that_failed_are_said():
    with pytest.raises(RankFailedError, match="nothing left to give"):
        run_ranks(crash, loopback(1))


def test_a_job_on_shaped_links_has_one_gpu_per_node_and_their_rate():
    network = on_shaped_links(job(2), 12.5e6).cluster.profile.network
    assert network.gpus_per_node == network.scale_up.gpus == network.fabric.nics_per_node == 1
    assert network.fabric.nic_bytes_per_s == 12.5e6
    assert network.fabric.efficiency == pytest.approx(1448 / 1514, rel=1e-3)


def test_a_machine_without_the_commands_says_so(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert "is missing" in why_not_shaped()
    with pytest.raises(InputError, match="is not possible here"), shaped_network(2, 1e6):
        pass


@pytest.mark.slow
def test_a_shaped_link_lets_no_more_through_than_its_rate():
    """Faster than its bytes a message cannot be; slower it is on a busy machine."""
    reason = why_not_shaped()
    if reason:
        pytest.skip(f"no shaped network here: {reason}")
    rate, num_bytes, bucket_bytes = 2.5e6, MEBIBYTE, 2 * 64 * 1024
    with shaped_network(2, rate) as place:
        assert isinstance(place, Place)
        seconds = run_ranks(partial(all_reduce_s, num_bytes), place)
    assert seconds > (num_bytes - bucket_bytes) / (rate * 1448 / 1514)
