"""When do prompts start, where groups of ranks attend to requests of their own?

All groups take a step together, and one that computes a prompt keeps the others waiting. So a
prompt waits until each group has one, or until so many steps have passed.

Source: TensorRT-LLM 1.1, ``_torch/pyexecutor/py_executor.py``, ``_balance_adp_requests``: steps are
counted from the last start on, whether or not somebody waits. Left out: ``batching_wait_iters``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from simulator.serving.requests import Request
from simulator.serving.schedulers.scheduler import Limits


class PromptBalance:
    """Which group has which request, and whether prompts may start.

    Args:
        limits: Settings of the engine, of all groups together.
    """

    def __init__(self, limits: Limits) -> None:
        self._groups = limits.groups
        self._most_steps = limits.prompt_wait_steps
        self._slots = limits.max_requests // limits.groups
        self._group_of: dict[Request, int] = {}
        self._loads = [0] * limits.groups
        self._since_step = 0

    def enter(self, request: Request) -> None:
        """Give a request to the group with the fewest."""
        group = self._loads.index(min(self._loads))
        self._group_of[request] = group
        self._loads[group] += 1

    def leave(self, request: Request) -> None:
        """Forget a request that no longer runs."""
        if request in self._group_of:
            self._loads[self._group_of.pop(request)] -= 1

    def may_start(self, prompts: Collection[Request], step: int) -> bool:
        """Whether the prompts of those admitted are part of this step.

        Args:
            prompts: Requests whose prompts are not complete.
            step: Its number.
        """
        if not prompts:
            return False
        asked = Counter(self._group_of[request] for request in prompts)
        answering = [load - asked[group] for group, load in enumerate(self._loads)]
        is_even = len(asked) == self._groups and max(answering) < self._slots
        if is_even or min(answering) == 0 or not self.steps_left(step):
            self._since_step = step
            return True
        return False

    def steps_left(self, step: int) -> int:
        """Steps from this one on until prompts start in any case."""
        return (self._since_step - step) % self._most_steps
