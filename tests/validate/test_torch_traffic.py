"""The run that is measured issues the collectives that are predicted, one by one."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from simulator.program.build import build_program
from simulator.ranks.world import World
from simulator.results.traffic import rank_collectives
from simulator.validate.torch_run.supported_plan import as_torch_runs_it
from simulator.validate.torch_run.train import build_trainer
from tests.torch_traffic import fake_world
from tests.validate.test_torch_strategies import job

pytestmark = pytest.mark.filterwarnings("ignore")

JOBS = {
    "fsdp": job(4, zero=3),
    "tensor": job(2, tp=2),
    "sequence": job(2, tp=2, sequence_parallel=True),
    "tensor and fsdp": job(8, tp=2, zero=3, sequence_parallel=True),
}

MICROBATCHES = 2
"""Fewest of which some are followed by others; DTensor takes a second for each."""


@pytest.mark.parametrize("name", JOBS)
def test_a_step_issues_what_is_predicted(name):
    asked = JOBS[name].replace(**{"batch.global": MICROBATCHES * JOBS[name].dp})
    world = World(0, asked.cluster.gpus, "fake", torch.device("cpu"))
    as_run = as_torch_runs_it(asked, world).job
    with fake_world(world.ranks) as log:
        trainer = build_trainer(as_run, world)
        for _ in range(3):
            log.issued.clear()
            trainer.step()
    predicted = Counter(
        (each.kind.value, each.ranks, each.num_bytes)
        for each in rank_collectives(build_program(as_run))
    )
    assert Counter(log.issued) == predicted
