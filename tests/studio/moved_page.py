"""The studio's page, as somebody who moves its sliders uses it.

``python -m tests.studio.moved_page [JOB ...]`` times fifty moves from each job in an installed
Chromium, by default of Llama 3 8B on 8 GPUs and of 70B on 64.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from typing import Any
from urllib.parse import urlencode

from simulator.described.load import load_job
from simulator.studio.controls import state_of
from simulator.studio.job_answers import answered
from tests.exporters.chromium import WatchedPage, chromium
from tests.studio.serving_page import running_studio

SMALL = (
    "model=llama3.2-1b&cluster.profile=h100-sxm-80gb&cluster.gpus=8"
    "&batch.global=32&batch.seq_len=2048"
)
"""A job that is simulated at once."""


MOVES = [
    *[(path, 'input[type="range"]') for path in (
        "plan.tp", "plan.pp", "plan.cp", "plan.vpp", "plan.ep", "batch.micro", "batch.seq_len",
        "batch.global", "cluster.gpus",
    )],
    *[(path, "input:checked") for path in ("plan.zero", "plan.recompute")],
]  # fmt: skip


class Studio(WatchedPage):
    """A page of the studio."""

    def __init__(self, browser: Any, address: str, query: str = SMALL, **options: Any) -> None:
        super().__init__(browser, ("error", "warning"), **options)
        self.page.on("request", self._check)
        self.origin = address.partition("?")[0]
        self.page.goto(f"{self.origin}?{query}")
        self.answered()

    def _check(self, request: Any) -> None:
        if not request.url.startswith(self.origin):
            self.errors.append(f"asks {request.url}")

    def answered(self) -> None:
        self.until(
            "window.studio !== undefined && studio.asked > 0 && studio.shown === studio.asked"
        )

    def write(self, path: str, value: object) -> None:
        """Write a number or a text into the control of a field."""
        box = self.page.locator(f"#c-{path.replace('.', '-')}")
        box.fill(str(value))
        box.press("Tab")
        self.answered()

    def change(self, path: str, kind: str, key: str) -> None:
        """Press a key on the control of a field, as one who uses no mouse does."""
        control = self.page.locator(f'[data-path="{path}"]')
        control.locator(kind).press(key)
        self.answered()

    def move(self, chance: random.Random) -> None:
        """Press an arrow key on a control by chance."""
        self.change(*chance.choice(MOVES), chance.choice(["ArrowRight", "ArrowLeft"]))


def time_moves(name: str, count: int = 50, seed: int = 7) -> None:
    """Print how long the page takes from a key press to the step that it shows.

    A move to a job that cannot run is taken back, and not counted. The processor time of the same
    answers says how long they take where nothing else runs.
    """
    start = state_of(load_job(name))
    texts = {
        path: each if isinstance(each, str) else json.dumps(each) for path, each in start.items()
    }
    states: list[dict[str, Any]] = []
    with running_studio() as address, chromium() as browser:
        page = Studio(browser, address, urlencode(texts))
        chance, took_s, refused = random.Random(seed), [], 0
        while len(states) < count:
            page.move(chance)
            if page.ask("studio.faults.length"):
                refused += 1
                page.page.locator("#faults button").click()
                page.answered()
            else:
                states.append(page.ask("studio.state.values"))
                took_s.append(page.ask("studio.took.at(-1)") / 1000)
    print(
        f"{name}: {count} moves, {refused} more refused; median {statistics.median(took_s):.3f} s, "
        f"longest {max(took_s):.3f} s; processor time of an answer, median "
        f"{statistics.median(map(_processor_time_s, states)):.3f} s; errors in the console: "
        f"{page.errors or 'none'}"
    )


def _processor_time_s(state: dict[str, Any]) -> float:
    """Processor time of the answer to a state."""
    start_s = time.process_time()
    answered("step", {"state": state})
    return time.process_time() - start_s


if __name__ == "__main__":
    for job in sys.argv[1:] or ["llama3-8b-8xh100", "llama3-70b-64xh100"]:
        time_moves(job)
