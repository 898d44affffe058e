"""clustersim capacity and rent: what does the whole training run take, and on which offer?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.completion import complete_offers
from simulator.cli.console import (
    counting,
    note,
    number_columns,
    print_answer_table,
    print_json,
    print_table,
    status_line,
    steps,
    text_columns,
)
from simulator.cli.options import (
    AsJson,
    AskedRisk,
    Changes,
    JobFile,
    PageFile,
    Picture,
    Risk,
    file_to_write,
    note_doubts,
    option,
    parse_assignments,
    quantity,
    refuse_other_files,
    whole_numbers,
    write_answer_page,
)
from simulator.cli.planning.plan import job_to_search
from simulator.cli.planning.sweep import Workers, kept_text
from simulator.cli.step.memory import end_if_riskier
from simulator.errors import InputError
from simulator.files import PICTURES, whole_file
from simulator.results.fit_probability import DEFAULT_RISK
from simulator.units import format_seconds, percent

if TYPE_CHECKING:
    from simulator.api import ClustersAnswer
    from simulator.described.job import Job
    from simulator.planning.campaign.capacity import Capacity
    from simulator.planning.campaign.goodput import Goodput
    from simulator.planning.offers.rental import Rental


Members = Annotated[int, option("Number of campaigns with failures to simulate.", "N", min=2)]
Seed = Annotated[int, option("Random seed of the failures.", "N", min=0)]


def capacity(
    context: typer.Context,
    job_file: JobFile,
    *,
    tokens: Annotated[str | None, option("Tokens to train on, such as 300B or 15T.", "N")] = None,
    campaign_file: Annotated[
        Path | None,
        option(
            "Prices, power, failures and checkpoints; these fields replace those of the "
            "job's campaign.",
            "FILE.yaml",
            name="--campaign",
        ),
    ] = None,
    changes: Changes = None,
    deadline: Annotated[
        str | None, option("Find the fewest GPUs that finish in this time, such as 30d.", "TIME")
    ] = None,
    budget: Annotated[
        str | None,
        option("Find the fastest cluster within this budget, such as '2 MUSD'.", "MONEY"),
    ] = None,
    systems: Annotated[str | None, option("Hardware profiles to compare.", "NAME,NAME,…")] = None,
    sizes: Annotated[
        str | None,
        option(
            "Numbers of GPUs to compare; by default all over which the global batch can be "
            "divided.",
            "N,N,…",
            name="--gpus",
        ),
    ] = None,
    members: Members = 200,
    seed: Seed = 0,
    risk: AskedRisk = None,
    keep_plan: Annotated[
        bool,
        option(
            "Compare clusters with the job's plan, not each with its best plan.", name="--keep-plan"
        ),
    ] = False,
    workers: Workers = None,
    plot: Annotated[
        Path | None,
        file_to_write(
            "Draw where the time goes and the checkpoint intervals.", *PICTURES, metavar="FILE.png"
        ),
    ] = None,
    html: PageFile = None,
    as_json: AsJson = False,
) -> None:
    """Predict the days, cost, energy and CO2 of a training run.

    Every factor is shown with its source. Without a price, the cost stays unknown; without
    failures, goodput does.
    With --deadline, --budget, --systems or --gpus, several clusters are compared, each with the
    fastest plan whose probability of running out of memory is at most --risk. With --keep-plan,
    all use the job's plan, and only data parallelism changes with the number of GPUs.

    Exits with 1 if no cluster fits, or none meets the deadline or budget.

    Example:  clustersim capacity job.yaml --tokens 15T --set campaign.goodput=0.9

    Example:  clustersim capacity job.yaml --tokens 15T --gpus 512,1024 --html capacity.html
    """
    from simulator import api

    asked = _Comparison(
        systems,
        sizes,
        None if deadline is None else quantity(deadline, "--deadline", "s", example_unit="d"),
        None if budget is None else quantity(budget, "--budget", "usd"),
        members,
        seed,
        DEFAULT_RISK if risk is None else risk,
        keep_plan,
        workers,
    )
    plan_is_free = asked.is_wanted and not keep_plan
    job = _read(job_file, tokens, campaign_file, changes, plan_is_free=plan_is_free)
    if asked.is_wanted:
        if plot is not None:
            rule = "draws one campaign, but several clusters are compared"
            raise InputError.single("--plot", rule, hint="remove it")
        _compare(job, asked, html, context, as_json=as_json)
        return
    if keep_plan or workers is not None:
        option = "--keep-plan" if keep_plan else "--workers"
        hint = "add --gpus, --systems, --deadline or --budget, or remove it"
        raise InputError.single(option, "is for several clusters, but there is only one", hint=hint)
    with counting("campaigns") as count:
        answer = api.capacity(job, members=members, seed=seed, on_member=count)
    assert isinstance(answer, api.CapacityAnswer), "one cluster was asked for"
    found = answer.found
    if plot is not None:
        _draw(found, plot)
    write_answer_page(answer, html, context)
    if as_json:
        print_json(answer.to_dict())
    else:
        _print_factors(found)
        _print_goodput(found.time.goodput)
    if not found.fits:
        note("The job does not fit into memory; clustersim run shows what would.")
        raise typer.Exit(1)
    end_if_riskier(found.step, risk)


def _read(
    path: Path,
    tokens: str | None,
    campaign_file: Path | None,
    changes: Sequence[str] | None,
    *,
    plan_is_free: bool,
) -> Job:
    """The job with its campaign: the job file's, then the campaign file's, then options."""
    from simulator.api import load_job
    from simulator.described.documents import merged, read_yaml
    from simulator.described.load import job_file

    refuse_other_files(path)
    assigned = parse_assignments(changes or ())
    if campaign_file is not None:
        document = read_yaml(job_file(path), "give a job as YAML")
        ours = document.get("campaign") or {}
        theirs = read_yaml(campaign_file, "give prices, power and failures as YAML")
        theirs = theirs.get("campaign", theirs)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            theirs = merged(ours, theirs)
        assigned = {"campaign": theirs, **assigned}
    if tokens is not None:
        assigned["campaign.tokens"] = tokens
    if plan_is_free:
        return job_to_search(path, assigned)
    job = load_job(path, assigned)
    note_doubts(job)
    return job


def _draw(found: Capacity, path: Path) -> None:
    from simulator.plots.goodput import build_goodput_figure
    from simulator.plots.style import save

    ensemble = found.time.goodput
    if ensemble is None:
        rule = "draws the cost of failures, and none are given"
        raise InputError.single("--plot", rule, hint="give campaign.failures")
    save(
        build_goodput_figure(
            found.job.title,
            {spent.value: seconds for spent, seconds in ensemble.spent_s.items()},
            [(each.interval_s, each.goodput) for each in ensemble.tried],
            (ensemble.interval_s, ensemble.share),
        ),
        path,
    )


def _print_factors(found: Capacity) -> None:
    from simulator.planning.campaign.factors import factor_text, factors

    columns = text_columns("factor") + number_columns("amount") + text_columns("from")
    rows = [[each.name, factor_text(each), each.origin] for each in factors(found)]
    print_table(found.job.title, columns, rows)


def _print_goodput(found: Goodput | None) -> None:
    from simulator.api.campaign_answers import failures_text, goodput_tables
    from simulator.planning.campaign.goodput import SEARCH_MEMBERS

    if found is None:
        return
    guess = format_seconds(found.first_guess_s)
    titles = (
        f"goodput {percent(found.share)}; mean failures: {failures_text(found)}",
        f"intervals, each simulated on {SEARCH_MEMBERS} campaigns; Daly's is {guess}",
    )
    for title, table in zip(titles, goodput_tables(found), strict=False):
        print_answer_table(title, table)


@dataclass(frozen=True)
class _Comparison:
    """Which clusters, and what is asked of them."""

    systems: str | None
    sizes: str | None
    deadline_s: float | None
    budget_usd: float | None
    members: int
    seed: int
    risk: float
    keep_plan: bool
    workers: int | None

    @property
    def is_wanted(self) -> bool:
        """Whether anything asks for more than the job's own cluster."""
        return bool(self.systems or self.sizes) or self.searches

    @property
    def searches(self) -> bool:
        """Whether one of the clusters is to be chosen."""
        return self.deadline_s is not None or self.budget_usd is not None


