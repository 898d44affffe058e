"""Reading a text as a shell script ends soon, whatever the text is."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from simulator.errors import InputError
from simulator.importers.shell.launch_script import read_script

FENCED = """```yaml
model: gpt2        # a name, or a model's fields
plan: {tp: 4}      # everything else takes the framework's default
```
"""
PIECES = (
    *"'\"`\\$(){}[]<>|&;#=\n \t*@!",
    *("a", "X=", "$X", "${X", "$(", "$((", "))", "```", "<<A", "\nA\n", "X=(", "f() {", "\nf\n"),
    *("if [", "then", "fi", "case a in", "esac", "'s ", "bash -c ", "eval "),
)
SECONDS = 5.0
"""Far above what a short text takes, on any machine."""


@contextmanager
def soon() -> Iterator[None]:
    """Fails where the reader has not ended in time."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "text",
    [
        FENCED,
        "echo `don't`",
        "echo $(echo ')')'",
        'echo "$(echo \')"',
        "f() {\n f; f; f; f\n}\nf\n",
        "f() {\n X=; X=; f; f; f\n}\nf\n",
        'X="' + "${" * 50_000 + '"',
        "echo " + "`" * 50_001 + "'",
        "echo " + "$((" * 300 + "1" + "))" * 300,
    ],
    ids=lambda text: text[:12],
)
def test_no_text_makes_the_reader_spin(text):
    with soon(), suppress(InputError):
        read_script(text, {})


@pytest.mark.parametrize("seed", range(100))
def test_quotes_backticks_fences_and_brackets_in_any_order_are_read_soon(seed):
    draw = random.Random(seed)
    text = "".join(draw.choices(PIECES, k=draw.randrange(2, 80)))
    with soon(), suppress(InputError):
        read_script(text, {})


def test_an_apostrophe_in_a_command_substitution_is_part_of_it():
    assert read_script("echo `what's it` b", {}).commands == [["echo", "`what's it`", "b"]]


def test_functions_that_call_one_another_without_end_are_a_clear_error():
    with pytest.raises(InputError, match="runs more than 20,000 commands"):
        read_script("f() {\n f; f; f; f\n}\nf\n", {})
