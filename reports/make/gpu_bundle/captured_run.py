"""Train one of the runner's configurations, as a script that can be captured.

clustersim capture reports/make/gpu_bundle/captured_run.py --out llama-1b.capture -- --run llama-1b
"""

from __future__ import annotations

import argparse

import torch

from reports.make.gpu_bundle.device.training import Trainer
from reports.make.gpu_bundle.device.training_runs import ALL_RUNS

_STEPS = 3
"""The second is captured, the third under DistributedDataParallel."""


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", required=True, choices=[run.name for run in ALL_RUNS])
    name = parser.parse_args().run
    run = next(run for run in ALL_RUNS if run.name == name)
    trainer = Trainer(run, torch.device("cuda"))
    for _ in range(_STEPS):
        trainer.step()


if __name__ == "__main__":
    main()