def _compare(
    job: Job, asked: _Comparison, html: Path | None, context: typer.Context, *, as_json: bool
) -> None:
    from simulator import api

    with steps("clusters") as step:
        answer = api.capacity(
            job,
            systems=asked.systems.split(",") if asked.systems else (),
            gpus=whole_numbers(asked.sizes, "--gpus") if asked.sizes else (),
            deadline_s=asked.deadline_s,
            budget_usd=asked.budget_usd,
            keep_plan=asked.keep_plan,
            members=asked.members,
            seed=asked.seed,
            risk=asked.risk,
            workers=asked.workers,
            on_cluster=step,
        )
    assert isinstance(answer, api.ClustersAnswer), "several clusters were asked for"
    if as_json:
        print_json(answer.to_dict())
    else:
        _print_clusters(answer)
    write_answer_page(answer, html, context)
    if not answer.ran or None in answer.answers.values():
        raise typer.Exit(1)


def _print_clusters(found: ClustersAnswer) -> None:
    print_answer_table(found.said_of(), found.table())
    without = dict.fromkeys(
        each.job.cluster.profile.name for each in found.ran if each.money.cheapest is None
    )
    for system in without:
        note(f"no price is given: --set campaign.systems.{system}.on_demand='… USD/h'")
    if any(each.time.goodput_share is None for each in found.ran):
        note(
            "goodput is taken as 1: --set campaign.goodput=…, or campaign.failures and "
            "campaign.checkpoint"
        )
    for text in found.answer_texts():
        typer.echo(text)


