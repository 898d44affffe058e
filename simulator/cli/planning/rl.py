"""clustersim rl: how long does a step of reinforcement learning take?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.completion import complete_rl
from simulator.cli.console import (
    amounts,
    note,
    number_columns,
    print_answer_table,
    print_json,
    print_table,
    text_columns,
)
from simulator.cli.options import (
    AsJson,
    PageFile,
    file_to_write,
    parse_assignments,
    write_page_of,
)
from simulator.files import PICTURES


def rl(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="RL.yaml",
            help="Training, generation and rollout: a YAML file, or the name of a shipped one.",
            autocompletion=complete_rl,
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Change a field, for example generation.tp=4; may be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None, file_to_write("Draw the phases, and the answers under way.", *PICTURES)
    ] = None,
    html: PageFile = None,
    *,
    context: typer.Context,
) -> None:
    """Simulate a step of reinforcement learning, such as GRPO's or PPO's.

    A step generates answers with a serving engine, computes their probabilities again, trains on
    them, and hands the weights to the engine. Both halves share GPUs and take turns, or have GPUs
    of their own.

    Example:  clustersim rl grpo-llama3.1-8b-16xh100

    Example:  clustersim rl grpo-llama3.1-8b-16xh100 --set order=one-step-off --set
    training.cluster.gpus=8 --set generation.gpus=8
    """
    from simulator import api
    from simulator.api.rl_answers import KNOWN_ERROR

    job = api.load_rl(file, parse_assignments(changes or []))
    with amounts("answers") as counted:
        answer = api.rl(job, on_ended=counted)
    if plot is not None:
        note(f"wrote {answer.plot(plot)}")
    if html is not None:
        write_page_of(answer.page(), html, context)
    if as_json:
        print_json(answer.to_dict())
        return
    plain = [*text_columns(""), *number_columns("")]
    print_table(job.title, plain, answer.figures())
    print_answer_table("phases", answer.phases())
    note(KNOWN_ERROR)
