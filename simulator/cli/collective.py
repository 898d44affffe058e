"""clustersim collective: how does a ring or a tree move its chunks?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.console import (
    note,
    number_columns,
    print_json,
    print_table,
    text_columns,
    write_picture,
)
from simulator.cli.options import AsJson, Picture, option, quantity
from simulator.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from simulator.engine.chunk_algorithms import Contents
    from simulator.engine.chunked import ChunkedCollective, ChunkTimeline


_WIDEST_TABLE_RANKS = 16


def complete_algorithm(incomplete: str) -> list[str]:
    """Algorithms that start with what is typed so far."""
    from simulator.engine.chunk_algorithms import CHUNK_ALGORITHMS

    return [name for name in CHUNK_ALGORITHMS if name.startswith(incomplete)]


def list_algorithms(*, as_json: AsJson = False) -> None:
    """List the algorithms that can be shown.

    Example:  clustersim collective list
    """
    from simulator.engine.chunk_algorithms import CHUNK_ALGORITHMS

    rows = [
        (name, (algorithm.transfers.__doc__ or "").splitlines()[0].replace("``", ""))
        for name, algorithm in CHUNK_ALGORITHMS.items()
    ]
    if as_json:
        print_json({"algorithms": [{"name": name, "how": how} for name, how in rows]})
        return
    print_table("collectives, chunk by chunk", text_columns("name", "how"), rows)


def show_collective(
    algorithm: Annotated[
        str,
        typer.Argument(
            metavar="ALGORITHM",
            autocompletion=complete_algorithm,
            help="One of the names that clustersim collective list prints.",
        ),
    ],
    *,
    ranks: Annotated[int, option("Number of ranks in the group.", "N")],
    size: Annotated[str, option("Message size, counted as nccl-tests does.", "BYTES")] = "64 MiB",
    link: Annotated[str, option("Bandwidth of every link in one direction.", "RATE")] = "50 GB/s",
    hop: Annotated[str, option("Latency of a hop.", "TIME")] = "5 us",
    chunks: Annotated[int, option("Pieces of every message.", "N")] = 1,
    as_json: AsJson = False,
    plot: Picture = None,
) -> None:
    """Show which rank holds which chunk after every step.

    Links are equal, and nothing else uses them.

    Example:  clustersim collective show ring_all_reduce --ranks 4 --size "64 MiB" --plot ring.png
    """
    from simulator.engine.chunk_algorithms import CHUNK_ALGORITHMS, contents
    from simulator.engine.chunked import ChunkedCollective, simulate_collectives

    num_bytes = quantity(size, "--size", "bytes", or_zero=True)
    rate, hop_s = quantity(link, "--link", "bytes_per_s"), quantity(hop, "--hop", "s", or_zero=True)
    collective = ChunkedCollective(algorithm, num_bytes, range(ranks), chunks)
    timeline = simulate_collectives([collective], rate, hop_s)[0]
    if plot is not None:
        from simulator.plots.machines.chunk_steps import build_chunk_steps_figure

        write_picture(build_chunk_steps_figure(collective, timeline, rate), plot)
    whole_s = CHUNK_ALGORITHMS[algorithm].closed_form_s(num_bytes, ranks, rate, hop_s)
    if as_json:
        print_json(_to_dict(collective, timeline, whole_s))
        return
    state = contents(algorithm, ranks, chunks)
    typer.echo(
        f"{algorithm} of {format_bytes(num_bytes)} over {ranks} ranks: "
        f"{format_seconds(timeline.seconds)} on links of {format_rate(rate)}, "
        f"hops of {format_seconds(hop_s)}\n"
        f"in one piece per message: {format_seconds(whole_s)} by the closed form\n"
    )
    _print_steps(state, timeline)


def _print_steps(state: Contents, timeline: ChunkTimeline) -> None:
    """A row per step: when it ran, and what every rank holds after it, column by column."""
    _, ranks, columns = state.counts.shape
    if ranks > _WIDEST_TABLE_RANKS or columns > _WIDEST_TABLE_RANKS:
        note(f"the table of steps is for up to {_WIDEST_TABLE_RANKS} ranks; see --plot and --json")
        return
    rows = []
    for step in range(state.steps + 1):
        of_step = timeline.step == step - 1
        began = format_seconds(float(timeline.start_s[of_step].min())) if step else ""
        ended = format_seconds(float(timeline.end_s[of_step].max())) if step else ""
        cells = [_marks(state, step, rank) for rank in range(ranks)]
        rows.append((str(step) if step else "start", began, ended, *cells))
    heads = number_columns("after step", "began", "done")
    heads += text_columns(*(f"rank {rank}" for rank in range(ranks)))
    print_table("how many ranks' contributions each piece of the buffer holds", heads, rows)
    typer.echo(".: nothing   1, 2, ...: number of ranks   *: complete   <piece just received>")


def _marks(state: Contents, step: int, rank: int) -> str:
    received = {column for _, receiver, column in state.moves[step] if receiver == rank}
    marks = []
    for column, count in enumerate(state.counts[step, rank]):
        mark = "*" if count >= state.wanted else str(count or ".")
        marks.append(f"<{mark}>" if column in received else f" {mark} ")
    return "".join(marks)


def _to_dict(
    collective: ChunkedCollective, timeline: ChunkTimeline, whole_s: float
) -> dict[str, Any]:
    columns = ("step", "source", "destination", "chunk", "channel", "num_bytes", "start_s", "end_s")
    return {
        "algorithm": collective.algorithm,
        "num_bytes": collective.num_bytes,
        "ranks": len(collective.ranks),
        "chunks": collective.chunks,
        "seconds": timeline.seconds,
        "closed_form_s": whole_s,
        "transfers": {name: getattr(timeline, name).tolist() for name in columns},
    }