def rent(
    offers_file: Annotated[
        Path,
        typer.Argument(
            metavar="OFFERS.yaml",
            help="Offers and the workloads to run on them: a YAML file, or a shipped name.",
            autocompletion=complete_offers,
        ),
    ],
    *,
    risk: Risk = DEFAULT_RISK,
    late_risk: Annotated[
        float, option("Accepted probability of missing a deadline.", "SHARE", min=0.001, max=0.5)
    ] = 0.1,
    members: Members = 200,
    seed: Seed = 0,
    workers: Workers = None,
    out: Annotated[
        Path | None,
        file_to_write(
            "Write the table to this file. The rows stay in a .journal beside it, from which the "
            "same command continues, or draws, without simulating them again.",
            ".csv",
            metavar="FILE.csv",
        ),
    ] = None,
    plot: Picture = None,
    html: PageFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare offers of GPUs to rent.

    Each offer runs each workload with its fastest plan that fits. "80 % interval" covers the
    prediction error and failures; "late" is the probability of missing the deadline.

    Exits with 1 if no offer meets the conditions of a workload.

    Example:  clustersim rent three-clouds --html offers.html
    """
    from simulator.planning.offers.rental import rent
    from simulator.processor import core_count

    done = 0
    with status_line() as show:
        show("searching for the fastest plan of each offer")

        def count(row: object, total: int) -> None:
            nonlocal done
            done += 1
            show(f"{done} of {total} rows done")

        found = rent(
            offers_file,
            risk=risk,
            late_risk=late_risk,
            members=members,
            seed=seed,
            workers=workers or core_count(),
            table=out,
            on_row=count,
        )
    if out is not None:
        with whole_file(out) as draft:
            found.to_frame().to_csv(draft, index=False)
        note(f"wrote {out}")
        note(kept_text(out))
    if plot is not None:
        note(f"wrote {found.plot(plot)}")
    if html is not None:
        note(f"wrote {found.write_html(html)}")
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
    if any(choice.best is None for choice in found.choices):
        raise typer.Exit(1)


def _print(found: Rental) -> None:
    from simulator.planning.offers.rental import (
        LAST_ROW_TEXTS,
        ROW_TEXTS,
        answer_lines,
        numbers_of,
        row_cells,
    )

    numbers = numbers_of(list(found.rows))
    columns = text_columns(*ROW_TEXTS) + number_columns(*numbers) + text_columns(*LAST_ROW_TEXTS)
    for choice in found.choices:
        rows = [row for row in found.rows if row.workload == choice.workload]
        print_table(choice.workload, columns, [row_cells(row, numbers) for row in rows])
        for line in (*answer_lines(choice), "", *choice.sentences, ""):
            typer.echo(line)
    if found.for_all_text:
        typer.echo(found.for_all_text)
