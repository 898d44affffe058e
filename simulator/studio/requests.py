"""What does the page ask, and what does every answer look like?

A question is a name and a JSON object; its answer is a JSON object: what was asked for, or
``faults`` with the words of our errors, or ``bug`` where the mistake is ours.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from simulator.errors import Fault, InputError
from simulator.studio.controls import START, State, model_of_config
from simulator.studio.job_answers import faster_changes, fitting_changes, job_copy, step_answer

Asked = Mapping[str, Any]


def _state(asked: Asked) -> State:
    state = asked.get("state")
    if not isinstance(state, Mapping):
        raise InputError.single("state", "must be an object of fields")
    return state


def _step(asked: Asked) -> dict[str, Any]:
    return step_answer(_state(asked), with_timeline=asked.get("timeline", True))


_QUESTIONS: Mapping[str, Callable[[Asked], dict[str, Any]]] = {
    "step": _step,
    "fit": lambda asked: fitting_changes(_state(asked)),
    "faster": lambda asked: faster_changes(_state(asked)),
    "copy": lambda asked: {"text": job_copy(_state(asked), str(asked.get("form", "")))},
    "model": lambda asked: {"model": model_of_config(str(asked.get("text", "")))},
}

QUESTIONS = frozenset(_QUESTIONS)
"""Names of what the page may ask."""
SEARCHES = frozenset({"fit", "faster"})
"""Those that simulate many jobs."""


def answered(name: str, asked: Asked) -> bytes:
    """The answer to a question, as JSON."""
    try:
        answer = _QUESTIONS[name](asked)
    except InputError as error:
        answer = {"faults": [fault_data(fault) for fault in error.faults]}
    except RecursionError:
        return too_deep()
    except MemoryError:
        answer = {}  # what it held is free only behind this block
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        answer = {"bug": f"{type(error).__name__}: {error}"}
    if not answer:
        hint = "use fewer microbatches or stages, or clustersim run on a larger machine"
        fault = Fault("", "takes more memory than the studio has for one question", hint=hint)
        answer = {"faults": [fault_data(fault)]}
    return json.dumps(answer, separators=(",", ":"), default=str).encode()


def fault_data(fault: Fault) -> dict[str, str]:
    """A fault as the page shows it beside a control."""
    return {"path": fault.path, "rule": fault.rule, "hint": fault.hint, "text": str(fault)}


def too_deep() -> bytes:
    """The answer to a question whose values are nested deeper than Python follows."""
    fault = Fault("state", "is nested too deeply", hint="write its fields one by one")
    return json.dumps({"faults": [fault_data(fault)]}).encode()


def warm_up() -> None:
    """Load what the first answer would have to wait for."""
    answered("step", {"state": START})
